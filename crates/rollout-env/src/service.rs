//! A connection to a service that is offered inside an environment.

use std::{io, net::SocketAddr, os::fd::AsFd, time::Duration};

use rustix::net::sockopt::set_socket_linger;
use tokio::{net::TcpStream, time::timeout};

/// A service of this machine accepts at once, unless it is overloaded.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects to a service. Its connection is reset when it is dropped, unless it [ends well](ends_well).
pub(crate) async fn connect(service: SocketAddr) -> io::Result<TcpStream> {
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(service)).await??;
    ends_badly(&stream)?;
    Ok(stream)
}

/// From now on, dropping the connection resets it: the other side must not mistake a part for the whole. Each
/// message is sent at once.
pub(crate) fn ends_badly(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    Ok(set_socket_linger(stream.as_fd(), Some(Duration::ZERO))?)
}

/// Dropping the connection delivers all bytes.
pub(crate) fn ends_well(stream: &TcpStream) -> io::Result<()> {
    Ok(set_socket_linger(stream.as_fd(), None)?)
}
