//! Files of the verifiers library: `results.jsonl` and `metadata.json` for each agent and dataset. Verifiers 0.1.14 can
//! load them and resume from them.
//!
//! Model rollouts keep all columns of their last row. Questions of benchmarks and tasks in containers become rows of
//! the same form. A row always has a reward, so unscored trials have no row.

mod form;

use std::{fs, io, path::PathBuf, sync::Arc};

use indexmap::{IndexMap, IndexSet};
use serde_json::{Map, Value, json};

use super::{Export, ExportError, Exported, NewFile, chat};
use crate::{
    metadata::{Aggregate, GenerateMetadata, Stats},
    rows,
    saved::{Conversation, SavedError, SavedJob, SavedTrial},
    tasks::TaskRecord,
};
use rollout_core::{
    message::Message,
    result::{TrialError, TrialResult},
    row::{OutputError, OutputUsage, RolloutOutput, Timing},
};

/// Writes the files. An agent on a dataset has no files if none of its trials has a row.
pub fn write(export: &Export<'_>) -> Result<Exported, ExportError> {
    let job = export.job;
    let examples = export.examples();
    let mut made = Exported::default();
    let mut open: Option<Section> = None;
    let mut unscored: IndexMap<(String, String), u64> = IndexMap::new();
    // Trials are sorted by agent and dataset.
    for trial in export.trials()? {
        let trial = trial?;
        // The library would count it as 0. A failed trial is 0 there, and has its error.
        if trial.result.reward.is_none() && trial.result.error.is_none() {
            *unscored.entry((trial.id.agent.to_string(), trial.id.dataset.to_string())).or_default() += 1;
            continue;
        }
        if let Some(section) = open.take_if(|section| !section.is_of(&trial)) {
            made.files.extend(section.finish()?);
        }
        let section = match &mut open {
            Some(section) => section,
            None => open.insert(Section::new(export, &trial)?),
        };
        let about = job.about(trial.task)?;
        let row = row(&trial, examples[trial.task], job.conversation(&trial)?, about.as_ref());
        section.add(&trial, &row)?;
        made.rows += 1;
    }
    if let Some(last) = open {
        made.files.extend(last.finish()?);
    }
    for ((agent, dataset), trials) in unscored {
        made.left_out.push(format!("unscored trials of {agent} on {dataset} ({trials})"));
    }
    if made.files.is_empty() {
        return Err(export.nothing("no scores, only ", &made.left_out));
    }
    Ok(made)
}

/// Returns the row of a trial.
fn row(
    trial: &SavedTrial,
    example_id: u64,
    said: Option<Conversation>,
    about: Option<&TaskRecord>,
) -> RolloutOutput {
    let mut said = said;
    if let Some(mut row) = said.as_mut().and_then(|said| said.row.take()) {
        // Readers recognize a benchmark line by this column, and `task` has the same value.
        if row.columns.contains_key("predicted_answer") {
            row.columns.remove("task_id");
        }
        let said = said.unwrap_or_default();
        let kept = |messages: rollout_core::message::Messages| (!messages.is_empty()).then_some(messages);
        return RolloutOutput {
            attempt: Some(trial.id.attempt),
            prompt: kept(said.prompt),
            completion: kept(said.completion),
            ..*row
        };
    }
    let result = &trial.result;
    let instruction = || about.map(|about| vec![Arc::new(Message::user(about.instruction.as_str()))]);
    let millis = |seconds: Option<f64>| seconds.unwrap_or_default() * 1e3;
    let is_script = said.is_none();
    let said = said.unwrap_or_default();
    RolloutOutput {
        example_id,
        attempt: Some(trial.id.attempt),
        task: trial.id.task.to_string(),
        prompt: if is_script { instruction() } else { Some(said.prompt) },
        completion: Some(said.completion),
        reward: result.reward.unwrap_or_default(),
        error: result.error.as_ref().map(error),
        timing: Timing {
            start_time: result.timestamps.started_at.as_microsecond() as f64 / 1e6,
            generation_ms: millis(result.durations.agent_execution_sec),
            scoring_ms: millis(result.durations.verifier_sec),
            total_ms: millis(Some(result.durations.total_sec)),
        },
        is_completed: said.stop_condition.is_some() || (is_script && result.error.is_none()),
        is_truncated: said.is_truncated,
        stop_condition: said.stop_condition,
        metrics: result.rewards.clone(),
        tool_defs: said.tools,
        token_usage: result.usage.map(|usage| OutputUsage {
            input_tokens: usage.input_tokens.unwrap_or_default() as f64,
            output_tokens: usage.output_tokens.unwrap_or_default() as f64,
            cached_tokens: usage.cached_tokens.unwrap_or_default() as f64,
            reasoning_tokens: 0.0,
            cost: usage.cost_usd,
            final_input_tokens: None,
            final_output_tokens: None,
        }),
        columns: columns(&trial.result),
        ..RolloutOutput::default()
    }
}

/// Returns what the library has no field for. It keeps columns that it does not know.
fn columns(result: &TrialResult) -> Map<String, Value> {
    let calls = result.model_calls.as_ref().map(|calls| ("model_calls", json!(calls)));
    let reported = result.reported_usage.as_ref().map(|usage| ("reported_usage", json!(usage)));
    calls.into_iter().chain(reported).map(|(name, value)| (name.to_owned(), value)).collect()
}

fn error(error: &TrialError) -> OutputError {
    let kind = error.kind.as_str();
    OutputError {
        error: kind.to_owned(),
        message: error.message.clone(),
        error_chain_repr: format!("{kind}: {}", error.message),
        error_chain_str: kind.to_owned(),
        is_infrastructure: None,
    }
}

/// The files of one agent on one dataset.
struct Section {
    agent: String,
    dataset: String,
    rows: NewFile,
    metadata: NewFile,
    /// Known values besides averages.
    known: Map<String, Value>,
    names: IndexSet<String>,
    averages: Aggregate,
    /// Sums of input and output tokens in the last context, and the number of rollouts with known tokens.
    in_context: (f64, f64, u64),
}

impl Section {
    fn new(export: &Export<'_>, trial: &SavedTrial) -> Result<Self, ExportError> {
        let job = export.job;
        let (agent, dataset) = (trial.id.agent.to_string(), trial.id.dataset.to_string());
        let dir = export.section(&agent, &dataset);
        let known = known(job, &agent, &dataset, trial.result.pass_threshold)?;
        let metadata = read(&known);
        Ok(Self {
            rows: export.file(dir.join(rows::RESULTS))?,
            metadata: export.file(dir.join(rows::METADATA))?,
            averages: Aggregate::new(metadata.rollouts_per_example, metadata.pass_threshold),
            names: IndexSet::new(),
            in_context: (0.0, 0.0, 0),
            known,
            agent,
            dataset,
        })
    }

    fn is_of(&self, trial: &SavedTrial) -> bool {
        self.agent == trial.id.agent.as_str() && self.dataset == trial.id.dataset.as_str()
    }

    fn add(&mut self, trial: &SavedTrial, row: &RolloutOutput) -> Result<(), ExportError> {
        let metrics = row.metrics.iter().map(|(name, value)| {
            let number =
                self.names.get_index_of(name).unwrap_or_else(|| self.names.insert_full(name.clone()).0);
            (number as u32, *value)
        });
        let metrics: Vec<_> = metrics.collect();
        let stats = Stats {
            reward: row.reward,
            is_error: row.error.is_some(),
            tokens: row.token_usage.map(|usage| (usage.input_tokens, usage.output_tokens)),
            cost: trial.result.model_cost,
            metrics: &metrics,
        };
        self.averages.add(row.example_id, &stats);
        let usage = row.token_usage.unwrap_or_default();
        if let Some((shown, written)) = usage.final_input_tokens.zip(usage.final_output_tokens) {
            self.in_context.0 += shown;
            self.in_context.1 += written;
            self.in_context.2 += 1;
        }
        let original = form::original(row).map_err(|error| self.rows.failed(error.into()))?;
        self.rows.json_line(&original)
    }

    fn finish(mut self) -> Result<[PathBuf; 2], ExportError> {
        let mut metadata = read(&self.known);
        self.averages.tell(self.names.iter(), &mut metadata);
        if let Ok(Value::Object(averages)) = serde_json::to_value(&metadata) {
            self.known.extend(averages);
        }
        let (shown, written, rollouts) = self.in_context;
        if let Some(Value::Object(usage)) = self.known.get_mut("usage").filter(|_| rollouts > 0) {
            usage.insert("final_input_tokens".to_owned(), (shown / rollouts as f64).into());
            usage.insert("final_output_tokens".to_owned(), (written / rollouts as f64).into());
        }
        // The original requires a string here.
        if let Some(url @ Value::Null) = self.known.get_mut("base_url") {
            *url = Value::String(String::new());
        }
        let written = serde_json::to_writer_pretty(&mut self.metadata, &self.known);
        written.map_err(|error| self.metadata.failed(error.into()))?;
        Ok([self.rows.finish()?, self.metadata.finish()?])
    }
}

/// Returns what the job records about an agent on a dataset: its file of averages, or its plan.
fn known(
    job: &SavedJob,
    agent: &str,
    dataset: &str,
    pass_threshold: f64,
) -> Result<Map<String, Value>, ExportError> {
    let path = job.section(agent, dataset).join(rows::METADATA);
    match fs::read(&path) {
        Ok(bytes) => {
            return serde_json::from_slice(&bytes)
                .map_err(|source| SavedError::Damaged { path, source }.into());
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(SavedError::Read { path, source }.into()),
    }
    let took = |run: &crate::saved::SavedRun| {
        run.ended_at.map_or(0.0, |end| end.duration_since(run.started_at).as_secs_f64())
    };
    let time: f64 = job.runs().iter().map(took).sum();
    let header = job.header();
    let metadata = GenerateMetadata {
        env_id: dataset.to_owned(),
        model: chat::model_of(job, agent).unwrap_or(agent).to_owned(),
        num_examples: header.tasks.iter().filter(|task| task.dataset == dataset).count() as u64,
        rollouts_per_example: header.attempts,
        time_ms: time * 1e3,
        time,
        pass_threshold,
        provenance: job.runs().last().and_then(|run| run.provenance.clone()),
        ..GenerateMetadata::default()
    };
    match serde_json::to_value(metadata) {
        Ok(Value::Object(known)) => Ok(known),
        _ => unreachable!("metadata is an object of plain data"),
    }
}

fn read(known: &Map<String, Value>) -> GenerateMetadata {
    serde_json::from_value(Value::Object(known.clone())).unwrap_or_default()
}
