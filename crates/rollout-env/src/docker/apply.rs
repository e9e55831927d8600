//! Applies the settings of a container of a compose file to the request that creates it.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, EndpointSettings, HostConfig, Mount, MountType, NetworkingConfig, ResourcesUlimits,
};

use crate::compose::ContainerSettings;

/// Adds the settings to the request. Only the first network is part of it: some engines accept only one.
pub(super) fn apply(settings: &ContainerSettings, body: &mut ContainerCreateBody) {
    let some = |list: &Vec<String>| (!list.is_empty()).then(|| list.clone());
    let map = |list: &[(String, String)]| {
        (!list.is_empty()).then(|| list.iter().cloned().collect::<HashMap<String, String>>())
    };
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let env: Vec<String> = settings.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
    body.env = some(&env);
    body.hostname = settings.hostname.clone();
    let host = body.host_config.get_or_insert_default();
    add(&mut host.extra_hosts, &settings.extra_hosts);
    add(&mut host.dns, &settings.dns);
    add(&mut host.cap_add, &settings.cap_add);
    add(&mut host.cap_drop, &settings.cap_drop);
    add(&mut host.group_add, &settings.group_add);
    if settings.no_new_privileges {
        add(&mut host.security_opt, &["no-new-privileges".to_owned()]);
    }
    let mounts = settings.volumes.iter().map(|(volume, target, read_only)| Mount {
        typ: Some(MountType::VOLUME),
        source: Some(volume.clone()),
        target: Some(target.clone()),
        read_only: Some(*read_only),
        ..Mount::default()
    });
    let mounts: Vec<Mount> = host.mounts.take().into_iter().flatten().chain(mounts).collect();
    let pids = settings.pids.map(signed);
    *host = HostConfig {
        mounts: (!mounts.is_empty()).then_some(mounts),
        shm_size: settings.shm_bytes.map(signed),
        tmpfs: map(&settings.tmpfs),
        sysctls: map(&settings.sysctls),
        readonly_rootfs: settings.read_only.then_some(true),
        privileged: settings.privileged.then_some(true),
        pids_limit: pids.or(host.pids_limit),
        ulimits: (!settings.ulimits.is_empty()).then(|| {
            let limit = |(name, soft, hard): &(String, i64, i64)| ResourcesUlimits {
                name: Some(name.clone()),
                soft: Some(*soft),
                hard: Some(*hard),
            };
            settings.ulimits.iter().map(limit).collect()
        }),
        ..std::mem::take(host)
    };
    match settings.networks.first() {
        Some((network, names)) => {
            host.network_mode = Some(network.clone());
            let endpoints = HashMap::from([(network.clone(), endpoint(names))]);
            body.networking_config = Some(NetworkingConfig { endpoints_config: Some(endpoints) });
        }
        None => host.network_mode = Some("none".to_owned()),
    }
}

fn add(list: &mut Option<Vec<String>>, more: &[String]) {
    if !more.is_empty() {
        list.get_or_insert_default().extend(more.iter().cloned());
    }
}

/// A connection to a network under these names.
pub(super) fn endpoint(names: &[String]) -> EndpointSettings {
    EndpointSettings { aliases: (!names.is_empty()).then(|| names.to_vec()), ..EndpointSettings::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_privileged_service_is_requested_as_one() {
        for (privileged, requested) in [(true, Some(true)), (false, None)] {
            let mut body = ContainerCreateBody::default();
            apply(&ContainerSettings { privileged, ..ContainerSettings::default() }, &mut body);
            assert_eq!(body.host_config.unwrap().privileged, requested);
        }
    }
}
