//! Passes connections from the process that accepts them to the process that serves them, over a control socket.

use std::{
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    mem::MaybeUninit,
    os::{fd::AsFd as _, unix::net::UnixStream},
};

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recvmsg, sendmsg,
    },
};

/// A message has a byte, because a descriptor cannot be sent without data.
const BYTE: [u8; 1] = [b'+'];

/// Reports that the serving process has started.
pub(crate) fn report_ready(mut control: &UnixStream) -> io::Result<()> {
    control.write_all(&BYTE)
}

/// Waits until the serving process has started; an error if it has ended.
pub(crate) fn wait_until_ready(mut control: &UnixStream) -> io::Result<()> {
    control.read_exact(&mut [0])
}

/// Passes on a connection. Never blocks.
pub(crate) fn send(control: &UnixStream, stream: &UnixStream) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let descriptors = [stream.as_fd()];
    if !rights.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(control, &[IoSlice::new(&BYTE)], &mut rights, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a connection, which does not block; an error if the other process has ended.
pub(crate) fn receive(control: &UnixStream) -> io::Result<Option<UnixStream>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut byte = BYTE;
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    match recvmsg(control, &mut [IoSliceMut::new(&mut byte)], &mut rights, flags) {
        Ok(received) if received.bytes == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => {}
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let mut streams = rights.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let stream = streams.next().map(UnixStream::from);
    Ok(stream.filter(|stream| stream.set_nonblocking(true).is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_arrives_and_the_end_of_the_sender_is_noticed() {
        let (near, far) = UnixStream::pair().unwrap();
        assert!(receive(&far).unwrap().is_none());
        let (mut kept, passed) = UnixStream::pair().unwrap();
        send(&near, &passed).unwrap();
        drop(passed);
        let mut arrived = receive(&far).unwrap().unwrap();
        arrived.write_all(b"hello").unwrap();
        let mut text = [0; 5];
        kept.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"hello");
        drop(near);
        assert_eq!(receive(&far).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
