//! Detects whether processes that the agent left running changed the tests or the reward.
//!
//! Services are part of many solutions, so processes of the agent run during the tests. A provider that isolates the
//! verifier keeps them away. In others they are stopped while the tests are copied in, files are watched while the
//! tests run, and the processes are killed before the reward is read, so that any change is found. If a provider cannot
//! watch files, the processes are killed before the tests. Without such processes, nothing of this happens.

use std::collections::BTreeMap;

use super::{calls::required, failure::Failure};
use rollout_core::{event::Phase, result::ErrorType, text::listed};
use rollout_env::{Environment, EnvironmentError, FileChange, FileChangeKind as Kind};

/// The directory of the tests in an environment.
pub(super) const TESTS_DIR: &str = "/tests";

/// The files in which tests may write their reward.
const REWARDS: [&str; 2] = ["/logs/verifier/reward.txt", "/logs/verifier/reward.json"];

/// The maximum number of listed files.
const MAX_NAMED: usize = 20;

/// The maximum number of listed files that were added. Their whole number is unknown.
const MAX_ADDED: usize = 9;

/// The protection of a verification against processes of the agent.
#[derive(Debug, Default)]
pub(super) struct VerdictWatch {
    /// Commands that the agent left running, without secrets.
    pub(super) survivors: Vec<String>,
    /// What they did to the tests and the reward.
    pub(super) tampering: Vec<String>,
    pub(super) notes: Vec<String>,
    step: Step,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// No process of the agent can affect the verdict.
    #[default]
    Unneeded,
    /// The tests are about to be copied in.
    Prepared,
    /// The provider watches them.
    Watched,
}

impl VerdictWatch {
    /// Stops the processes that the agent left running, before the tests are copied in.
    pub(super) async fn prepare(&mut self, environment: &dyn Environment) -> Result<(), Failure> {
        if self.survivors.is_empty() || environment.isolates_verifier() {
            return Ok(());
        }
        self.step = Step::Prepared;
        match required_or_refused(environment.hold().await)? {
            Ok(_) => Ok(()),
            Err(reason) => self.give_up(environment, &reason).await,
        }
    }

    /// Watches the tests, which are in place, and continues the stopped processes.
    pub(super) async fn begin(&mut self, environment: &dyn Environment) -> Result<(), Failure> {
        if self.step != Step::Prepared {
            return Ok(());
        }
        match required_or_refused(environment.watch(TESTS_DIR, &REWARDS).await)? {
            Ok(true) => {
                self.step = Step::Watched;
                Ok(())
            }
            Ok(false) => self.give_up(environment, "the provider cannot watch files").await,
            Err(reason) => self.give_up(environment, &reason).await,
        }
    }

    /// Kills the processes of the agent before the tests if they cannot be watched.
    async fn give_up(&mut self, environment: &dyn Environment, reason: &str) -> Result<(), Failure> {
        self.step = Step::Unneeded;
        self.notes.push(format!(
            "processes that the agent left running were killed before the tests, because the tests could not be \
             watched: {reason}"
        ));
        required(Phase::Verify, environment.kill_all()).await
    }

    /// Kills the processes that the agent left running, after the tests, and looks for changes.
    pub(super) async fn end(&mut self, environment: &dyn Environment) -> Result<(), Failure> {
        let phase = Phase::Verify;
        if self.step != Step::Watched {
            return Ok(());
        }
        required(phase, environment.kill_all()).await?;
        let changes = required(phase, environment.changes()).await?;
        self.notes.extend(additions(&changes));
        let mut found = evidence(&changes);
        if found.is_empty() {
            return Ok(());
        }
        if found.len() > MAX_NAMED {
            let more = found.len() - MAX_NAMED;
            found.truncate(MAX_NAMED);
            found.push(format!("{more} more files of the tests were changed"));
        }
        let commands = listed(&self.survivors);
        let failure = Failure::new(
            ErrorType::VerifierFailed,
            format!(
                "the reward cannot be trusted: {} while processes of the agent were running: {commands}. If the tests \
                 do that themselves, end those processes first with `verifier.agent_processes: kill`, or keep them \
                 apart with `verifier.environment: separate` or `environment.type: native`",
                listed(&found)
            ),
        );
        found.push(format!("the agent left running: {commands}"));
        self.tampering = found;
        Err(failure)
    }
}

/// Separates refusals of an environment from failures.
fn required_or_refused<T>(answer: Result<T, EnvironmentError>) -> Result<Result<T, String>, Failure> {
    match answer {
        Ok(value) => Ok(Ok(value)),
        Err(EnvironmentError::Command(reason)) => Ok(Err(reason)),
        Err(error) => Err(Failure::environment(Phase::Verify, &error)),
    }
}

/// The evidence in changes of watched files: changed tests, and rewards whose author is unknown.
fn evidence(changes: &[FileChange]) -> Vec<String> {
    let mut files: BTreeMap<&str, BTreeMap<Kind, u32>> = BTreeMap::new();
    for change in changes {
        *files.entry(&change.path).or_default().entry(change.kind).or_default() += change.count;
    }
    let mut found = Vec::new();
    let mut rewards = Vec::new();
    for (path, kinds) in &files {
        let times = |kind: Kind| kinds.get(&kind).copied().unwrap_or(0);
        if times(Kind::Missed) > 0 {
            found.push("files were changed faster than the changes could be recorded".to_owned());
        }
        if times(Kind::Removed) > 0 {
            found.push(format!("{path} was removed or moved away"));
        }
        let writes = [Kind::Created, Kind::Written, Kind::WrittenByAnyName].map(times);
        let writes = writes.into_iter().max().unwrap_or(0).saturating_add(times(Kind::Replaced));
        if REWARDS.contains(path) {
            if times(Kind::Linked) > 0 {
                found.push(format!("{path} has a second hard link"));
            }
            rewards.extend((writes > 0).then_some((*path, writes)));
        } else if times(Kind::Replaced) > 0 {
            found.push(format!("{path} was replaced"));
        } else if writes > 0 {
            found.push(format!("{path} was written"));
        }
    }
    let writes = rewards.iter().fold(0_u32, |sum, (_, writes)| sum.saturating_add(*writes));
    if writes > 1 {
        let names = listed(rewards.iter().map(|(path, _)| *path));
        found.push(format!("{names} was written {writes} times, but the tests write it only once"));
    }
    found
}

/// A note about files that were added to the tests. Tests add files too, so this is no evidence.
fn additions(changes: &[FileChange]) -> Option<String> {
    let added = changes.iter().filter(|change| change.kind == Kind::Added);
    let mut names: Vec<&str> = added.map(|change| change.path.as_str()).collect();
    if names.len() > MAX_ADDED {
        names.truncate(MAX_ADDED);
        names.push("others");
    }
    (!names.is_empty()).then(|| {
        format!(
            "while processes of the agent were running, the tests or these processes added files to {TESTS_DIR}: {}",
            listed(names)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TXT: &str = REWARDS[0];
    const JSON: &str = REWARDS[1];
    const TEST: &str = "/tests/test.sh";

    fn found(changes: &[(&str, Kind, u32)]) -> Vec<String> {
        let changes: Vec<_> = changes
            .iter()
            .map(|(path, kind, count)| FileChange { path: (*path).to_owned(), kind: *kind, count: *count })
            .collect();
        evidence(&changes)
    }

    #[test]
    fn a_reward_that_was_written_once_is_not_evidence() {
        for changes in [
            &[][..],
            &[(TXT, Kind::Created, 1), (TXT, Kind::Written, 1)],
            &[(TXT, Kind::Created, 1), (TXT, Kind::Written, 1), (TXT, Kind::WrittenByAnyName, 1)],
            &[(JSON, Kind::Replaced, 1)],
        ] {
            assert_eq!(found(changes), Vec::<String>::new(), "{changes:?}");
        }
    }

    #[test]
    fn a_reward_of_unknown_origin_is_evidence() {
        for changes in [
            // The file was written again,
            &[(TXT, Kind::Created, 1), (TXT, Kind::Written, 2)][..],
            // by another name,
            &[(TXT, Kind::Created, 1), (TXT, Kind::Written, 1), (TXT, Kind::WrittenByAnyName, 2)],
            &[(TXT, Kind::Created, 1), (TXT, Kind::Written, 1), (TXT, Kind::Linked, 1)],
            // replaced,
            &[(TXT, Kind::Created, 1), (TXT, Kind::Written, 1), (TXT, Kind::Replaced, 1)],
            // made as a link to nowhere, so that the tests wrote nothing, and replaced,
            &[(TXT, Kind::Created, 1), (TXT, Kind::Replaced, 1)],
            &[(TXT, Kind::Created, 1), (TXT, Kind::Removed, 1)],
            // written where the tests write the other one,
            &[(TXT, Kind::Created, 1), (JSON, Kind::Created, 1)],
            // put into another directory,
            &[("/logs/verifier", Kind::Removed, 1)],
            &[("/logs", Kind::Replaced, 1)],
            // or hidden in a flood.
            &[("/", Kind::Missed, 1)],
        ] {
            assert_eq!(found(changes).len(), 1, "{changes:?}: {:#?}", found(changes));
        }
    }

    #[test]
    fn each_changed_test_is_listed() {
        let changes = [
            (TEST, Kind::Written, 3),
            ("/tests/a", Kind::Replaced, 1),
            ("/tests/b", Kind::Removed, 1),
            (TXT, Kind::Created, 1),
            (TXT, Kind::Written, 2),
        ];
        insta::assert_snapshot!(found(&changes).join("\n"), @"
        /tests/a was replaced
        /tests/b was removed or moved away
        /tests/test.sh was written
        /logs/verifier/reward.txt was written 2 times, but the tests write it only once
        ");
    }

    #[test]
    fn added_files_are_noted_and_no_evidence() {
        let change = |number| FileChange { path: format!("/tests/{number}"), kind: Kind::Added, count: 1 };
        let changes: Vec<_> = (0..=MAX_ADDED).map(change).collect();
        assert_eq!((evidence(&changes), additions(&[])), (Vec::new(), None));
        let note = additions(&changes).unwrap();
        assert!(note.contains("/tests/0, /tests/1,") && note.ends_with("/tests/8, others"), "{note}");
    }
}
