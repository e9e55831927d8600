//! Determines whether a container was ended from inside or from outside.

use crate::environment::EnvironmentError;

/// The exit code of a first process that was killed.
const KILLED: i64 = 137;

/// The exit codes of a first process that was killed by a signal.
const SIGNALS: std::ops::RangeInclusive<i64> = 129..=192;

/// How a container ended that its owner did not stop, as its engine reports it.
///
/// No process of a container can kill the [guest](super::Guest), but any process can cause the kernel to kill
/// the guest when memory runs out. So a container that ends without an outside cause was ended by its own
/// processes, and the trial must not get a second attempt because of it. All other ends are failures of the
/// infrastructure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerEnd {
    /// The exit code of its first process, or 128 plus the signal that killed it.
    pub exit_code: i64,
    /// Whether the engine reports that its memory ran out.
    pub out_of_memory: bool,
    /// Whether the engine always detects that. With cgroup v2 it may miss the kill of the first process, which
    /// also ends the cgroup. Podman may miss it with every version, because the process that watches the container
    /// ends with it.
    pub memory_is_certain: bool,
    /// The events that the engine reports for the container, in its own words: `kill`, `die`, `oom`. A
    /// restarted engine has lost them.
    pub events: Vec<String>,
}

impl ContainerEnd {
    fn happened(&self, names: &[&str]) -> bool {
        self.events.iter().any(|event| names.contains(&event.as_str()))
    }

    /// Whether the events contain the end itself.
    pub fn has_ended(&self) -> bool {
        self.happened(&["die", "died"])
    }

    /// Whether further events cannot change the [error](Self::into_error). The engine reports a kill from outside before
    /// the end, and may report that the memory ran out after it.
    pub(crate) fn is_explained(&self) -> bool {
        self.has_ended()
            && (self.out_of_memory || self.exit_code != KILLED || self.happened(&["kill", "stop", "oom"]))
    }

    /// The error for this end: [`EnvironmentError::Ended`] if the container was ended from inside.
    pub fn into_error(self) -> EnvironmentError {
        let code = self.exit_code;
        let outside = || {
            EnvironmentError::Lost(format!(
                "the container was stopped from outside, by a person or the engine (exit code {code})"
            ))
        };
        if self.happened(&["kill", "stop"]) || !self.has_ended() {
            return outside();
        }
        if self.out_of_memory || self.happened(&["oom"]) {
            return EnvironmentError::Ended(
                "the container ran out of memory, and the kernel killed its first process: raise \
                 environment.memory in task.toml or environment.override_memory in the job"
                    .to_owned(),
            );
        }
        match code {
            KILLED if self.memory_is_certain => outside(),
            KILLED => EnvironmentError::Ended(
                "the kernel killed the container's first process, most likely because the memory ran out: raise \
                 environment.memory in task.toml or environment.override_memory in the job"
                    .to_owned(),
            ),
            code if SIGNALS.contains(&code) => EnvironmentError::Ended(format!(
                "the container's first process was killed by signal {}",
                code - 128
            )),
            code => EnvironmentError::Lost(format!("the container ended with exit code {code}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_end_from_inside_counts_against_the_trial() {
        let end = |exit_code, out_of_memory, memory_is_certain, events: &[&str]| {
            let events = events.iter().map(|event| (*event).to_owned()).collect();
            ContainerEnd { exit_code, out_of_memory, memory_is_certain, events }
        };
        for (inside, what, end) in [
            (true, "the memory ran out", end(137, true, true, &["oom", "die"])),
            (true, "the engine noticed in time for an event only", end(137, false, true, &["die", "oom"])),
            (true, "it may have missed it", end(137, false, false, &["die"])),
            (true, "podman's words", end(137, true, false, &["died"])),
            (true, "the guest gave up", end(134, false, true, &["die"])),
            (false, "kill -9 on the machine", end(137, false, true, &["die"])),
            (false, "docker kill", end(137, false, true, &["kill", "die"])),
            (
                false,
                "docker kill after an agent ran out of memory",
                end(137, true, true, &["oom", "kill", "die"]),
            ),
            (false, "docker stop", end(143, false, false, &["kill", "die", "stop"])),
            (false, "the engine was started again", end(137, true, false, &[])),
            (false, "the stream broke", end(0, false, true, &["die"])),
            (false, "the engine lost sight of it", end(255, false, true, &["die"])),
        ] {
            let ended = matches!(end.into_error(), EnvironmentError::Ended(_));
            assert_eq!(ended, inside, "{what}");
        }
    }

    #[test]
    fn events_are_awaited_until_they_explain_the_end() {
        let end = |exit_code, out_of_memory, events: &[&str]| {
            let events = events.iter().map(|event| (*event).to_owned()).collect();
            ContainerEnd { exit_code, out_of_memory, memory_is_certain: true, events }
        };
        for (explained, what, end) in [
            (false, "the end is not reported yet", end(137, true, &["start"])),
            (false, "the cause may follow", end(137, false, &["die"])),
            (true, "the state has the cause", end(137, true, &["die"])),
            (true, "the event has the cause", end(137, false, &["died", "oom"])),
            (true, "killed from outside", end(137, false, &["kill", "die"])),
            (true, "it ended by itself", end(0, false, &["die"])),
        ] {
            assert_eq!(end.is_explained(), explained, "{what}");
        }
    }
}
