//! The isolation between the agent, the verifier and the machine.
#![expect(missing_docs, reason = "the names of the cases describe them")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::time::Duration;

use rollout::environment::{CommandRole, EnvironmentError, Outcome};

use super::{Inside, Suite};
use crate::TestTask;

/// Forks and exits in an endless loop: a scan of /proc rarely finds it. Each process leaves a mark.
pub(crate) const HOP: &str = "hop() { echo >> /tmp/hops; hop & }; hop";

pub fn an_environment_killed_from_outside_is_reported_as_lost(suite: &Suite) {
    for role in [CommandRole::Agent, CommandRole::Verifier] {
        let ended = suite.killed(role);
        assert!(matches!(ended, Err(EnvironmentError::Lost(_))), "{role:?}: {ended:?}");
    }
}

/// Waits until a process hops, then until `end` has ended it, and checks that it has stopped.
async fn hops_until(inside: &Inside, end: impl AsyncFnOnce()) {
    inside.bash("until [ -s /tmp/hops ]; do sleep 0.01; done").await;
    end().await;
    let count = "wc -l < /tmp/hops; sleep 0.2; wc -l < /tmp/hops";
    let counted = inside.bash(count).await;
    let (before, after) = counted.trim().split_once('\n').unwrap();
    assert_eq!(before, after, "it keeps forking");
    inside.bash("rm /tmp/hops").await;
}

pub fn killing_all_leaves_no_process_that_keeps_starting_others(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        for _ in 0..3 {
            inside.bash(&format!("for n in 1 2 3; do ( {HOP} ) > /dev/null 2>&1 & done")).await;
            hops_until(inside, async || inside.environment().kill_all().await.unwrap()).await;
        }
    });
}

pub fn a_deadline_ends_a_process_that_keeps_starting_others(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let script = format!("( {HOP} ) > /dev/null 2>&1 & sleep 600");
        let mut deadline = Duration::from_millis(300);
        for _ in 0..3 {
            loop {
                let (exit, _) = inside.exec(&["bash", "-c", &script], Some(deadline)).await.unwrap();
                assert_eq!(exit.outcome, Outcome::TimedOut);
                if inside.bash("if [ -s /tmp/hops ]; then echo hopped; fi").await == "hopped\n" {
                    break;
                }
                // On a busy machine, the first process may need longer than that.
                deadline *= 2;
                assert!(deadline < Duration::from_secs(60), "no process starts another");
            }
            hops_until(inside, async || {}).await;
        }
    });
}

pub fn an_agents_processes_cannot_reach_the_verifiers_where_the_provider_says_so(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        if !inside.environment().isolates_verifier() {
            return;
        }
        let environment = inside.environment();
        environment.write_file("/tests/secret.sh", b"secret").await.unwrap();
        environment.make_dirs(&["/logs/verifier"], true).await.unwrap();
        inside
            .verifier_bash("echo 0 > /logs/verifier/reward.txt; KEY=secret sleep 600 > /dev/null 2>&1 &")
            .await;
        let attack = "rm -rf /tests /logs; mv /tests /t; mv /logs /l; mkdir -p /tests /logs/verifier
            for dir in /tests /logs/verifier; do echo 1 > $dir/reward.txt; done
            grep -rqs secret /tests /logs /proc/[0-9]*/environ /proc/[0-9]*/root/tests && echo found
            pgrep -x sleep; true";
        let seen = inside.bash(&format!("{{ {attack}; }} 2> /dev/null")).await;
        assert_eq!(seen, "");
        let kept =
            "cat /logs/verifier/reward.txt /tests/secret.sh; ls -A /tests /logs/verifier; pgrep -cx sleep";
        assert_eq!(
            inside.verifier_bash(kept).await,
            "0\nsecret/logs/verifier:\nreward.txt\n\n/tests:\nsecret.sh\n1\n"
        );
        assert_eq!(environment.survivors().await.unwrap(), Vec::<String>::new());
    });
}

pub fn localhost_resolves_without_a_network(suite: &Suite) {
    suite.inside_alone(TestTask::new("task"), async |inside| {
        let found = inside.bash("getent ahosts localhost").await;
        assert!(
            found.lines().any(|line| line.starts_with("127.0.0.1 ") || line.starts_with("::1 ")),
            "{found}"
        );
    });
}
