//! The answer to a request: a line for each group as soon as it is scored, and one for all of them.
//!
//! Lines are sent one by one. No new group is started while the client does not read them. If the client disconnects,
//! its rollouts are cancelled.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::body::{Body, Bytes};
use futures_util::stream;
use rollout::{
    job::{Cancel, JobError},
    model::{GenerateError, RolloutOutput, Share, samples::exclusion_cause},
    record::redact::Redactor,
    text::chain,
};
use serde::Serialize;
use serde_json::Value;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    task::JoinSet,
};

use super::{
    problem::ErrorText,
    request::{Asked, Form},
    service::Service,
    source::{GroupOptions, Subject},
};

/// Begins the rollouts of a request. They end when the body is read to its end, or dropped.
pub(super) fn start(service: Arc<Service>, asked: Asked, seat: OwnedSemaphorePermit) -> Body {
    let cancel =
        Cancel { graceful: service.cancel.graceful.child_token(), now: service.cancel.now.child_token() };
    let (sender, lines) = mpsc::channel(1);
    let here = cancel.graceful.clone().drop_guard();
    tokio::spawn(async move {
        drive(service, asked, sender, cancel).await;
        // Not before the last cleanup.
        drop(seat);
    });
    Body::from_stream(stream::unfold((lines, here), |(mut lines, here)| async move {
        let line: Line = lines.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(line.bytes), (lines, here)))
    }))
}

/// A line that the client has not read.
struct Line {
    bytes: Bytes,
    _unread: Option<Unread>,
}

/// Counts a group until it is read.
struct Unread(Arc<AtomicUsize>);

impl Unread {
    fn new(counter: &Arc<AtomicUsize>) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counter))
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn drive(service: Arc<Service>, asked: Asked, lines: mpsc::Sender<Line>, cancel: Cancel) {
    let started = Instant::now();
    let Asked { subjects, options, form, redactor, names_endpoint } = asked;
    let how = Arc::new(How { options, form, redactor, names_endpoint });
    let group = Group { service, how, cancel: cancel.clone() };
    let share = group.service.limiter.share();
    let mut subjects = subjects.into_iter();
    let mut running = JoinSet::new();
    let mut summary = Summary::default();
    let mut failure = None;
    loop {
        // A group has at least one rollout that runs, so these are enough to take every place.
        while running.len() < group.service.offer.concurrency.get() as usize
            && !cancel.graceful.is_cancelled()
            && let Some(subject) = subjects.next()
        {
            running.spawn(group.clone().run(subject, share.clone()));
        }
        let Some(ended) = running.join_next().await else { break };
        match ended {
            Ok(Ok((of_group, cancelled, line))) => {
                summary.add(of_group);
                summary.cancelled |= cancelled;
                let Some(line) = line else { continue };
                // A client that does not read must not hold up the end of the service.
                let stopped = async {
                    cancel.graceful.cancelled().await;
                    tokio::time::sleep(READING_GRACE).await;
                };
                let read = tokio::select! {
                    sent = lines.send(line) => sent.is_ok(),
                    () = stopped => false,
                };
                if !read {
                    cancel.graceful.cancel();
                    summary.cancelled = true;
                }
            }
            Ok(Err(error)) => {
                failure.get_or_insert(group.error_text(&error));
                cancel.graceful.cancel();
            }
            Err(_) => {
                let message = "Rollout itself failed in a group: this is a bug".to_owned();
                failure.get_or_insert(ErrorText { message, hint: None });
                cancel.graceful.cancel();
            }
        }
    }
    summary.cancelled |= subjects.next().is_some();
    let last = match &failure {
        Some(error) => Last::Error { error },
        None => summary.last(started),
    };
    // A client that went away needs no summary.
    let _ = lines.send(Line { bytes: group.redacted(&last), _unread: None }).await;
}

/// How long the end of the service waits for a client to read on.
const READING_GRACE: Duration = Duration::from_secs(10);

/// What the groups of a request have in common.
#[derive(Clone)]
struct Group {
    service: Arc<Service>,
    how: Arc<How>,
    cancel: Cancel,
}

/// How the groups of a request are made, and what is sent of them.
struct How {
    options: GroupOptions,
    form: Form,
    redactor: Redactor,
    names_endpoint: bool,
}

impl Group {
    /// Runs and scores the rollouts of one example or task. There is no line if all of them were cancelled.
    async fn run(self, subject: Subject, share: Share) -> Result<(Tally, bool, Option<Line>), GenerateError> {
        let (outputs, cancelled) = subject.run(&self.how.options, share, self.cancel.clone()).await?;
        let tally = Tally::of(&outputs, self.how.options.includes_errors);
        if outputs.is_empty() {
            return Ok((tally, cancelled, None));
        }
        let bytes = self.redacted(&GroupLine::new(&outputs, self.how.form));
        Ok((tally, cancelled, Some(Line { bytes, _unread: Some(Unread::new(&self.service.unread)) })))
    }

    /// A line without the secrets of the job and the request, which a server may have repeated.
    fn redacted(&self, line: &impl Serialize) -> Bytes {
        let bytes = encoded(line);
        let redactor = &self.how.redactor;
        if !redactor.finds(&bytes) {
            return bytes.into();
        }
        // Only texts are redacted: a secret may also be among the digits of a number, or end in the escape of a quote.
        let value = serde_json::to_value(line).expect("a line is data with text for keys");
        encoded(&redactor.json(value)).into()
    }

    /// An error that ends a request, with what to do about it.
    fn error_text(&self, error: &GenerateError) -> ErrorText {
        match error {
            GenerateError::Job(JobError::Unauthorized { source, .. }) => {
                let hint = match self.how.names_endpoint {
                    true => "send the right `api_key` for this `base_url`",
                    false => "set the right api_key in the job file, and start the service again",
                };
                let message = format!("no rollout can run: {}", chain(source));
                ErrorText { message, hint: Some(hint.to_owned()) }
            }
            other => ErrorText { message: chain(other), hint: other.hint() },
        }
    }
}

fn encoded(line: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(line).expect("a line is data with text for keys");
    bytes.push(b'\n');
    bytes
}

/// The rollouts of one example or task. The lists are in the same order.
#[derive(Serialize)]
struct GroupLine<'a> {
    r#type: &'static str,
    example_id: u64,
    task: &'a str,
    trajectory_ids: Vec<&'a Value>,
    rewards: Vec<f64>,
    advantages: Vec<&'a Value>,
    metrics: Vec<Value>,
    errors: Vec<Option<String>>,
    stop_conditions: Vec<Option<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples: Option<Vec<&'a Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rollouts: Option<&'a [RolloutOutput]>,
}

impl<'a> GroupLine<'a> {
    fn new(outputs: &'a [RolloutOutput], form: Form) -> Self {
        let column = |name: &'static str| {
            outputs.iter().map(move |output| output.columns.get(name).unwrap_or(&Value::Null))
        };
        let error = |output: &RolloutOutput| {
            output.error.as_ref().map(|error| format!("{}: {}", error.error_chain_str, error.message))
        };
        Self {
            r#type: "group",
            example_id: outputs.first().map_or(0, |output| output.example_id),
            task: outputs.first().map_or("", |output| output.task.as_str()),
            trajectory_ids: column("trajectory_id").collect(),
            rewards: outputs.iter().map(|output| output.reward).collect(),
            advantages: column("advantage").collect(),
            metrics: outputs.iter().map(|output| serde_json::json!(output.metrics)).collect(),
            errors: outputs.iter().map(error).collect(),
            stop_conditions: outputs.iter().map(|output| output.stop_condition.as_deref()).collect(),
            samples: (form == Form::Samples)
                .then(|| column("training_samples").filter_map(Value::as_array).flatten().collect()),
            rollouts: (form == Form::Rollouts).then_some(outputs),
        }
    }
}

/// What rollouts come to.
#[derive(Debug, Default)]
struct Tally {
    rollouts: u64,
    errors: u64,
    /// Rollouts that failed or timed out, and are in no baseline and no sample, by cause.
    left_out: BTreeMap<String, u64>,
    reward: f64,
    samples: u64,
    without_tokens: u64,
}

impl Tally {
    fn of(outputs: &[RolloutOutput], includes_errors: bool) -> Self {
        let mut left_out = BTreeMap::new();
        let causes = outputs.iter().filter(|_| !includes_errors).filter_map(exclusion_cause);
        causes.for_each(|cause| *left_out.entry(cause).or_default() += 1);
        let samples = |output: &RolloutOutput| match output.columns.get("training_samples")? {
            Value::Array(samples) => Some(Some(samples.len() as u64)),
            _ => Some(None),
        };
        Self {
            rollouts: outputs.len() as u64,
            errors: outputs.iter().filter(|output| output.error.is_some()).count() as u64,
            left_out,
            reward: outputs.iter().map(|output| output.reward).sum(),
            samples: outputs.iter().filter_map(samples).flatten().sum(),
            without_tokens: outputs.iter().filter(|output| samples(output) == Some(None)).count() as u64,
        }
    }
}

#[derive(Debug, Default)]
struct Summary {
    groups: u64,
    tally: Tally,
    cancelled: bool,
}

/// The last line of an answer.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Last<'a> {
    Summary {
        groups: u64,
        rollouts: u64,
        errors: u64,
        left_out: &'a BTreeMap<String, u64>,
        avg_reward: f64,
        samples: u64,
        rollouts_without_tokens: u64,
        seconds: f64,
        cancelled: bool,
    },
    Error {
        error: &'a ErrorText,
    },
}

impl Summary {
    fn add(&mut self, group: Tally) {
        self.groups += u64::from(group.rollouts > 0);
        self.tally.rollouts += group.rollouts;
        self.tally.errors += group.errors;
        for (cause, number) in group.left_out {
            *self.tally.left_out.entry(cause).or_default() += number;
        }
        self.tally.reward += group.reward;
        self.tally.samples += group.samples;
        self.tally.without_tokens += group.without_tokens;
    }

    fn last(&self, started: Instant) -> Last<'_> {
        let Tally { rollouts, errors, ref left_out, reward, samples, without_tokens } = self.tally;
        Last::Summary {
            groups: self.groups,
            rollouts,
            errors,
            left_out,
            avg_reward: if rollouts == 0 { 0.0 } else { reward / rollouts as f64 },
            samples,
            rollouts_without_tokens: without_tokens,
            seconds: started.elapsed().as_secs_f64(),
            cancelled: self.cancelled,
        }
    }
}
