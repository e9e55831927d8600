//! Finds and removes networks and volumes that Rollout left on an engine.

use std::collections::{HashMap, HashSet};

use bollard::query_parameters::{
    ListContainersOptions, ListNetworksOptions, ListVolumesOptions, RemoveVolumeOptions,
};
use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::{
    Engine, EngineError, failure, names,
    owner::{self, Maker},
    sweep::FOREIGN_PATIENCE_SECONDS,
};

impl Engine {
    /// Removes the networks and volumes that dead runs left, and returns their names. A dry run only returns
    /// them. Those that a container uses are not touched.
    pub fn sweep_shared(&self, dry_run: bool) -> BoxFuture<'_, Result<Vec<String>, EngineError>> {
        Box::pin(async move {
            let used = self.networks_in_use().await?;
            let mut found = Vec::new();
            for name in self.dead_networks().await? {
                if used.contains(&name) {
                    continue;
                }
                if !dry_run {
                    match self.api().remove_network(&name).await {
                        Err(error) if !failure::is_missing(&error) => {
                            tracing::warn!(
                                network = name,
                                error = failure::words(&error),
                                "cannot remove a network"
                            );
                            continue;
                        }
                        _ => {}
                    }
                }
                found.push(name);
            }
            for name in self.dead_volumes().await? {
                if !dry_run {
                    match self.api().remove_volume(&name, None::<RemoveVolumeOptions>).await {
                        Err(error) if !failure::is_missing(&error) => continue,
                        _ => {}
                    }
                }
                found.push(name);
            }
            Ok(found)
        })
    }

    /// The networks of all containers, also of stopped ones.
    async fn networks_in_use(&self) -> Result<HashSet<String>, EngineError> {
        let all = ListContainersOptions { all: true, ..ListContainersOptions::default() };
        let containers = self.api().list_containers(Some(all)).await;
        let containers = containers.map_err(EngineError::call("list containers"))?;
        let networks = containers.into_iter().filter_map(|container| container.network_settings?.networks);
        Ok(networks.flat_map(HashMap::into_keys).collect())
    }

    async fn dead_networks(&self) -> Result<Vec<String>, EngineError> {
        let options = ListNetworksOptions { filters: Some(of_ours()) };
        let listed = self.api().list_networks(Some(options)).await;
        let listed = listed.map_err(EngineError::call("list networks"))?;
        let dead = listed.into_iter().filter_map(|network| {
            let created = network.created.and_then(|date| Timestamp::from_second(date.unix_timestamp()).ok());
            let is_dead = self.is_dead(&network.labels.unwrap_or_default(), created);
            network.name.filter(|name| is_dead && name.starts_with(names::PREFIX))
        });
        Ok(dead.collect())
    }

    async fn dead_volumes(&self) -> Result<Vec<String>, EngineError> {
        let options = ListVolumesOptions { filters: Some(of_ours()) };
        let listed = self.api().list_volumes(Some(options)).await;
        let listed = listed.map_err(EngineError::call("list volumes"))?;
        let dead = listed.volumes.unwrap_or_default().into_iter().filter_map(|volume| {
            let created =
                volume.created_at.and_then(|date| Timestamp::from_second(date.unix_timestamp()).ok());
            let is_dead = self.is_dead(&volume.labels, created);
            Some(volume.name).filter(|name| is_dead && name.starts_with(names::PREFIX))
        });
        Ok(dead.collect())
    }

    /// Whether the run that created something has ended. If that is not visible from here, old things are dead:
    /// one that is in use is not removed.
    fn is_dead(&self, labels: &HashMap<String, String>, created: Option<Timestamp>) -> bool {
        match self.inner.owner.maker(labels) {
            Some(Maker::Dead) => true,
            Some(Maker::Rebooted | Maker::Elsewhere) => created.is_some_and(|time| {
                Timestamp::now().as_second() - time.as_second() > FOREIGN_PATIENCE_SECONDS
            }),
            Some(Maker::Alive) | None => false,
        }
    }
}

fn of_ours() -> HashMap<String, Vec<String>> {
    HashMap::from([("label".to_owned(), vec![owner::OWNER.to_owned()])])
}
