//! The order in which services start: each after those that it depends on.

use super::{ComposeService, MAIN_SERVICE};

/// Orders services, with `main` last. An error names the services that depend on each other.
///
/// `main` is last even if another service depends on it: its container is there before any program starts, and
/// its own program is Rollout's.
pub(super) fn order(services: Vec<ComposeService>) -> Result<Vec<ComposeService>, Vec<String>> {
    let (main, mut waiting): (Vec<_>, Vec<_>) =
        services.into_iter().partition(|service| service.name == MAIN_SERVICE);
    let mut ordered: Vec<ComposeService> = Vec::with_capacity(waiting.len() + 1);
    while !waiting.is_empty() {
        let is_waiting = |name: &str| waiting.iter().any(|service| service.name == name);
        let ready = waiting
            .iter()
            .position(|service| service.depends_on.iter().all(|dependency| !is_waiting(&dependency.service)));
        match ready {
            Some(at) => ordered.push(waiting.remove(at)),
            None => return Err(waiting.into_iter().map(|service| service.name).collect()),
        }
    }
    ordered.extend(main);
    Ok(ordered)
}
