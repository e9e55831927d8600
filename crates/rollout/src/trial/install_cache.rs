//! Installs of an agent that are shared between trials: under which key, and whose turn it is.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::{Mutex, PoisonError},
};

use sha2::{Digest, Sha256};
use tokio_util::sync::{CancellationToken, DropGuard};

use rollout_env::PreparedImage;

/// What becomes of an agent's install in a try.
#[derive(Debug)]
pub(super) enum InstallPlan {
    /// It belongs to this try alone.
    Own,
    /// It is kept under this key for other trials, which may be waiting for it.
    Share {
        /// See [`key`].
        key: String,
    },
    /// It was kept under this key, and is in the environment already.
    Restore {
        /// See [`key`].
        key: String,
        /// The image that holds it.
        snapshot: PreparedImage,
    },
}

/// The installs of a job's trials: one trial of each kind goes first, and the others wait for it.
#[derive(Debug, Default)]
pub struct Installs {
    first: Mutex<HashMap<String, CancellationToken>>,
    /// The versions of agents that are installed in the latest version, so that all trials have the same.
    versions: Mutex<BTreeMap<String, String>>,
    /// Distinguishes the run from others of this machine.
    run: String,
}

/// The first trial's time: the others go on when it is dropped, whatever came of it.
pub(super) type Turn = DropGuard;

impl Installs {
    /// The installs of a run, in which agents have these versions.
    pub(crate) fn new(versions: BTreeMap<String, String>) -> Self {
        Self {
            versions: Mutex::new(versions),
            run: format!("{} {}", std::process::id(), jiff::Timestamp::now()),
            ..Self::default()
        }
    }

    /// The version of an agent in this run, if it is known.
    pub(super) fn version(&self, agent: &str) -> Option<String> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner).get(agent).cloned()
    }

    /// Notes the version of an agent, and returns the one that all trials of the run install.
    pub(super) fn set_version(&self, agent: &str, version: String) -> String {
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        versions.entry(agent.to_owned()).or_insert(version).clone()
    }

    /// Distinguishes the run from others of this machine.
    pub(super) fn run(&self) -> &str {
        &self.run
    }

    /// Returns the turn to the first caller. All others get none, and wait until the turn is over.
    pub(super) async fn turn(&self, key: &str) -> Option<Turn> {
        let over = {
            let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
            match first.entry(key.to_owned()) {
                Entry::Vacant(place) => {
                    return Some(place.insert(CancellationToken::new()).clone().drop_guard());
                }
                Entry::Occupied(taken) => taken.get().clone(),
            }
        };
        over.cancelled().await;
        None
    }
}

/// Names what an install makes: the image below it, the script, and which variables it can see.
pub(super) fn key<'a>(image: &str, script: &str, variables: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = variables.collect();
    names.sort_unstable();
    let mut hash = Sha256::new();
    for field in ["agent install 1", image, script].into_iter().chain(names) {
        hash.update((field.len() as u64).to_le_bytes());
        hash.update(field);
    }
    rollout_core::text::hex(&hash.finalize())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn the_first_has_the_turn_and_all_others_go_on_together_when_it_is_over() {
        let installs = Arc::new(Installs::default());
        let turn = installs.turn("key").await;
        assert!(turn.is_some());
        assert!(installs.turn("another").await.is_some());
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let installs = Arc::clone(&installs);
                tokio::spawn(async move { installs.turn("key").await.is_none() })
            })
            .collect();
        tokio::task::yield_now().await;
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
        drop(turn);
        for waiting in waiting {
            assert!(waiting.await.unwrap());
        }
        assert!(matches!(installs.turn("key").now_or_never(), Some(None)), "a later caller need not wait");
    }

    #[test]
    fn a_key_depends_on_everything_but_the_order_of_the_variables() {
        let of = |image, script, names: &[&str]| key(image, script, names.iter().copied());
        let same = of("image", "script", &["A", "B"]);
        assert_eq!(same, of("image", "script", &["B", "A"]));
        for other in [
            of("other", "script", &["A", "B"]),
            of("image", "other", &["A", "B"]),
            of("image", "script", &["A"]),
            of("image", "script", &["AB"]),
            of("images", "cript", &["A", "B"]),
        ] {
            assert_ne!(same, other);
        }
    }
}
