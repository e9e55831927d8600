//! Failed and unsolved trials in the summary of a job.

use std::{sync::Arc, time::Duration};

use rollout::{
    event::{Event, JobKind},
    name::TrialIndex,
    result::{ErrorType, JobResult, Totals, TrialResult},
};

use super::{result, trial};
use crate::report::{board::Board, summary::summary};

/// The reward or the error of a rollout, and its line of evidence.
type End<'a> = (Result<f64, (ErrorType, &'a str)>, Option<&'a str>);

/// A job of rollouts that ended like this.
fn job(kind: JobKind, ends: &[End<'_>]) -> (Board, JobResult) {
    let mut board = Board { kind, directory: "jobs/my-eval".into(), ..Board::default() };
    let mut totals = Totals::default();
    for (number, (outcome, evidence)) in ends.iter().enumerate() {
        let id = trial("model", &format!("q{number}"), 1);
        let ended: TrialResult = result(&id, *outcome);
        totals.add((&ended).into());
        let event = Event::TrialFinished {
            index: TrialIndex(number as u64),
            result: Arc::new(ended),
            evidence: evidence.map(str::to_owned),
        };
        board.apply(&event, Duration::ZERO);
    }
    let at = "2026-01-15T10:30:00Z".parse().unwrap();
    let result = JobResult {
        job_name: "my-eval".into(),
        cancelled: false,
        stopped: None,
        totals,
        total_duration_sec: 5.0,
        started_at: at,
        ended_at: at,
        agents: Default::default(),
        groups: Vec::new(),
        statistics: Default::default(),
    };
    (board, result)
}

/// The part of the summary that names trials.
fn named((board, result): &(Board, JobResult), width: usize) -> String {
    let text = anstream::adapter::strip_str(&summary(result, board, width)).to_string();
    let wide: Vec<&str> =
        text.lines().filter(|line| line.chars().count() > width && !line.contains("rollout ")).collect();
    assert!(wide.is_empty(), "{wide:?}");
    let start = ["\nfailed\n", "\nunsolved\n"].iter().filter_map(|title| text.find(title)).min();
    text[start.expect("trials are named")..].trim().to_owned()
}

#[test]
fn unsolved_rollouts_are_named_with_what_they_ended_with() {
    let said = "assistant: …so in the end it is the same as before, and the answer is 7. (expected: 8)";
    let job = job(
        JobKind::Job,
        &[
            (Ok(1.0), None),
            (Ok(0.0), Some(said)),
            (Ok(0.0), Some("no answer, ended by max_turns_reached")),
            (Ok(0.0), Some("no answer, ended by max_turns_reached")),
            (Err((ErrorType::ModelFailed, "ModelError: the server answered 500")), None),
        ],
    );
    insta::assert_snapshot!(named(&job, 199), @"
    failed
      1 trial: model_failed: ModelError: the server answered 500
        rollout show jobs/my-eval/model/quickstart/q4__1

    unsolved
      2 trials: no answer, ended by max_turns_reached
        rollout show jobs/my-eval/model/quickstart/q2__1
      1 trial: assistant: …so in the end it is the same as before, and the answer is 7. (expected: 8)
        rollout show jobs/my-eval/model/quickstart/q1__1

    5 trials in 5.0s: 4 completed, 1 failed
    results  jobs/my-eval/result.json
    rerun    rollout resume jobs/my-eval --rerun error
    ");
    insta::assert_snapshot!(named(&job, 79), @"
    failed
      1 trial: model_failed: ModelError: the server answered 500
        rollout show jobs/my-eval/model/quickstart/q4__1

    unsolved
      2 trials: no answer, ended by max_turns_reached
        rollout show jobs/my-eval/model/quickstart/q2__1
      1 trial: assistant: …so in the end it is the same as before, and the answer
        is 7. (expected: 8)
        rollout show jobs/my-eval/model/quickstart/q1__1

    5 trials in 5.0s: 4 completed, 1 failed
    results  jobs/my-eval/result.json
    rerun    rollout resume jobs/my-eval --rerun error
    ");
    insta::assert_snapshot!(named(&job, 59), @"
    failed
      1 trial: model_failed: ModelError: the server answered
        500
        rollout show jobs/my-eval/model/quickstart/q4__1

    unsolved
      2 trials: no answer, ended by max_turns_reached
        rollout show jobs/my-eval/model/quickstart/q2__1
      1 trial: assistant: …so in the end it is the same as
        before, and the answer is 7. (expected: 8)
        rollout show jobs/my-eval/model/quickstart/q1__1

    5 trials in 5.0s: 4 completed, 1 failed
    results  jobs/my-eval/result.json
    rerun    rollout resume jobs/my-eval --rerun error
    ");
}

#[test]
fn unsolved_questions_are_named_up_to_a_limit() {
    let wrong = |count: usize| {
        let evidence: Vec<String> =
            (0..count).map(|number| format!("answered: {number} (expected: 1{number})")).collect();
        let ends: Vec<_> = evidence.iter().map(|text| (Ok(0.0), Some(text.as_str()))).collect();
        named(&job(JobKind::Benchmark, &ends), 79)
    };
    insta::assert_snapshot!(wrong(5), @"
    unsolved
      1 question: answered: 0 (expected: 10)
        rollout show jobs/my-eval/model/quickstart/q0__1
      1 question: answered: 1 (expected: 11)
        rollout show jobs/my-eval/model/quickstart/q1__1
      1 question: answered: 2 (expected: 12)
        rollout show jobs/my-eval/model/quickstart/q2__1
      1 question: answered: 3 (expected: 13)
        rollout show jobs/my-eval/model/quickstart/q3__1
      1 question: answered: 4 (expected: 14)
        rollout show jobs/my-eval/model/quickstart/q4__1

    5 questions in 5.0s: 5 completed, 0 failed
    ");
    insta::assert_snapshot!(wrong(7), @"
    unsolved
      1 question: answered: 0 (expected: 10)
        rollout show jobs/my-eval/model/quickstart/q0__1
      1 question: answered: 1 (expected: 11)
        rollout show jobs/my-eval/model/quickstart/q1__1
      1 question: answered: 2 (expected: 12)
        rollout show jobs/my-eval/model/quickstart/q2__1
      1 question: answered: 3 (expected: 13)
        rollout show jobs/my-eval/model/quickstart/q3__1
      3 questions with other causes
        rollout list jobs/my-eval --status unsolved

    7 questions in 5.0s: 7 completed, 0 failed
    ");
}

#[test]
fn a_scored_rollout_with_an_error_is_named_with_its_error() {
    let (mut board, totals) = job(JobKind::Job, &[]);
    let mut ended = result(&trial("model", "q", 1), Ok(0.0));
    let error = rollout::result::TrialError {
        kind: ErrorType::AgentExecutionFailed,
        message: "ToolCallError: no such tool".to_owned(),
    };
    ended.error = Some(error);
    let event = Event::TrialFinished { index: TrialIndex(0), result: Arc::new(ended), evidence: None };
    board.apply(&event, Duration::ZERO);
    insta::assert_snapshot!(named(&(board, totals), 199), @"
    unsolved
      1 trial: agent_execution_failed: ToolCallError: no such tool
        rollout show jobs/my-eval/model/quickstart/q__1

    0 trials in 5.0s: 0 completed, 0 failed
    results  jobs/my-eval/result.json
    ");
}
