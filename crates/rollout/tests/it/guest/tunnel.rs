//! Connections to services of the host, and what they leave behind.

use std::{fs, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::TcpListener,
};

use super::support::{Container, until};

async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = copy(&mut read, &mut write).await;
            });
        }
    });
    address
}

/// The number of sockets of a process.
fn sockets(pid: u32) -> usize {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

/// The guest below the process that made its namespaces.
fn guest_of(container: &Container) -> u32 {
    let parent = container.child.id().unwrap();
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    children.trim().parse().unwrap()
}

#[tokio::test]
async fn connections_that_have_ended_leave_no_descriptor() {
    let container = Container::start().await;
    let port = container.guest.offer(echo().await).await.unwrap();
    let guest = guest_of(&container);
    let idle = sockets(guest);
    let script = format!(
        "for n in {{1..200}}; do exec 3<>/dev/tcp/127.0.0.1/{port}; echo $n >&3; read -r line <&3; [ $line = $n ] || exit 1; done
         for n in {{1..20}}; do exec 3<>/dev/tcp/127.0.0.1/{port}; yes >&3 & done 2>/dev/null; sleep 0.1; kill -9 $(jobs -p)"
    );
    container.bash(&script).await;
    until(async || sockets(guest) == idle).await;
    container.stop().await;
}

#[tokio::test]
async fn a_guest_that_stays_alone_offers_nothing_any_more() {
    let container = Container::start().await;
    let port = container.guest.offer(echo().await).await.unwrap();
    let mut open = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    open.write_all(b"x").await.unwrap();
    assert_eq!(open.read_u8().await.unwrap(), b'x');
    container.guest.stay().await.unwrap();
    let Container { guest, mut child, dir: _dir } = container;
    guest.finish().await;
    // The open connection is reset, and no other is accepted.
    assert!(open.read_u8().await.is_err());
    until(async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err()).await;
    child.kill().await.unwrap();
}
