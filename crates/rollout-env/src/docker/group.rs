//! The networks and volumes of a trial with several containers.

use std::hash::{BuildHasher as _, RandomState};

use async_trait::async_trait;
use bollard::{
    Docker as Api,
    errors::Error,
    models::{Ipam, IpamConfig, NetworkCreateRequest, VolumeCreateRequest},
    query_parameters::RemoveVolumeOptions,
};

use super::{Engine, failure, names, reaper::Removal};
use crate::environment::{EnvironmentError, GroupRequest, ServiceGroup};

/// How many random subnets are tried when the engine has none left.
const SUBNETS: u64 = 8;

/// Networks and volumes of one trial.
pub(super) struct DockerGroup {
    prefix: String,
    internal: bool,
    needs_hosts: bool,
    removal: Removal,
}

/// What was created so far, which is removed when it is dropped.
#[derive(Debug, Clone, Default)]
pub(super) struct Created {
    networks: Vec<String>,
    volumes: Vec<String>,
}

impl Created {
    pub(super) fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.volumes.is_empty()
    }

    /// Removes everything. What is missing is not an error.
    pub(super) async fn remove(&mut self, api: &Api) -> Result<(), Error> {
        let mut failed = None;
        let mut keep = |removed: Result<(), Error>| match removed {
            Err(error) if !failure::is_missing(&error) => {
                failed = Some(error);
                true
            }
            _ => false,
        };
        let (mut networks, mut volumes) = (Vec::new(), Vec::new());
        for network in std::mem::take(&mut self.networks) {
            if keep(api.remove_network(&network).await) {
                networks.push(network);
            }
        }
        for volume in std::mem::take(&mut self.volumes) {
            if keep(api.remove_volume(&volume, None::<RemoveVolumeOptions>).await) {
                volumes.push(volume);
            }
        }
        (self.networks, self.volumes) = (networks, volumes);
        failed.map_or(Ok(()), Err)
    }
}

impl DockerGroup {
    /// Creates the networks and volumes. If the future is dropped, they are removed.
    pub(super) async fn create(
        engine: &Engine,
        request: GroupRequest<'_>,
        internal: bool,
    ) -> Result<Self, EnvironmentError> {
        let prefix = names::container(request.name);
        let labels = engine.inner.owner.labels(request.origin);
        let networks: Vec<NetworkCreateRequest> = request
            .networks
            .iter()
            .map(|network| NetworkCreateRequest {
                name: format!("{prefix}_{}", network.name),
                driver: Some("bridge".to_owned()),
                internal: Some(internal || network.internal),
                labels: Some(labels.clone()),
                ..NetworkCreateRequest::default()
            })
            .collect();
        let volumes: Vec<VolumeCreateRequest> = request
            .volumes
            .iter()
            .map(|volume| VolumeCreateRequest {
                name: Some(format!("{prefix}_{volume}")),
                labels: Some(labels.clone()),
                ..VolumeCreateRequest::default()
            })
            .collect();
        let made = engine.inner.reaper.create_group(networks, volumes).await;
        let removal = made.map_err(|error| {
            EnvironmentError::Start(failure::away("create the networks and volumes of a trial", &error))
        })?;
        Ok(Self { prefix, internal, needs_hosts: engine.is_podman(), removal })
    }
}

/// Creates networks and volumes one by one; `created` has those that exist, also after an error.
pub(super) async fn create(
    api: &Api,
    networks: Vec<NetworkCreateRequest>,
    volumes: Vec<VolumeCreateRequest>,
    created: &mut Created,
) -> Result<(), Error> {
    for network in networks {
        // Noted before, because an engine that stops answering may create it nevertheless.
        created.networks.push(network.name.clone());
        create_network(api, network).await?;
    }
    for volume in volumes {
        created.volumes.extend(volume.name.clone());
        api.create_volume(volume).await?;
    }
    Ok(())
}

/// Creates a network. An engine has addresses for about thirty; further ones get small random subnets of a range
/// that is reserved for measurements, which no other network uses.
async fn create_network(api: &Api, network: NetworkCreateRequest) -> Result<(), Error> {
    let mut outcome = api.create_network(network.clone()).await;
    for _ in 0..SUBNETS {
        match outcome {
            Err(error) if is_short_of_addresses(&error) => {
                let random = RandomState::new().hash_one(&network.name);
                let ipam = Ipam {
                    config: Some(vec![IpamConfig { subnet: Some(subnet(random)), ..IpamConfig::default() }]),
                    ..Ipam::default()
                };
                let network = NetworkCreateRequest { ipam: Some(ipam), ..network.clone() };
                outcome = api.create_network(network).await;
            }
            outcome => return outcome.map(drop),
        }
    }
    outcome.map(drop)
}

fn is_short_of_addresses(error: &Error) -> bool {
    let words = failure::words(error);
    words.contains("non-overlapping") || words.contains("verlaps with other one")
}

/// A network of 64 addresses in 198.18.0.0/15.
fn subnet(random: u64) -> String {
    let number = random % (1 << 11);
    format!("198.{}.{}.{}/26", 18 + (number >> 10), (number >> 2) & 0xff, (number & 3) << 6)
}

#[async_trait]
impl ServiceGroup for DockerGroup {
    fn full_name(&self, name: &str) -> String {
        format!("{}_{name}", self.prefix)
    }

    fn is_internal(&self) -> bool {
        self.internal
    }

    fn needs_hosts(&self) -> bool {
        self.needs_hosts
    }

    async fn remove(self: Box<Self>) -> Result<(), EnvironmentError> {
        let removed = self.removal.run().await;
        removed.map_err(|error| {
            EnvironmentError::Teardown(format!(
                "cannot remove the networks and volumes {}: {}",
                self.prefix,
                failure::words(&error)
            ))
        })
    }

    fn release(self: Box<Self>) {
        self.removal.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_subnets_are_in_the_range_for_measurements() {
        assert_eq!(subnet(0), "198.18.0.0/26");
        assert_eq!(subnet(7), "198.18.1.192/26");
        assert_eq!(subnet((1 << 11) - 1), "198.19.255.192/26");
        assert_eq!(subnet(1 << 11), "198.18.0.0/26");
    }
}
