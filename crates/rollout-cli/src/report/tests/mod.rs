//! Replays events through the reporter and checks its output.

mod causes;
mod live;

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use rollout::{
    config::JobMetric,
    event::{Event, JobKind, Phase},
    name::{AgentName, DatasetName, TaskName, TrialId, TrialIndex},
    result::{
        CallTotals, Durations, EnvironmentRecord, ErrorType, JobResult, Standing, Timestamps, Totals,
        TrialError, TrialResult, TrialSummary,
    },
    stats::{
        Statistics,
        report::{self as stats, Report},
    },
};

use super::{Form, Junit, Reporter, Screen, board::Board, line::Detail, line::line};

fn trial(agent: &str, task: &str, attempt: u32) -> TrialId {
    TrialId {
        agent: AgentName::new(agent).unwrap(),
        dataset: DatasetName::new("quickstart").unwrap(),
        task: TaskName::new(task).unwrap(),
        attempt,
    }
}

fn result(trial: &TrialId, outcome: Result<f64, (ErrorType, &str)>) -> TrialResult {
    let moment = "2026-01-15T10:30:00Z".parse().unwrap();
    TrialResult {
        task_name: trial.task.clone(),
        dataset_name: trial.dataset.clone(),
        agent_name: trial.agent.clone(),
        attempt: trial.attempt,
        task_git_commit_id: None,
        reward: outcome.ok(),
        pass_threshold: 1.0,
        rewards: Default::default(),
        steps: Vec::new(),
        cost: 0.0,
        environment_cost: 0.0,
        model_cost: None,
        usage: None,
        reported_usage: None,
        model_calls: None,
        error: outcome.err().map(|(kind, message)| TrialError { kind, message: message.to_owned() }),
        durations: Durations { total_sec: 2.1, ..Durations::default() },
        timestamps: Timestamps::empty(moment),
        environment: None,
        tries: 1,
        agent_starts: 1,
        regraded: None,
        survivors: Vec::new(),
        tampering: Vec::new(),
        notes: Vec::new(),
        incomplete_logs: false,
        leaves_out_step: false,
    }
}

fn finished(index: u64, result: TrialResult) -> Event {
    Event::TrialFinished { index: TrialIndex(index), result: Arc::new(result), evidence: None }
}

fn totals(completed: u64, passed: u64, failed: u64, skipped: u64) -> Totals {
    Totals {
        total_trials: completed + failed + skipped,
        completed_trials: completed,
        failed_trials: failed,
        skipped_trials: skipped,
        rewarded_trials: completed,
        passed_trials: passed,
        solved_trials: passed,
        restarted_trials: 0,
        incomplete_log_trials: 0,
        reward_sum: passed as f64,
        reward_min: (completed > 0).then_some(0.0),
        reward_max: (completed > 0).then_some(1.0),
        total_cost: 120.0342 * completed as f64,
        environment_cost: 0.0,
        model_cost: (completed > 0).then_some(120.0342 * completed as f64),
        known_cost_trials: completed,
        trial_seconds: 2.1 * (completed + failed) as f64,
        errors: (failed > 0).then_some((ErrorType::AgentExecutionFailed, failed)).into_iter().collect(),
        model_calls: CallTotals::default(),
    }
}

/// The oracle attempts one task once. The other agent attempts the first task twice, and fails the second task once.
fn statistics() -> Statistics {
    let task = |name: &'static str| stats::ReportTask {
        dataset: "quickstart".into(),
        name: name.into(),
        category: None,
        difficulty: None,
    };
    let trial = |agent, task, reward: Option<f64>, model_cost| {
        let standing = if reward.is_some() { Standing::Completed } else { Standing::Failed };
        let outcome = TrialSummary { standing, reward, model_cost, seconds: 2.1, ..TrialSummary::SKIPPED };
        stats::ReportTrial { agent, task, outcome }
    };
    let trials = [
        trial(0, 0, Some(1.0), None),
        trial(1, 0, Some(0.0), Some(0.0342)),
        trial(1, 0, Some(1.0), Some(0.5)),
        trial(1, 1, None, None),
    ];
    Report::new(vec!["oracle".into(), "shell".into()], vec![task("hello"), task("sort")], trials).statistics()
}

/// A job of two agents with every kind of event.
fn a_job() -> Vec<Event> {
    let oracle = trial("oracle", "hello", 1);
    let shell = trial("shell", "hello", 1);
    let failing = trial("shell", "sort", 1);
    let cut = trial("shell", "sort", 2);
    let mut kept = result(&shell, Ok(0.0));
    kept.environment = Some(EnvironmentRecord {
        provider: "native".into(),
        id: "ab12".into(),
        image: "host".into(),
        agent_snapshot: None,
        network: "host".into(),
        enforced: serde_json::json!({}),
        preserved: Some("/state/ab12".into()),
        preserved_services: Default::default(),
    });
    let started =
        |index, trial: &TrialId| Event::TrialStarted { index: TrialIndex(index), trial: trial.clone() };
    let (name, dataset) =
        (|text: &str| AgentName::new(text).unwrap(), DatasetName::new("quickstart").unwrap());
    let groups = vec![
        (name("oracle"), dataset.clone(), totals(1, 1, 0, 0)),
        (name("shell"), dataset, totals(1, 0, 1, 2)),
    ];
    vec![
        Event::JobStarted {
            job: "my-eval".into(),
            kind: JobKind::Job,
            directory: PathBuf::from("jobs/my-eval"),
            provider: "native".into(),
            total_trials: 5,
            resumed_trials: 0,
            concurrency: 2,
            metrics: vec![JobMetric::Mean, JobMetric::Max],
            earlier: Default::default(),
        },
        Event::Warning { message: "memory limits are not enforced here".into() },
        started(0, &oracle),
        started(1, &shell),
        Event::PhaseStarted { index: TrialIndex(0), phase: Phase::Verify },
        finished(0, result(&oracle, Ok(1.0))),
        started(2, &failing),
        Event::TrialRetried {
            index: TrialIndex(2),
            failed_try: 1,
            error: TrialError {
                kind: ErrorType::EnvironmentStartFailed,
                message: "no space left\non device".into(),
            },
            delay_ms: 1000,
        },
        finished(1, kept),
        finished(
            2,
            result(
                &failing,
                Err((ErrorType::AgentExecutionFailed, "exit code 3 & \u{1b}[31m<oops>\nlast lines:\n  x")),
            ),
        ),
        started(3, &cut),
        Event::PhaseStarted { index: TrialIndex(3), phase: Phase::Execute },
        Event::Cancelling,
        Event::TrialSkipped { index: TrialIndex(3) },
        Event::JobFinished {
            result: Arc::new(JobResult {
                job_name: "my-eval".into(),
                cancelled: true,
                stopped: None,
                totals: totals(2, 1, 1, 2),
                total_duration_sec: 61.4,
                started_at: "2026-01-15T10:30:00Z".parse().unwrap(),
                ended_at: "2026-01-15T10:31:01Z".parse().unwrap(),
                agents: groups.iter().map(|(agent, _, totals)| (agent.clone(), totals.clone())).collect(),
                groups,
                statistics: statistics(),
            }),
        },
    ]
}

/// A writer that the test can read afterwards.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl io::Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Paper {
    fn text(&self) -> String {
        anstream::adapter::strip_str(std::str::from_utf8(&self.0.lock().unwrap()).unwrap()).to_string()
    }
}

fn replay(screen: fn(Box<Paper>) -> Screen, events: &[Event]) -> (String, Junit) {
    let paper = Paper::default();
    let mut reporter = Reporter::on(screen(Box::new(paper.clone())), Some(Junit::default()));
    for event in events {
        reporter.show(event, Duration::ZERO).unwrap();
    }
    (paper.text(), reporter.junit.unwrap())
}

#[test]
fn a_live_display_needs_a_capable_terminal_outside_ci() {
    let form = |terminal, variables: &[(&str, &str)]| {
        Form::choose(terminal, |name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    };
    assert_eq!(form(true, &[("TERM", "xterm")]), Form::Live);
    assert_eq!(form(true, &[("TERM", "xterm"), ("CI", "false")]), Form::Live);
    assert_eq!(form(false, &[("TERM", "xterm")]), Form::Plain);
    assert_eq!(form(true, &[("TERM", "dumb")]), Form::Plain);
    assert_eq!(form(true, &[]), Form::Plain);
    assert_eq!(form(true, &[("TERM", "xterm"), ("CI", "true")]), Form::Plain);
}

#[test]
fn a_pipe_gets_a_line_for_every_event_and_a_summary() {
    let (text, _) = replay(|paper| Screen::Plain(paper), &a_job());
    insta::assert_snapshot!(text, @"
    my-eval: 5 trials, 2 at a time, on native
    results in jobs/my-eval
    warning: memory limits are not enforced here
    [1/5] ✓ oracle/quickstart/hello__1  reward 1  2.1s
    ↻ shell/quickstart/sort__1  try 1 failed, next in 1.0s: environment_start_failed: no space left — on device
    [2/5] ○ shell/quickstart/hello__1  reward 0  2.1s
    [3/5] ✗ shell/quickstart/sort__1  agent_execution_failed: exit code 3 & <oops> — x  2.1s
    stopping: cleaning up running trials; press Ctrl-C again to stop immediately
    – shell/quickstart/sort__2  skipped

    agent   dataset     trials  completed  failed  excluded  solved  pass rate  mean reward      cost  time
    oracle  quickstart       1          1       0         0       1     100.0%            1   $120.03  2.1s
    shell   quickstart       4          1       1         0       0       0.0%            0  ≥$120.03  4.2s
    all                      5          2       1         0       1      33.3%        0.333  ≥$240.07  6.3s

    agent   dataset     pass rate, 95%  mean reward ± se  time p50  time p90  cost p50  cost p90
    oracle  quickstart     20.7–100.0%                 —      2.1s      2.1s         —         —
    shell   quickstart       6.1–79.2%     0.333 ± 0.222      2.1s      2.1s     $0.27     $0.45

    metrics  mean  max
    oracle      1    1
    shell       0    1

    failed
      1 trial: agent_execution_failed: exit code 3 & <oops> — x
        rollout show jobs/my-eval/shell/quickstart/sort__1

    unsolved
      1 trial: the tests printed nothing
        rollout show jobs/my-eval/shell/quickstart/hello__1

    cancelled. 5 trials in 1m 01s: 2 completed, 1 failed, 2 skipped
    results   jobs/my-eval/result.json
    inspect   rollout attach jobs/my-eval/shell/quickstart/hello__1
    continue  rollout resume jobs/my-eval
    ");
}

#[test]
fn a_pipe_gets_the_metrics_at_intervals() {
    let paper = Paper::default();
    let mut reporter = Reporter::on(Screen::Plain(Box::new(paper.clone())), None);
    reporter.show(&a_job()[0], Duration::ZERO).unwrap();
    for (index, (seconds, reward)) in [(1, 1.0), (40, 0.5), (50, 0.0), (80, 0.25)].into_iter().enumerate() {
        let trial = trial("oracle", &format!("task-{index}"), 1);
        let event = finished(index as u64, result(&trial, Ok(reward)));
        reporter.show(&event, Duration::from_secs(seconds)).unwrap();
    }
    let text = paper.text();
    let metrics: Vec<&str> = text.lines().filter(|line| line.starts_with("metrics")).collect();
    insta::assert_snapshot!(metrics.join("\n"), @"
    metrics after 2 of 5 trials: oracle mean 0.75 max 1
    metrics after 4 of 5 trials: oracle mean 0.438 max 1
    ");
}

#[test]
fn failed_trials_count_and_unknown_figures_are_a_dash() {
    let summary = |kinds: &[ErrorType], unscored: u64, restarted: u64| {
        let mut totals = Totals::default();
        let scored = TrialSummary {
            standing: Standing::Completed,
            reward: Some(1.0),
            is_restarted: restarted > 0,
            ..TrialSummary::SKIPPED
        };
        match unscored {
            0 => totals.add(scored),
            _ => (0..unscored).for_each(|_| totals.add(TrialSummary { reward: None, ..scored })),
        }
        for kind in kinds {
            let failed =
                TrialSummary { standing: Standing::Failed, error: Some(*kind), ..TrialSummary::SKIPPED };
            totals.add(failed);
        }
        let group = (AgentName::new("shell").unwrap(), DatasetName::new("set").unwrap(), totals.clone());
        let result = JobResult {
            job_name: "my-eval".into(),
            cancelled: false,
            stopped: None,
            totals: totals.clone(),
            total_duration_sec: 5.0,
            started_at: "2026-01-15T10:30:00Z".parse().unwrap(),
            ended_at: "2026-01-15T10:30:05Z".parse().unwrap(),
            agents: [(group.0.clone(), totals)].into_iter().collect(),
            groups: vec![group],
            statistics: Default::default(),
        };
        let (text, _) =
            replay(|paper| Screen::Plain(paper), &[Event::JobFinished { result: Arc::new(result) }]);
        text.replace("\n\n", "\n").trim().to_owned()
    };
    let mut kinds = vec![ErrorType::AgentExecutionFailed; 9];
    insta::assert_snapshot!(summary(&kinds, 0, 0), @"
    agent  dataset  trials  completed  failed  excluded  solved  pass rate  mean reward  cost  time
    shell  set          10          1       9         0       1      10.0%          0.1     —  0.0s
    10 trials in 5.0s: 1 completed, 9 failed
    results  result.json
    ");
    kinds.extend([ErrorType::EnvironmentStartFailed, ErrorType::TaskInvalid]);
    insta::assert_snapshot!(summary(&kinds, 0, 1), @"
    agent  dataset  trials  completed  failed  excluded  solved  pass rate  mean reward  cost  time
    shell  set          12          1      11         2       1      10.0%          0.1     —  0.0s
    excluded from the pass rate: 1 infrastructure failure, 1 task failure
    12 trials in 5.0s: 1 completed, 11 failed
    restarted: 1 trial started the agent more than once, because an earlier try failed; see `agent_starts` in result.json
    results  result.json
    ");
    insta::assert_snapshot!(summary(&[], 2, 0), @"
    agent  dataset  trials  completed  failed  excluded  solved  pass rate  mean reward  cost  time
    shell  set           2          2       0         0       —          —            —     —  0.0s
    2 trials in 5.0s: 2 completed, 0 failed
    results  result.json
    ");
}

#[test]
fn a_preserved_container_is_shown_with_its_docker_command() {
    let mut events = a_job();
    for event in &mut events {
        if let Event::TrialFinished { result, .. } = event
            && let Some(environment) = &mut Arc::make_mut(result).environment
        {
            environment.provider = "docker".into();
            environment.preserved = Some("rollout-kept-hello-ab12".into());
        }
    }
    let (text, _) = replay(|paper| Screen::Plain(paper), &events);
    let pointers: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("inspect")).collect();
    insta::assert_snapshot!(pointers.join("\n"), @"
    inspect   rollout attach jobs/my-eval/shell/quickstart/hello__1
              docker exec -it rollout-kept-hello-ab12 bash
    continue  rollout resume jobs/my-eval
    ");
}

#[test]
fn a_program_gets_every_event_as_a_line_of_json() {
    let events = a_job();
    let (text, _) = replay(|paper| Screen::Json(paper), &events);
    let lines: Vec<Event> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(format!("{lines:?}"), format!("{events:?}"));
    insta::assert_snapshot!(text.lines().take(3).collect::<Vec<_>>().join("\n"), @r#"
    {"event":"job_started","job":"my-eval","kind":"job","directory":"jobs/my-eval","provider":"native","total_trials":5,"resumed_trials":0,"concurrency":2,"metrics":["mean","max"],"earlier":{}}
    {"event":"warning","message":"memory limits are not enforced here"}
    {"event":"trial_started","index":0,"trial":{"agent":"oracle","dataset":"quickstart","task":"hello","attempt":1}}
    "#);
}

#[test]
fn a_live_display_prints_only_failures_above_itself() {
    let mut board = Board::default();
    let mut lines = Vec::new();
    for event in a_job() {
        lines.extend(line(&event, &board, Detail::Trouble));
        board.apply(&event, Duration::ZERO);
    }
    insta::assert_snapshot!(anstream::adapter::strip_str(&lines.join("\n")).to_string(), @"
    my-eval: 5 trials, 2 at a time, on native
    results in jobs/my-eval
    warning: memory limits are not enforced here
    ↻ shell/quickstart/sort__1  try 1 failed, next in 1.0s: environment_start_failed: no space left — on device
    [3/5] ✗ shell/quickstart/sort__1  agent_execution_failed: exit code 3 & <oops> — x  2.1s
    stopping: cleaning up running trials; press Ctrl-C again to stop immediately
    ");
}

#[test]
fn nothing_completed_is_a_dash_not_a_zero() {
    let mut events = a_job();
    events.truncate(1);
    let failed = totals(0, 0, 2, 0);
    let group = (AgentName::new("shell").unwrap(), DatasetName::new("quickstart").unwrap(), failed.clone());
    events.push(Event::JobFinished {
        result: Arc::new(JobResult {
            job_name: "my-eval".into(),
            cancelled: false,
            stopped: None,
            totals: failed.clone(),
            total_duration_sec: 5.0,
            started_at: "2026-01-15T10:30:00Z".parse().unwrap(),
            ended_at: "2026-01-15T10:30:05Z".parse().unwrap(),
            agents: [(group.0.clone(), failed)].into_iter().collect(),
            groups: vec![group],
            statistics: Default::default(),
        }),
    });
    let (text, _) = replay(|paper| Screen::Plain(paper), &events);
    insta::assert_snapshot!(text, @"
    my-eval: 5 trials, 2 at a time, on native
    results in jobs/my-eval

    agent  dataset     trials  completed  failed  excluded  solved  pass rate  mean reward  cost  time
    shell  quickstart       2          0       2         0       0       0.0%            0     —  4.2s

    metrics  mean  max
    shell       —    —

    2 trials in 5.0s: 0 completed, 2 failed
    results  jobs/my-eval/result.json
    rerun    rollout resume jobs/my-eval --rerun error
    ");
}

#[test]
fn junit_has_a_suite_per_agent_and_dataset_and_holds_any_message() {
    let (_, junit) = replay(|paper| Screen::Plain(paper), &a_job());
    let mut xml = Vec::new();
    junit.write(&mut xml).unwrap();
    insta::assert_snapshot!(String::from_utf8(xml).unwrap(), @r#"
    <?xml version="1.0" encoding="UTF-8"?>
    <testsuites name="my-eval" tests="4" failures="1" errors="1" skipped="1" time="6.300">
      <testsuite name="oracle/quickstart" tests="1" failures="0" errors="0" skipped="0" time="2.100">
        <testcase classname="oracle/quickstart" name="hello__1" time="2.100"/>
      </testsuite>
      <testsuite name="shell/quickstart" tests="3" failures="1" errors="1" skipped="1" time="4.200">
        <testcase classname="shell/quickstart" name="hello__1" time="2.100">
          <failure type="reward" message="reward 0"/>
        </testcase>
        <testcase classname="shell/quickstart" name="sort__1" time="2.100">
          <error type="agent_execution_failed" message="exit code 3 &amp; &lt;oops&gt;">exit code 3 &amp; �[31m&lt;oops&gt;
    last lines:
      x</error>
        </testcase>
        <testcase classname="shell/quickstart" name="sort__2" time="0.000">
          <skipped/>
        </testcase>
      </testsuite>
    </testsuites>
    "#);
}

#[test]
fn a_closed_output_ends_the_report() {
    struct Gone;
    impl io::Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut reporter = Reporter::on(Screen::Json(Box::new(Gone)), None);
    let error = reporter.show(&Event::Cancelling, Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}
