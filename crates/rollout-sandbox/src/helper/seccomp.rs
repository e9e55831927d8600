//! The system call filter: everything is allowed but what reaches past the sandbox.

use std::{collections::BTreeMap, io};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

/// Calls that are refused whatever their arguments.
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
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_uselib, libc::SYS__sysctl];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

/// Every flag of clone that makes a namespace.
const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// The compiled filter.
pub(super) struct Filter {
    programs: Vec<BpfProgram>,
}

impl Filter {
    pub(super) fn compile() -> io::Result<Filter> {
        let mut refused: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
        for call in REFUSED.iter().chain(REFUSED_HERE) {
            refused.insert(*call, Vec::new());
        }
        // Each namespace flag by itself: a rule that tests them together would need all to be set.
        let mut namespaces = Vec::new();
        for bit in 0..32 {
            let flag = 1 << bit;
            if NAMESPACES & flag != 0 {
                namespaces.push(argument(0, SeccompCmpOp::MaskedEq(flag), flag)?);
            }
        }
        refused.insert(libc::SYS_clone, namespaces);
        // Typing into the terminal that started the sandbox.
        let mut terminal = Vec::new();
        for request in [libc::TIOCSTI, libc::TIOCLINUX] {
            terminal.push(argument(1, SeccompCmpOp::Eq, request)?);
        }
        refused.insert(libc::SYS_ioctl, terminal);
        // The arguments of clone3 lie in memory that a filter cannot read; with ENOSYS the C library uses clone.
        let missing = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        let programs = [(refused, libc::EPERM), (missing, libc::ENOSYS)]
            .into_iter()
            .map(|(rules, errno)| program(rules, errno.unsigned_abs()))
            .collect::<Result<_, _>>()
            .map_err(io::Error::other)?;
        Ok(Filter { programs })
    }

    /// Installs the filter for the calling process and everything it will start.
    pub(super) fn apply(&self) -> io::Result<()> {
        self.programs.iter().try_for_each(|program| apply_filter(program)).map_err(io::Error::other)
    }
}

fn argument(index: u8, compare: SeccompCmpOp, value: u64) -> io::Result<SeccompRule> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, compare, value)
        .and_then(|condition| SeccompRule::new(vec![condition]))
        .map_err(io::Error::other)
}

fn program(
    mut rules: BTreeMap<i64, Vec<SeccompRule>>,
    errno: u32,
) -> Result<BpfProgram, seccompiler::BackendError> {
    if cfg!(target_arch = "x86_64") {
        // The same calls by their numbers of the x32 ABI, which the architecture check lets through.
        let x32: Vec<_> = rules.iter().map(|(call, rule)| (call | 0x4000_0000, rule.clone())).collect();
        rules.extend(x32);
    }
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno), architecture)?.try_into()
}
