//! Carries connections from inside a sandbox to services of the host.
//!
//! The listening sockets are created inside and passed out, so this process accepts the connections itself.

use std::{io, net::SocketAddr, time::Duration};

use rollout_guest::MAX_CONNECTIONS;
use rollout_sandbox::RunningSandbox;
use tokio::{
    io::copy_bidirectional_with_sizes,
    net::{TcpListener, TcpStream},
    sync::Mutex,
    task::JoinSet,
};

use crate::service;

/// The bytes of a connection that wait here in each direction. The kernel holds more.
const BUFFER: usize = 32 << 10;

/// The pause after a failed accept, for example when this process has no free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The services that are offered in one environment. Dropping them resets all connections.
#[derive(Default)]
pub(super) struct Tunnels(Mutex<Offers>);

#[derive(Default)]
struct Offers {
    /// Services, with their ports inside.
    list: Vec<(SocketAddr, u16)>,
    tasks: JoinSet<()>,
}

impl Tunnels {
    /// Offers a service; returns its port inside.
    pub(super) async fn offer(&self, sandbox: &RunningSandbox, service: SocketAddr) -> io::Result<u16> {
        let mut offers = self.0.lock().await;
        let listener = listen(sandbox, 0).await?;
        let port = listener.local_addr()?.port();
        offers.tasks.spawn(accept(listener, service));
        offers.list.push((service, port));
        Ok(port)
    }

    /// Offers all services again, at the same ports of a sandbox that has a new network.
    pub(super) async fn renew(&self, sandbox: &RunningSandbox) -> io::Result<()> {
        let mut offers = self.0.lock().await;
        offers.tasks.shutdown().await;
        for (service, port) in offers.list.clone() {
            let listener = listen(sandbox, port).await?;
            offers.tasks.spawn(accept(listener, service));
        }
        Ok(())
    }

    /// Ends all connections.
    pub(super) async fn finish(self) {
        self.0.into_inner().tasks.shutdown().await;
    }
}

async fn listen(sandbox: &RunningSandbox, port: u16) -> io::Result<TcpListener> {
    let listener = sandbox.listen(port).await?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Carries each connection to the service. Those above the limit wait in the kernel's queue.
async fn accept(listener: TcpListener, service: SocketAddr) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= MAX_CONNECTIONS {
            connections.join_next().await;
            continue;
        }
        match listener.accept().await {
            Ok((inside, _)) => drop(connections.spawn(async move {
                if let Err(error) = carry(inside, service).await {
                    tracing::debug!(%service, %error, "a connection through the tunnel was reset");
                }
            })),
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn carry(mut inside: TcpStream, service: SocketAddr) -> io::Result<()> {
    service::ends_badly(&inside)?;
    let mut outside = service::connect(service).await?;
    copy_bidirectional_with_sizes(&mut inside, &mut outside, BUFFER, BUFFER).await?;
    service::ends_well(&inside)?;
    service::ends_well(&outside)
}
