//! JUnit XML for CI systems, with a suite per agent and dataset, and a case per trial.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use rollout::{
    event::Event,
    name::{TrialId, TrialIndex},
    result::{Standing, TrialResult},
    xml::escape,
};

use super::{
    board::trial_of,
    text::{first_line, number},
};

/// Collects the data of the report.
#[derive(Debug, Default)]
pub(crate) struct Junit {
    job: String,
    cases: BTreeMap<TrialIndex, Case>,
}

#[derive(Debug)]
struct Case {
    trial: TrialId,
    seconds: f64,
    outcome: Outcome,
}

#[derive(Debug)]
enum Outcome {
    Passed,
    /// The reward is below the threshold.
    Unsolved(f64),
    /// An error prevented a reward.
    Error {
        kind: &'static str,
        message: String,
    },
    /// Started but not finished.
    Skipped,
}

impl Junit {
    /// Adds an event.
    pub(crate) fn apply(&mut self, event: &Event) {
        match event {
            Event::JobStarted { job, .. } => self.job.clone_from(job),
            Event::TrialStarted { index, trial } => {
                let case = Case { trial: trial.clone(), seconds: 0.0, outcome: Outcome::Skipped };
                self.cases.insert(*index, case);
            }
            Event::TrialFinished { index, result, .. } => {
                self.cases.insert(*index, case(result));
            }
            _ => {}
        }
    }

    /// Writes the report.
    pub(crate) fn write(&self, mut out: impl Write) -> io::Result<()> {
        let mut suites: Vec<(String, Vec<&Case>)> = Vec::new();
        for case in self.cases.values() {
            let name = format!("{}/{}", case.trial.agent, case.trial.dataset);
            match suites.iter_mut().find(|(suite, _)| *suite == name) {
                Some((_, cases)) => cases.push(case),
                None => suites.push((name, vec![case])),
            }
        }
        let all: Vec<&Case> = self.cases.values().collect();
        writeln!(out, r#"<?xml version="1.0" encoding="UTF-8"?>"#)?;
        writeln!(out, r#"<testsuites name="{}" {}>"#, escape(&self.job), counts(&all))?;
        for (name, cases) in &suites {
            writeln!(out, r#"  <testsuite name="{}" {}>"#, escape(name), counts(cases))?;
            for case in cases {
                write_case(&mut out, name, case)?;
            }
            writeln!(out, "  </testsuite>")?;
        }
        writeln!(out, "</testsuites>")?;
        out.flush()
    }
}

fn case(result: &TrialResult) -> Case {
    let outcome = match (result.standing(), &result.error, result.reward) {
        (Standing::Failed, Some(error), _) => {
            Outcome::Error { kind: error.kind.as_str(), message: error.message.clone() }
        }
        (_, _, Some(reward)) if result.is_solved() == Some(false) => Outcome::Unsolved(reward),
        _ => Outcome::Passed,
    };
    Case { trial: trial_of(result), seconds: result.durations.total_sec, outcome }
}

fn counts(cases: &[&Case]) -> String {
    let count = |wanted: fn(&Outcome) -> bool| cases.iter().filter(|case| wanted(&case.outcome)).count();
    format!(
        r#"tests="{}" failures="{}" errors="{}" skipped="{}" time="{:.3}""#,
        cases.len(),
        count(|outcome| matches!(outcome, Outcome::Unsolved(_))),
        count(|outcome| matches!(outcome, Outcome::Error { .. })),
        count(|outcome| matches!(outcome, Outcome::Skipped)),
        cases.iter().map(|case| case.seconds).sum::<f64>(),
    )
}

fn write_case(out: &mut impl Write, suite: &str, case: &Case) -> io::Result<()> {
    let name = escape(&format!("{}__{}", case.trial.task, case.trial.attempt));
    write!(out, r#"    <testcase classname="{}" name="{name}" time="{:.3}""#, escape(suite), case.seconds)?;
    match &case.outcome {
        Outcome::Passed => writeln!(out, "/>"),
        Outcome::Unsolved(reward) => {
            let reward = number(*reward);
            writeln!(out, ">\n      <failure type=\"reward\" message=\"reward {reward}\"/>\n    </testcase>")
        }
        Outcome::Error { kind, message } => writeln!(
            out,
            ">\n      <error type=\"{kind}\" message=\"{}\">{}</error>\n    </testcase>",
            escape(&first_line(message)),
            escape(message),
        ),
        Outcome::Skipped => writeln!(out, ">\n      <skipped/>\n    </testcase>"),
    }
}
