//! The rollouts of each model on each dataset: the files of their rows, and their totals.

use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use indexmap::IndexSet;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{JobError, Plan, PlanTask, planned::Work, summary::Rows};
use crate::rollouts::Rollouts;
use rollout_core::{message::ToolDef, name::TrialIndex, provenance::Provenance, result::TrialResult};
use rollout_model::Model;
use rollout_record::{
    atomic,
    metadata::{Aggregate, GenerateMetadata, Stats},
    rows,
};

/// All sections of a job, in the order of their trials.
#[derive(Debug, Default)]
pub(super) struct Sections(Vec<Section>);

/// The rollouts of one model on one dataset: consecutive trials of the plan.
#[derive(Debug)]
pub(super) struct Section {
    agent: usize,
    tasks: Range<usize>,
    trials: Range<u64>,
    /// The directory of its rows and averages; none if nothing is saved.
    dir: Option<PathBuf>,
    rollouts: Arc<Rollouts>,
    model: Arc<Model>,
    tools: Option<Vec<ToolDef>>,
    names: IndexSet<String>,
    /// The data of each trial for averages, in addition to the common data of trials.
    kept: Vec<Kept>,
    /// The metrics of all trials, each with the number of its name.
    metrics: Vec<(u32, f64)>,
    /// The totals so far, in order of arrival.
    running: Aggregate,
    /// Whether something was added since the averages were last written.
    pub(super) stale: bool,
    /// Whether a row replaced another one, which is still in the file.
    has_old_rows: bool,
    /// Whether `running` contains a result that was replaced.
    running_is_wrong: bool,
    /// The provenance of its results, if they are saved.
    pub(super) provenance: Option<Arc<Provenance>>,
}

/// The data of a rollout for averages.
#[derive(Debug, Clone, Copy)]
struct Kept {
    /// Prompt and completion tokens; NaN if unknown.
    tokens: (f64, f64),
    /// The index of its first metric.
    first_metric: u32,
    /// The number of its metrics.
    metrics: u32,
}

impl Kept {
    /// A rollout without a result.
    const NOTHING: Self = Self { tokens: (f64::NAN, f64::NAN), first_metric: 0, metrics: u32::MAX };

    fn is_nothing(&self) -> bool {
        self.metrics == u32::MAX
    }

    fn tokens(&self) -> Option<(f64, f64)> {
        Some(self.tokens).filter(|(input, _)| !input.is_nan())
    }
}

/// The file of the rows of a section.
#[derive(Debug, Clone)]
pub(super) struct SectionRows {
    pub(super) path: PathBuf,
    /// The number of its agent.
    pub(super) agent: usize,
    tasks: Range<usize>,
    /// The indexes of its trials.
    pub(super) trials: Range<u64>,
}

impl SectionRows {
    /// The numbers of its tasks by those of their examples.
    pub(super) fn examples(&self, plan: &Plan) -> ExampleNumbers {
        let tasks = self.tasks.clone();
        let number = |task: usize| Some((plan.tasks[task].example_id()?, task as u32));
        let mut numbers: Vec<_> = tasks.filter_map(number).collect();
        numbers.sort_unstable();
        ExampleNumbers(numbers)
    }
}

/// The numbers of tasks by those of their examples. A sorted list needs less than half the memory of a table.
pub(super) struct ExampleNumbers(Vec<(u64, u32)>);

impl ExampleNumbers {
    /// The task of an example.
    pub(super) fn task(&self, example_id: u64) -> Option<usize> {
        let place = self.0.binary_search_by_key(&example_id, |(id, _)| *id).ok()?;
        Some(self.0[place].1 as usize)
    }
}

impl Sections {
    /// The sections of a plan. Each has its own directory, unless there is only one pair of agent and dataset.
    pub(super) fn new(plan: &Plan, dir: Option<&Path>) -> Self {
        let mut datasets: Vec<Range<usize>> = Vec::new();
        for (number, task) in plan.tasks.iter().enumerate() {
            match datasets.last_mut() {
                Some(last) if plan.tasks[last.start].dataset() == task.dataset() => last.end = number + 1,
                _ => datasets.push(number..number + 1),
            }
        }
        let alone = plan.agents.len() == 1 && datasets.len() == 1;
        let mut sections = Vec::new();
        for (agent, planned) in plan.agents.iter().enumerate() {
            for tasks in &datasets {
                let first = &plan.tasks[tasks.start];
                let (Work::Example { set, .. }, Some(model)) = (&first.work, &planned.model) else {
                    continue;
                };
                let rollouts = &set.rollouts;
                let last = &plan.tasks[tasks.end - 1];
                let trials = plan.index(agent, tasks.start, 1).0
                    ..plan.index(agent, tasks.end - 1, last.attempts).0 + 1;
                let dir = dir.map(|dir| match alone {
                    true => dir.to_owned(),
                    false => dir.join(planned.name.as_str()).join(first.dataset().as_str()),
                });
                let count = (trials.end - trials.start) as usize;
                let per_example = count / tasks.len();
                sections.push(Section {
                    agent,
                    tasks: tasks.clone(),
                    trials,
                    dir,
                    rollouts: Arc::clone(rollouts),
                    model: Arc::clone(model),
                    tools: common_tools(rollouts, &plan.tasks[tasks.clone()]),
                    names: IndexSet::new(),
                    kept: vec![Kept::NOTHING; count],
                    metrics: Vec::new(),
                    running: Aggregate::new(per_example as u32, rollouts.pass_threshold),
                    stale: true,
                    has_old_rows: false,
                    running_is_wrong: false,
                    provenance: None,
                });
            }
        }
        Self(sections)
    }

    /// Creates the directories of the sections.
    pub(super) fn prepare_directories(&self) -> Result<(), JobError> {
        for dir in self.0.iter().filter_map(|section| section.dir.as_ref()) {
            let failed = |source| JobError::Directory { path: dir.clone(), source };
            std::fs::create_dir_all(dir).map_err(failed)?;
        }
        Ok(())
    }

    /// Creates the directories of the sections, and writes empty averages.
    pub(super) fn prepare(&self, plan: &Plan, rows: &Rows) -> Result<(), JobError> {
        self.prepare_directories()?;
        for section in &self.0 {
            if let Some(file) = section.metadata_file() {
                atomic::write_json(&file, &section.metadata(plan, rows, 0.0))?;
            }
        }
        Ok(())
    }

    /// The number of the section that a trial belongs to.
    pub(super) fn of(&self, index: TrialIndex) -> Option<usize> {
        let after = self.0.partition_point(|section| section.trials.start <= index.0);
        let number = after.checked_sub(1)?;
        self.0[number].trials.contains(&index.0).then_some(number)
    }

    /// Records a trial's result. A later one replaces an earlier one.
    pub(super) fn set(&mut self, plan: &Plan, index: TrialIndex, result: &TrialResult) {
        if let Some(number) = self.of(index) {
            self.0[number].set(plan, index, result);
        }
    }

    /// The files of their rows.
    pub(super) fn files(&self) -> Vec<SectionRows> {
        self.0.iter().filter_map(Section::rows_file).collect()
    }

    /// Records that replaced rows were removed from the files.
    pub(super) fn old_rows_are_gone(&mut self) {
        self.0.iter_mut().for_each(|section| section.has_old_rows = false);
    }

    /// Whether the files contain replaced rows.
    pub(super) fn have_old_rows(&self) -> bool {
        self.0.iter().any(|section| section.has_old_rows)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Section> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Section> {
        self.0.iter_mut()
    }

    pub(super) fn get(&self, number: usize) -> &Section {
        &self.0[number]
    }
}

impl Section {
    /// The file of its rows.
    pub(super) fn rows(&self) -> Option<PathBuf> {
        let dir = self.dir.as_deref()?;
        Some(match self.rollouts.results {
            Some(_) => dir.join(rows::RESULTS),
            None => rows::file_in(dir),
        })
    }

    /// The file of its averages. A benchmark has its own files for them.
    pub(super) fn metadata_file(&self) -> Option<PathBuf> {
        self.dir.as_ref().filter(|_| self.rollouts.results.is_none()).map(|dir| dir.join(rows::METADATA))
    }

    /// Whether its rollouts are scored together with the others of their example.
    pub(super) fn scores_groups(&self) -> bool {
        !self.rollouts.independent_scoring
    }

    /// The indexes of its trials.
    pub(super) fn trials(&self) -> impl Iterator<Item = TrialIndex> + use<> {
        self.trials.clone().map(TrialIndex)
    }

    /// The file of its rows, with its agent and dataset.
    pub(super) fn rows_file(&self) -> Option<SectionRows> {
        let (agent, tasks, trials) = (self.agent, self.tasks.clone(), self.trials.clone());
        Some(SectionRows { path: self.rows()?, agent, tasks, trials })
    }

    fn set(&mut self, plan: &Plan, index: TrialIndex, result: &TrialResult) {
        self.stale = true;
        let usage = result.usage.unwrap_or_default();
        let tokens = usage.input_tokens.zip(usage.output_tokens).map(|(a, b)| (a as f64, b as f64));
        let first_metric = self.metrics.len();
        for (name, value) in &result.rewards {
            let number = self.number(name);
            self.metrics.push((number, *value));
        }
        let kept = Kept {
            tokens: tokens.unwrap_or(Kept::NOTHING.tokens),
            first_metric: u32::try_from(first_metric).expect("memory is full before"),
            metrics: result.rewards.len() as u32,
        };
        let slot = &mut self.kept[(index.0 - self.trials.start) as usize];
        let replaced = !std::mem::replace(slot, kept).is_nothing();
        if replaced {
            self.has_old_rows = true;
            // From now on totals are computed from scratch, because this one cannot be subtracted.
            self.running_is_wrong = true;
        } else {
            let stats = Stats {
                reward: result.reward.unwrap_or_default(),
                is_error: result.error.is_some(),
                tokens,
                cost: result.model_cost,
                metrics: &self.metrics[first_metric..],
            };
            self.running.add(example(plan, index), &stats);
        }
    }

    fn number(&mut self, name: &str) -> u32 {
        let number = match self.names.get_index_of(name) {
            Some(number) => number,
            None => self.names.insert_full(name.to_owned()).0,
        };
        number as u32
    }

    /// Computes totals in the order of the plan, so that the same rows give exactly the same numbers after any resume.
    fn in_order(&self, plan: &Plan, rows: &Rows) -> Aggregate {
        let mut all = Aggregate::new(self.rollouts_per_example(), self.rollouts.pass_threshold);
        for (index, kept) in self.trials().zip(&self.kept).filter(|(_, kept)| !kept.is_nothing()) {
            let Some(row) = rows.get(plan, index) else { continue };
            let stats = Stats {
                reward: row.reward.unwrap_or_default(),
                is_error: row.error.is_some(),
                tokens: kept.tokens(),
                cost: row.model_cost,
                metrics: &self.metrics[kept.first_metric as usize..][..kept.metrics as usize],
            };
            all.add(example(plan, index), &stats);
        }
        all
    }

    fn rollouts_per_example(&self) -> u32 {
        (self.kept.len() / self.tasks.len()) as u32
    }

    /// The totals so far, computed quickly.
    pub(super) fn so_far(&self, plan: &Plan, rows: &Rows, seconds: f64) -> GenerateMetadata {
        match self.running_is_wrong {
            true => self.metadata(plan, rows, seconds),
            false => self.tell(plan, &self.running, seconds),
        }
    }

    /// The exact totals.
    pub(super) fn metadata(&self, plan: &Plan, rows: &Rows, seconds: f64) -> GenerateMetadata {
        self.tell(plan, &self.in_order(plan, rows), seconds)
    }

    fn tell(&self, plan: &Plan, aggregate: &Aggregate, seconds: f64) -> GenerateMetadata {
        let Rollouts { env_args, state_columns, shuffled, pass_threshold, .. } = &*self.rollouts;
        let dataset = plan.tasks[self.tasks.start].dataset().as_str();
        let mut metadata = GenerateMetadata {
            env_id: self.rollouts.env_id.as_deref().unwrap_or(dataset).to_owned(),
            env_args: redacted(plan, env_args),
            model: self.model.name.clone(),
            base_url: Some(plan.redactor().text(self.model.client.base_url()).into_owned()),
            num_examples: self.tasks.len() as u64,
            rollouts_per_example: self.rollouts_per_example(),
            sampling_args: redacted(plan, &self.model.sampling),
            shuffle: shuffled.map(|seed| seed.is_some()),
            shuffle_seed: shuffled.flatten(),
            date: Timestamp::now(),
            time_ms: seconds * 1e3,
            time: seconds,
            pass_threshold: *pass_threshold,
            state_columns: state_columns.to_vec(),
            path_to_save: self.dir.clone(),
            tools: self.tools.as_ref().map(|tools| tools.iter().map(|tool| clean_tool(plan, tool)).collect()),
            provenance: self.provenance.clone(),
            ..GenerateMetadata::default()
        };
        aggregate.tell(self.names.iter(), &mut metadata);
        metadata
    }
}

/// The tools of all rollouts of these tasks; none if they differ.
fn common_tools(rollouts: &Rollouts, tasks: &[PlanTask]) -> Option<Vec<ToolDef>> {
    fn own(task: &PlanTask) -> Option<&str> {
        match &task.work {
            Work::Example { set, inputs } => set.examples.tools(inputs),
            Work::Container(_) => None,
        }
    }
    let mut all = tasks.iter().map(own);
    let first = all.next().flatten();
    if all.any(|other| other != first) {
        return None;
    }
    let tools = match first {
        None => rollouts.interaction.tool_defs(),
        Some(defs) => serde_json::from_str(defs).unwrap_or_default(),
    };
    (!tools.is_empty()).then_some(tools)
}

/// Settings without secrets, which may be anywhere.
fn redacted(plan: &Plan, settings: &Map<String, Value>) -> Map<String, Value> {
    match plan.redactor().json(Value::Object(settings.clone())) {
        Value::Object(clean) => clean,
        _ => unreachable!("an object stays one"),
    }
}

/// A tool of an example, without secrets.
fn clean_tool(plan: &Plan, tool: &ToolDef) -> ToolDef {
    let text = |text: &str| plan.redactor().text(text).into_owned();
    ToolDef {
        name: text(&tool.name),
        description: text(&tool.description),
        parameters: plan.redactor().json(tool.parameters.clone()),
        strict: tool.strict,
    }
}

fn example(plan: &Plan, index: TrialIndex) -> u64 {
    plan.parts(index).1.example_id().unwrap_or_default()
}
