//! Takes the network of a running container away, and gives it back.

use bollard::{
    errors::Error,
    models::{NetworkConnectRequest, NetworkDisconnectRequest},
};

use super::{Engine, apply, failure};
use crate::environment::EnvironmentError;

/// Connects a container to its network, or disconnects it. Doing it twice changes nothing.
pub(super) async fn set(
    engine: &Engine,
    container: &str,
    network: &str,
    connected: bool,
) -> Result<(), EnvironmentError> {
    let lost = |step: &'static str| move |error: Error| EnvironmentError::Lost(failure::away(step, &error));
    let found = engine.api().inspect_container(container, None).await;
    let found = found.map_err(lost("find the network of a container"))?;
    let networks = found.network_settings.and_then(|settings| settings.networks).unwrap_or_default();
    let is_connected = networks.contains_key(network);
    if network == "none" || is_connected == connected {
        return Ok(());
    }
    if connected {
        let request = NetworkConnectRequest { container: container.to_owned(), ..Default::default() };
        let done = engine.api().connect_network(network, request).await;
        done.map_err(lost("connect a container to its network"))
    } else {
        let request = NetworkDisconnectRequest { container: container.to_owned(), force: Some(true) };
        let done = engine.api().disconnect_network(network, request).await;
        done.map_err(lost("disconnect a container from its network"))
    }
}

/// Connects a container to one more network, under these names.
pub(super) async fn connect(
    engine: &Engine,
    container: &str,
    network: &str,
    names: &[String],
) -> Result<(), Error> {
    let endpoint_config = Some(apply::endpoint(names));
    let request = NetworkConnectRequest { container: container.to_owned(), endpoint_config };
    engine.api().connect_network(network, request).await
}
