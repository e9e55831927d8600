//! The privileges of a sandbox's processes: the capabilities of a container, and no way to gain more.

use rustix::{
    io,
    process::{DumpableBehavior, set_dumpable_behavior},
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
        set_capabilities, set_no_new_privs,
    },
};

/// The usual capabilities of containers, without creating device nodes.
const CONTAINER: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::AUDIT_WRITE);

/// Limits everything that the calling process will start to the privileges of a container. It keeps its own.
pub(super) fn limit_all() -> io::Result<()> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if CONTAINER.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // The kernel has no capability of this number or a higher one.
            Err(io::Errno::INVAL) => break,
            other => other?,
        }
    }
    clear_ambient_capability_set()
}

/// Limits the calling process further, to the privileges of one sandbox, and prevents processes inside from reading its
/// memory. It keeps its current privileges for the rest of the setup.
///
/// On the host's network, raw sockets could read the host's traffic, so they are not allowed there.
pub(super) fn limit(own_network: bool) -> io::Result<()> {
    if !own_network {
        remove_capability_from_bounding_set(CapabilitySet::NET_RAW)?;
    }
    set_no_new_privs(true)?;
    // Processes inside must not read the supervisor's memory or descriptors.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Reduces the calling process to a container's privileges.
pub(super) fn reduce(own_network: bool) -> io::Result<()> {
    let keep = kept(own_network);
    set_capabilities(
        None,
        CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() },
    )
}

fn kept(own_network: bool) -> CapabilitySet {
    if own_network { CONTAINER } else { CONTAINER.difference(CapabilitySet::NET_RAW) }
}
