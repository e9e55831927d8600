//! Stops a job whose trials fail one after another with the same cause.

use std::collections::HashSet;

use rollout_core::result::{EarlyStop, ErrorType, FailureCause, Standing, TrialError, TrialResult};

/// A job stops if this many of the first trials fail with the same cause.
const FIRST_FAILURES: u64 = 5;

/// A job stops if this many trials in a row fail with the same cause.
const FAILURES_IN_A_ROW: u64 = 20;

/// How many characters of a message are compared.
const COMPARED_CHARS: usize = 400;

/// The failures since the last trial with another end.
#[derive(Debug, Default)]
pub(super) struct FailureStreak {
    cause: Option<(ErrorType, String)>,
    failures: u64,
    /// The tasks that failed; more than two are not counted.
    tasks: HashSet<usize>,
    /// Whether a trial of this run ended without this failure.
    is_mixed: bool,
}

impl FailureStreak {
    /// Adds a trial of a task, with the number of all tasks, and the reason if it could not be scored. Returns the
    /// reason if the job has to stop.
    pub(super) fn add(
        &mut self,
        result: &TrialResult,
        unscored: Option<&TrialError>,
        task: usize,
        tasks: usize,
    ) -> Option<EarlyStop> {
        let error = result.error.as_ref().filter(|error| is_infrastructure(result, error));
        let Some(error) = error.or(unscored) else {
            *self = Self { is_mixed: true, ..Self::default() };
            return None;
        };
        let cause = (error.kind, compared(&error.message));
        if self.cause.as_ref() != Some(&cause) {
            let is_mixed = self.is_mixed || self.cause.is_some();
            *self = Self { cause: Some(cause), is_mixed, ..Self::default() };
        }
        self.failures += 1;
        if self.tasks.len() < 2 {
            self.tasks.insert(task);
        }
        let enough = if self.is_mixed { FAILURES_IN_A_ROW } else { FIRST_FAILURES };
        // A failure of one task says nothing about the others. The server of a model is the same for all of them.
        let is_general =
            error.kind == ErrorType::ModelFailed || self.tasks.len() > 1 || tasks == self.tasks.len();
        (self.failures >= enough && is_general)
            .then(|| EarlyStop::Failures { failures: self.failures, error: error.clone() })
    }
}

fn is_infrastructure(result: &TrialResult, error: &TrialError) -> bool {
    result.standing() == Standing::Failed && error.kind.fault() == FailureCause::Infrastructure
}

/// A message without the parts that differ between trials: numbers, names of containers, ports.
fn compared(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let words = line
        .split_whitespace()
        .map(|word| if word.contains(|c: char| c.is_ascii_digit()) { "#" } else { word });
    words.collect::<Vec<_>>().join(" ").chars().take(COMPARED_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use rollout_core::name::{AgentName, DatasetName, TaskName, TrialId};

    use super::*;

    fn result(kind: Option<ErrorType>, message: &str) -> TrialResult {
        let trial = TrialId {
            agent: AgentName::new("a").unwrap(),
            dataset: DatasetName::new("d").unwrap(),
            task: TaskName::new("t").unwrap(),
            attempt: 1,
        };
        let error = kind.map(|kind| TrialError { kind, message: message.to_owned() });
        TrialResult { error, ..TrialResult::empty(&trial, Timestamp::UNIX_EPOCH) }
    }

    /// How many trials end before the job stops, if these are repeated: a task, an error and its message.
    fn ended(
        first: &[Option<ErrorType>],
        then: impl Fn(u64) -> (usize, Option<ErrorType>, String),
    ) -> Option<u64> {
        let mut streak = FailureStreak::default();
        for kind in first {
            assert_eq!(streak.add(&result(*kind, "other"), None, 0, 10), None);
        }
        (1..100).find(|number| {
            let (task, kind, message) = then(*number);
            streak.add(&result(kind, &message), None, task, 10).is_some()
        })
    }

    #[test]
    fn a_job_stops_after_five_failures_at_its_start_or_twenty_in_a_row() {
        use ErrorType::{AgentExecutionFailed, EnvironmentStartFailed, ModelFailed};
        let refused = |_| (0, Some(ModelFailed), "no response: Connection refused".to_owned());
        assert_eq!(ended(&[], refused), Some(5));
        assert_eq!(ended(&[None], refused), Some(20));
        assert_eq!(ended(&[Some(EnvironmentStartFailed)], refused), Some(20));
        let numbered = |number| (0, Some(ModelFailed), format!("request {number} refused"));
        assert_eq!(ended(&[], numbered), Some(5));
        let worded = |number| (0, Some(ModelFailed), ["a", "b"][number as usize % 2].to_owned());
        assert_eq!(ended(&[], worded), None);
        let agents = |_| (0, Some(AgentExecutionFailed), "exit code".to_owned());
        assert_eq!(ended(&[], agents), None);
    }

    #[test]
    fn failures_of_a_single_task_do_not_stop_the_job() {
        let environment =
            |task: usize| (task, Some(ErrorType::EnvironmentBuildFailed), "RUN false".to_owned());
        assert_eq!(ended(&[], |_| environment(3)), None);
        assert_eq!(ended(&[], |number| environment(number as usize)), Some(5));
        let mut alone = FailureStreak::default();
        let (_, kind, message) = environment(0);
        let stopped = (1..10).find(|_| alone.add(&result(kind, &message), None, 0, 1).is_some());
        assert_eq!(stopped, Some(5));
    }
}
