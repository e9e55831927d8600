//! Where log messages go: the job's `rollout.log`, and standard error where no display is in the way.

use std::{
    fs::File,
    io,
    path::Path,
    sync::{Arc, OnceLock},
};

use rollout::{config::LogLevel, record::redact::Redactor};
use tracing_subscriber::{
    EnvFilter, Layer as _, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// The variable that chooses messages instead of the job's `log_level`, as in `rollout=debug`.
const FILTER_VARIABLE: &str = "ROLLOUT_LOG";

/// The log file of a job, whose directory is known only after logging has begun.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogFile(Arc<OnceLock<File>>);

impl LogFile {
    /// Sends what is logged from now on to a file, after what is in it already.
    pub(crate) fn open(&self, path: &Path) -> io::Result<()> {
        let file = File::options().append(true).create(true).open(path)?;
        // A second job in one process would be a bug of this command; its messages go to the first file.
        let _ = self.0.set(file);
        Ok(())
    }
}

impl io::Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.get() {
            Some(mut file) => file.write(bytes),
            None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes messages without secrets, each of which comes in one piece.
struct Masked<W>(Arc<Redactor>, W);

impl<W: io::Write> io::Write for Masked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Self(redactor, writer) = self;
        match redactor.finds(bytes) {
            true => writer.write_all(redactor.text(&String::from_utf8_lossy(bytes)).as_bytes())?,
            false => writer.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.1.flush()
    }
}

/// Starts logging at a level, without these secrets, and also to standard error if asked.
pub(crate) fn start<'a>(
    level: LogLevel,
    secrets: impl IntoIterator<Item = &'a String>,
    to_stderr: bool,
) -> LogFile {
    let redactor = Arc::new(Redactor::new(secrets.into_iter().map(String::as_str)));
    let file = LogFile::default();
    let (writer, masks) = (file.clone(), Arc::clone(&redactor));
    let to_file = fmt::layer()
        .with_ansi(false)
        .with_writer(move || Masked(Arc::clone(&masks), writer.clone()))
        .with_filter(filter(level));
    let to_stderr = to_stderr.then(|| {
        fmt::layer()
            .with_ansi(false)
            .without_time()
            .with_writer(move || Masked(Arc::clone(&redactor), io::stderr()))
            .with_filter(filter(level))
    });
    // It fails only where a subscriber is there already, as in a test of two commands in one process.
    let _ = tracing_subscriber::registry().with(to_file).with(to_stderr).try_init();
    file
}

/// Messages of Rollout itself at the level, and of everything below it only when they are errors.
fn filter(level: LogLevel) -> EnvFilter {
    if let Ok(filter) = EnvFilter::try_from_env(FILTER_VARIABLE) {
        return filter;
    }
    let level = match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    EnvFilter::new(format!("error,rollout={level},rollout_sandbox={level}"))
}
