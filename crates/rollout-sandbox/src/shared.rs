//! A memory page shared by the supervisor and the shepherd of one command.

use std::{
    io,
    ptr::NonNull,
    sync::atomic::{AtomicBool, AtomicI32, Ordering},
};

/// The progress of a shepherd. The supervisor can read it after the shepherd was killed.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Progress {
    main: AtomicI32,
    reported: AtomicBool,
}

impl Progress {
    /// Records the pid of the command's main process.
    pub(crate) fn started(&self, pid: i32) {
        self.main.store(pid, Ordering::SeqCst);
    }

    /// Records that the command's end (or failure to start) was reported to the engine.
    pub(crate) fn record_report(&self) {
        self.reported.store(true, Ordering::SeqCst);
    }

    /// The pid of the command's main process, once it has one.
    pub(crate) fn main(&self) -> Option<i32> {
        Some(self.main.load(Ordering::SeqCst)).filter(|pid| *pid > 0)
    }

    /// Whether the command's end was reported to the engine.
    pub(crate) fn was_reported(&self) -> bool {
        self.reported.load(Ordering::SeqCst)
    }
}

/// An owned [`Progress`] that a forked child sees too.
pub(crate) struct SharedProgress(NonNull<Progress>);

impl SharedProgress {
    pub(crate) fn new() -> io::Result<SharedProgress> {
        // SAFETY: an anonymous shared mapping of the right size, checked below.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Progress>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = NonNull::new(page.cast::<Progress>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the page is writable, aligned and large enough.
        unsafe { page.write(Progress::default()) };
        Ok(SharedProgress(page))
    }
}

impl std::ops::Deref for SharedProgress {
    type Target = Progress;

    fn deref(&self) -> &Progress {
        // SAFETY: the page was initialised in `new`, lives until drop, and holds only atomics.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for SharedProgress {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this size and is not used after drop.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<Progress>()) };
    }
}
