//! The networks and volumes that the containers of one environment share.

use async_trait::async_trait;

use super::{EnvironmentError, Origin};
use crate::compose::ComposeNetwork;

/// A request for networks and volumes.
#[derive(Debug, Clone, Copy)]
pub struct GroupRequest<'a> {
    /// The requester.
    pub origin: Origin<'a>,
    /// A readable name.
    pub name: &'a str,
    /// The networks.
    pub networks: &'a [ComposeNetwork],
    /// The names of the volumes.
    pub volumes: &'a [String],
    /// Whether no network has a connection to other networks.
    pub internal: bool,
}

/// Networks and volumes of one environment. Dropping it removes them in the background.
#[async_trait]
pub trait ServiceGroup: Send + Sync {
    /// The provider's name of a network or volume.
    fn full_name(&self, name: &str) -> String;

    /// Whether no network has a connection to other networks, so that containers have to be
    /// [connected](crate::Environment::set_network) to another one.
    fn is_internal(&self) -> bool;

    /// Whether names of containers do not resolve by themselves, and have to be written to `/etc/hosts`.
    fn needs_hosts(&self) -> bool;

    /// Removes the networks and volumes.
    async fn remove(self: Box<Self>) -> Result<(), EnvironmentError>;

    /// Leaves the networks and volumes for containers that are preserved.
    fn release(self: Box<Self>);
}
