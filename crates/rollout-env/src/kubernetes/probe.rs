//! Checks that the cluster enforces network policies, with the first pod of a job that has no network.
//!
//! The pod tries to reach the DNS server of the cluster, which is a pod and needs no API call. The address of the API
//! server would not do: on a cluster with one node, some plugins let pods reach their own node in any case.

use std::{net::IpAddr, time::Duration};

use tokio::{sync::OnceCell, time::sleep};

use crate::{
    environment::{CommandRole, Environment, EnvironmentError, Exec, Exit, FileRead, Outcome},
    log::LogWriter,
};

/// The port of DNS.
const PORT: &str = "53";

/// How long a connection may take. Most plugins drop packets, so a blocked connection takes this long.
const PATIENCE: Duration = Duration::from_secs(3);

/// Some plugins enforce a policy only some time after a pod has started.
const ATTEMPTS: u32 = 15;

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// The largest configuration of a resolver.
const MAX_CONFIG: u64 = 64 << 10;

/// The check, which is done once.
#[derive(Default)]
pub(super) struct PolicyProbe(OnceCell<bool>);

impl PolicyProbe {
    /// Fails if a pod without a network reaches another pod. If the pod cannot be used for the check, nothing is known,
    /// and the next one is used.
    pub(super) async fn check(&self, pod: &dyn Environment) -> Result<(), EnvironmentError> {
        let Some(server) = cluster_dns(pod).await? else { return Ok(()) };
        let probe = || async { is_blocked(pod, server).await.ok_or(()) };
        match self.0.get_or_try_init(probe).await {
            Ok(false) => Err(EnvironmentError::Refused(format!(
                "the cluster does not enforce NetworkPolicy: a pod without a network reached the cluster's DNS server \
                 {server}. Install a network plugin that enforces policies, such as Calico or Cilium, or remove \
                 `provider_config.network_policy`"
            ))),
            Ok(true) | Err(()) => Ok(()),
        }
    }
}

/// The DNS server of the cluster, if the pod uses it.
async fn cluster_dns(pod: &dyn Environment) -> Result<Option<IpAddr>, EnvironmentError> {
    Ok(match pod.read_file("/etc/resolv.conf", MAX_CONFIG).await? {
        FileRead::Content(text) => server_in(&String::from_utf8_lossy(&text)),
        _ => None,
    })
}

/// The server in the configuration of a resolver, if it is one of a cluster and not on the pod's own node.
fn server_in(config: &str) -> Option<IpAddr> {
    let values = |key: &'static str| config.lines().filter_map(move |line| line.trim().strip_prefix(key));
    let is_of_cluster =
        values("search ").flat_map(str::split_whitespace).any(|domain| domain.starts_with("svc."));
    let server = values("nameserver ").next()?.trim().parse().ok()?;
    let is_on_node = match server {
        IpAddr::V4(address) => address.is_loopback() || address.is_link_local(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
    };
    (is_of_cluster && !is_on_node).then_some(server)
}

/// Whether the pod cannot reach a server; `None` if it has no program to try it with.
async fn is_blocked(pod: &dyn Environment, server: IpAddr) -> Option<bool> {
    let server = server.to_string();
    for _ in 0..ATTEMPTS {
        let command = Exec {
            role: CommandRole::Verifier,
            argv: &["bash", "-c", ": </dev/tcp/$0/$1", &server, PORT],
            env: &[],
            deadline: Some(PATIENCE),
            stdout: LogWriter::discard(),
            stderr: LogWriter::discard(),
        };
        match pod.exec(command).await {
            Ok(Exit { outcome: Outcome::Code(0), .. }) => sleep(PAUSE).await,
            Ok(Exit { outcome: Outcome::Code(1) | Outcome::TimedOut, .. }) => return Some(true),
            // There is no bash.
            Ok(_) | Err(_) => return None,
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use std::{
        os::fd::OwnedFd,
        path::Path,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use async_trait::async_trait;

    use super::*;
    use crate::environment::{CopyMode, CopyOut, CopyReport, Facts};

    /// A pod on a cluster, in which each attempt to connect ends in one of these ways. The last one repeats.
    struct Pod {
        ends: &'static [Outcome],
        attempts: AtomicUsize,
    }

    impl Pod {
        fn new(ends: &'static [Outcome]) -> Self {
            Self { ends, attempts: AtomicUsize::new(0) }
        }

        fn attempts(&self) -> usize {
            self.attempts.load(Ordering::Relaxed)
        }
    }

    #[async_trait]
    impl Environment for Pod {
        fn id(&self) -> &str {
            "pod"
        }

        fn facts(&self) -> Facts {
            unreachable!()
        }

        async fn copy_to(&self, _: &Path, _: &str, _: CopyMode) -> Result<(), EnvironmentError> {
            unreachable!()
        }

        async fn write_file(&self, _: &str, _: &[u8]) -> Result<(), EnvironmentError> {
            unreachable!()
        }

        async fn copy_from(&self, _: CopyOut<'_>) -> Result<CopyReport, EnvironmentError> {
            unreachable!()
        }

        async fn read_file(&self, _: &str, _: u64) -> Result<FileRead, EnvironmentError> {
            Ok(FileRead::Content(b"search svc.cluster.local\nnameserver 10.96.0.10\n".to_vec()))
        }

        async fn make_dirs(&self, _: &[&str], _: bool) -> Result<(), EnvironmentError> {
            unreachable!()
        }

        async fn link(&self, _: &str, _: &str) -> Result<(), EnvironmentError> {
            unreachable!()
        }

        async fn exec(&self, command: Exec<'_>) -> Result<Exit, EnvironmentError> {
            assert_eq!(command.argv[3..], ["10.96.0.10", "53"]);
            let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
            let outcome = self.ends[attempt.min(self.ends.len() - 1)];
            Ok(Exit { outcome, oom_killed: false })
        }

        async fn exec_on_terminal(&self, _: &[&str], _: OwnedFd) -> Result<Exit, EnvironmentError> {
            unreachable!()
        }

        async fn snapshot(&self, _: &str) -> Result<(), EnvironmentError> {
            unreachable!()
        }

        async fn survivors(&self) -> Result<Vec<String>, EnvironmentError> {
            unreachable!()
        }

        async fn kill_all(&self) -> Result<(), EnvironmentError> {
            unreachable!()
        }

        fn cost(&self) -> f64 {
            unreachable!()
        }

        async fn destroy(self: Box<Self>) -> Result<(), EnvironmentError> {
            unreachable!()
        }

        async fn preserve(self: Box<Self>) -> Result<String, EnvironmentError> {
            unreachable!()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_reaches_another_although_it_has_no_network_shows_that_policies_are_not_enforced() {
        let probe = PolicyProbe::default();
        for _ in 0..2 {
            let error = probe.check(&Pod::new(&[Outcome::Code(0)])).await.unwrap_err();
            assert!(
                matches!(&error, EnvironmentError::Refused(text) if text.contains("10.96.0.10")),
                "{error}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_policy_may_be_enforced_late_and_is_checked_once() {
        for blocked in [Outcome::TimedOut, Outcome::Code(1)] {
            let probe = PolicyProbe::default();
            let pods: [Pod; 3] = [
                // Without bash, the next pod is used.
                Pod::new(&[Outcome::Code(127)]),
                Pod::new(match blocked {
                    Outcome::TimedOut => &[Outcome::Code(0), Outcome::Code(0), Outcome::TimedOut],
                    _ => &[Outcome::Code(0), Outcome::Code(0), Outcome::Code(1)],
                }),
                Pod::new(&[Outcome::Code(0)]),
            ];
            for pod in &pods {
                probe.check(pod).await.unwrap();
            }
            assert_eq!(pods.each_ref().map(Pod::attempts), [1, 3, 0], "{blocked:?}");
        }
    }

    #[test]
    fn only_the_dns_server_of_a_cluster_shows_whether_policies_are_enforced() {
        let search = "search team.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n";
        let server = "10.96.0.10".parse().ok();
        for (expected, config) in [
            (server, format!("{search}nameserver 10.96.0.10\n")),
            (server, format!("nameserver 10.96.0.10\n{search}")),
            // The machine's own.
            (None, "search example.com\nnameserver 10.96.0.10\n".to_owned()),
            (None, "nameserver 10.96.0.10\n".to_owned()),
            // A cache on the node.
            (None, format!("{search}nameserver 169.254.20.10\n")),
            (None, format!("{search}nameserver 127.0.0.1\n")),
            (None, search.to_owned()),
        ] {
            assert_eq!(server_in(&config), expected, "{config}");
        }
    }
}
