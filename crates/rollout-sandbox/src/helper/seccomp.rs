//! The system call filters: everything is allowed except calls that reach beyond the sandbox.
//!
//! There are two filters, because the cost of installing one grows with its length: a long one that the zygote
//! installs once and all sandboxes inherit, and a short one that blocks calls needed only for the setup of a
//! sandbox.

use std::{collections::BTreeMap, io};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter, sock_filter,
};

// Calls that have one number on every architecture, and not always a name in the C library.
const OPEN_TREE_ATTR: i64 = 467;
const SET_MEMPOLICY_HOME_NODE: i64 = 450;

/// The newest call that these filters were written for, `file_setattr`. New calls have the same number on every
/// architecture.
const NEWEST: u32 = 469;

/// Calls that are rejected once a sandbox is set up, whatever their arguments.
const REFUSED_INSIDE: &[i64] = &[
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_pivot_root,
    libc::SYS_sethostname,
    libc::SYS_umount2,
];

/// Calls that are never needed, not even to set up a sandbox.
const REFUSED: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_file_load,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mbind,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_set_mempolicy,
    SET_MEMPOLICY_HOME_NODE,
    libc::SYS_setdomainname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_sysfs,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS__sysctl,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

/// Every clone flag that creates a namespace.
const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// The bit that marks a call number of the x32 ABI.
const X32: u32 = 0x4000_0000;

// The classic BPF instructions that the start of the filter uses.
const LOAD_ABSOLUTE: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_GREATER_OR_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;
const RETURN_ERRNO: u32 = 0x0005_0000;

/// The offset of the lower half of a call's first argument in the filter's input.
const FIRST_ARGUMENT: u32 = 16;

/// A compiled filter.
pub(super) struct Filter(BpfProgram);

impl Filter {
    /// The filter for the zygote, and so for all sandboxes.
    pub(super) fn for_all() -> io::Result<Filter> {
        let calls = REFUSED.iter().chain(REFUSED_HERE);
        let mut refused: BTreeMap<i64, Vec<SeccompRule>> = calls.map(|call| (*call, Vec::new())).collect();
        // Inserting input into the terminal that started the sandbox.
        let mut terminal = Vec::new();
        for request in [libc::TIOCSTI, libc::TIOCLINUX] {
            terminal.push(argument(1, SeccompCmpOp::Eq, request)?);
        }
        refused.insert(libc::SYS_ioctl, terminal);
        let mut program = start();
        program.extend(rest(refused).map_err(io::Error::other)?);
        Ok(Filter(program))
    }

    /// The filter for a sandbox that is set up.
    pub(super) fn for_inside() -> io::Result<Filter> {
        let mut refused: BTreeMap<i64, Vec<SeccompRule>> =
            REFUSED_INSIDE.iter().map(|call| (*call, Vec::new())).collect();
        // One rule per namespace flag: a rule that tests them together would match only if all are set.
        let mut namespaces = Vec::new();
        for bit in 0..32 {
            let flag = 1 << bit;
            if NAMESPACES & flag != 0 {
                namespaces.push(argument(0, SeccompCmpOp::MaskedEq(flag), flag)?);
            }
        }
        refused.insert(libc::SYS_clone, namespaces);
        Ok(Filter(rest(refused).map_err(io::Error::other)?))
    }

    /// Installs the filter for the calling process and everything it will start.
    pub(super) fn apply(&self) -> io::Result<()> {
        apply_filter(&self.0).map_err(io::Error::other)
    }
}

/// Rules with an error other than "not permitted", or on a range of numbers. One program costs half as much as
/// two.
fn start() -> BpfProgram {
    let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let refuse = |errno: i32| instruction(RETURN, 0, 0, RETURN_ERRNO | errno.unsigned_abs());
    let number = |call: i64| u32::try_from(call).expect("call numbers are small");
    vec![
        // The call number is the first field of the filter's input.
        instruction(LOAD_ABSOLUTE, 0, 0, 0),
        // The x32 ABI is unused, and its numbers would bypass every rule.
        instruction(JUMP_IF_GREATER_OR_EQUAL, 0, 1, X32),
        refuse(libc::EPERM),
        // Newer calls could reach beyond the sandbox. Programs take ENOSYS for an older kernel, and do without.
        instruction(JUMP_IF_GREATER_OR_EQUAL, 0, 1, NEWEST + 1),
        refuse(libc::ENOSYS),
        // The arguments of clone3 are in memory that a filter cannot read; after ENOSYS the C library uses
        // clone.
        instruction(JUMP_IF_EQUAL, 0, 1, number(libc::SYS_clone3)),
        refuse(libc::ENOSYS),
        // Sockets to the machine's hypervisor belong to no network namespace.
        instruction(JUMP_IF_EQUAL, 0, 3, number(libc::SYS_socket)),
        instruction(LOAD_ABSOLUTE, 0, 0, FIRST_ARGUMENT),
        instruction(JUMP_IF_EQUAL, 0, 1, libc::AF_VSOCK.unsigned_abs()),
        refuse(libc::EAFNOSUPPORT),
    ]
}

fn argument(index: u8, compare: SeccompCmpOp, value: u64) -> io::Result<SeccompRule> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, compare, value)
        .and_then(|condition| SeccompRule::new(vec![condition]))
        .map_err(io::Error::other)
}

fn rest(rules: BTreeMap<i64, Vec<SeccompRule>>) -> Result<BpfProgram, seccompiler::BackendError> {
    let architecture = std::env::consts::ARCH.try_into()?;
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    SeccompFilter::new(rules, SeccompAction::Allow, refused, architecture)?.try_into()
}
