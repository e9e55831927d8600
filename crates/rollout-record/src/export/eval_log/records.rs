//! Creates the records of a job from its directory.

use std::path::Path;

use jiff::Timestamp;
use serde_json::{Map, Number, Value};

use super::{
    AgentInfo, BenchmarkSubset, EpisodeRecord, ExampleVersion, ExperimentRecord, Steps, UsageSummary,
    Verifier, experiment_id, github_permalink, success,
};
use crate::{
    identity::agent_identity,
    journal::TaskSelection,
    saved::{Conversation, SavedError, SavedJob, SavedTrial},
};
use rollout_core::{event::JobKind, provenance::Provenance, result::TrialResult, row::TOOL_NAMES};

/// Creates the records of one job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Records<'a>(pub(super) &'a SavedJob);

impl<'a> Records<'a> {
    /// Returns the record of an agent on a dataset.
    pub(super) fn experiment(self, agent: &str, dataset: &str) -> ExperimentRecord {
        let (name, output_dir) = self.named(agent, dataset);
        ExperimentRecord {
            experiment_id: experiment_id(&name, &output_dir),
            experiment_name: name,
            timestamp: seconds(Timestamp::now()),
            framework_version: self.framework_version().to_owned(),
            agent: self.agent(agent),
            benchmark_name: dataset.to_owned(),
            benchmark_version: self.version(dataset),
            benchmark_subset: self.subset(dataset),
            investigator_llm_config: None,
            output_dir: Some(output_dir),
            unknown: Map::new(),
        }
    }

    /// Returns the planned tasks of a dataset. If they are a selection, the name describes it.
    fn subset(self, dataset: &str) -> BenchmarkSubset {
        let header = self.0.header();
        let n_tasks = header.tasks.iter().filter(|task| task.dataset == dataset).count() as u64;
        let mut subset = BenchmarkSubset::new(dataset, n_tasks);
        if header.dataset_sizes.get(dataset).is_some_and(|size| *size == n_tasks) {
            return subset;
        }
        let (mut globs, mut limits) = self.configured(dataset);
        if let Some(TaskSelection { globs: wanted, limit }) = &header.selection {
            globs.extend(wanted.iter().cloned());
            limits.extend(limit.map(|limit| format!("limit={limit}")));
        }
        let chosen: Vec<&str> = globs.iter().chain(&limits).map(String::as_str).collect();
        if !chosen.is_empty() {
            subset.name = format!("{dataset}[{}]", chosen.join(","));
            subset.filter = (!globs.is_empty()).then(|| globs.join(","));
        }
        subset
    }

    /// Returns the patterns and limits of a dataset in the job file. Patterns of excluded tasks start with `!`.
    fn configured(self, dataset: &str) -> (Vec<String>, Vec<String>) {
        let entries = self.0.config().get("datasets").and_then(Value::as_array);
        let is_named = |entry: &&Value| {
            let name = entry.get("rename").filter(|name| name.is_string()).or_else(|| entry.get("name"));
            name.and_then(Value::as_str) == Some(dataset)
        };
        let Some(entry) = entries.into_iter().flatten().find(is_named) else { return Default::default() };
        let patterns = |key: &str, mark: &str| -> Vec<String> {
            let list = entry.get(key).and_then(Value::as_array).into_iter().flatten();
            list.filter_map(Value::as_str).map(|pattern| format!("{mark}{pattern}")).collect()
        };
        let limit = entry.get("limit").and_then(Value::as_u64).map(|limit| format!("limit={limit}"));
        ([patterns("include", ""), patterns("exclude", "!")].concat(), limit.into_iter().collect())
    }

    /// Returns the name of an experiment, and the directory that its id is computed from.
    fn named(self, agent: &str, dataset: &str) -> (String, String) {
        let header = self.0.header();
        let directory = match &header.directory {
            Some(directory) => directory.clone(),
            None => self.0.path().canonicalize().unwrap_or_else(|_| self.0.path().to_owned()),
        };
        let output_dir = directory.join(agent).join(dataset);
        (format!("{}/{agent}/{dataset}", header.job_name), output_dir.to_string_lossy().into_owned())
    }

    /// Returns the provenance of the first run. Later runs use the same configuration.
    fn provenance(self) -> Option<&'a Provenance> {
        self.0.runs().iter().find_map(|run| run.provenance.as_deref())
    }

    fn framework_version(self) -> &'a str {
        self.provenance().map_or(env!("CARGO_PKG_VERSION"), |provenance| &provenance.rollout_version)
    }

    fn agent(self, agent: &str) -> AgentInfo {
        let version = self.framework_version();
        let config = agent_identity(self.0.config(), agent);
        let kind = match agent {
            _ if self.is_benchmark() => "rollout.BenchmarkModel",
            _ if config.contains_key("model") => "rollout.ModelAgent",
            "oracle" => "rollout.OracleAgent",
            "nop" => "rollout.NopAgent",
            _ => "rollout.ScriptAgent",
        };
        let model = config.get("model").and_then(|model| model.get("name")).and_then(Value::as_str);
        let model = model.map(str::to_owned);
        let mut info = AgentInfo::from_config(config, kind, version);
        info.llm_model = info.llm_model.or(model);
        info.dependency_versions.insert("rollout".to_owned(), version.to_owned());
        if let Some(git) = self.provenance().and_then(|provenance| provenance.git.as_ref()) {
            info.git_commit = Some(git.commit.clone());
            info.git_is_dirty = git.is_dirty;
            info.git_remote_url = git.remote_url.as_ref().and_then(|url| github_permalink(url, &git.commit));
        }
        info
    }

    /// Returns the version of a dataset in its registry, else the common commit of its tasks.
    fn version(self, dataset: &str) -> Option<String> {
        let entries = self.0.config()["datasets"].as_array().into_iter().flatten();
        let named = |key: &str, entry: &Value| entry[key].as_str().map(str::to_owned);
        let mut entries = entries.filter(|entry| {
            named("rename", entry).or_else(|| named("name", entry)).as_deref() == Some(dataset)
        });
        let version = entries.next().and_then(|entry| named("version", entry));
        version.or_else(|| {
            let mut tasks = self.0.header().tasks.iter().filter(|task| task.dataset == dataset);
            let commit = tasks.next()?.git_commit_id.as_ref()?;
            tasks.all(|task| task.git_commit_id.as_ref() == Some(commit)).then(|| commit.clone())
        })
    }

    /// Returns the record of a trial.
    pub(super) fn episode(
        self,
        trial: &SavedTrial,
        said: Option<&Conversation>,
    ) -> Result<EpisodeRecord, SavedError> {
        let (id, result) = (&trial.id, &trial.result);
        let about = self.0.about(trial.task)?.unwrap_or_default();
        let task = self.0.task(trial);
        let version = about.version_hash.or_else(|| match task.example_id {
            // The row of a question contains neither its parameters nor the configurations of its tools' sessions.
            Some(_) if self.is_benchmark() => None,
            Some(_) => said.and_then(example_version),
            None => task.content_hash.clone(),
        });
        let (name, output_dir) = self.named(id.agent.as_str(), id.dataset.as_str());
        let info = said.and_then(|said| said.row.as_ref()?.info.as_ref());
        // No error and no reward means that verification was disabled.
        let is_unscored = result.reward.is_none() && result.error.is_none();
        let reward = (!is_unscored).then(|| result.reward.unwrap_or(0.0));
        let split = info.and_then(|info| info.get("split")).or_else(|| about.metadata.get("split"));
        let steps = steps(result, said);
        let error = said.and_then(|said| said.error.as_ref()).map(|error| error.error.clone());
        Ok(EpisodeRecord {
            experiment_id: experiment_id(&name, &output_dir),
            task_id: about.id.unwrap_or_else(|| id.task.to_string()),
            task_version_hash: version.map(|hash| hash.trim_start_matches("sha256:").to_owned()),
            seed: self.seed(id.agent.as_str()),
            split: split.and_then(Value::as_str).map(str::to_owned),
            task_description: about.description,
            tool_names: self.tool_names(said),
            success: reward.map(success),
            reward,
            error_type: error.or_else(|| Some(result.error.as_ref()?.kind.as_str().to_owned())),
            n_steps: steps.n_steps(),
            n_agent_steps: steps.n_agent_steps(),
            n_env_steps: steps.n_env_steps(),
            wall_time_s: Some(result.durations.total_sec),
            usage: usage(result, said),
            trajectory_id: trial.name(),
            timestamp: self.timestamp(trial),
            verifier: (about.test.is_some() || about.tests_url.is_some()).then(|| Verifier {
                reference: about.tests_url,
                source: about.test,
                unknown: Map::new(),
            }),
            findings: None,
            unknown: Map::new(),
        })
    }

    /// Returns the start time, which identifies a run of the trial in its record.
    pub(super) fn timestamp(self, trial: &SavedTrial) -> f64 {
        seconds(trial.result.timestamps.started_at)
    }

    /// Returns the sampling seed of a model.
    fn seed(self, agent: &str) -> Option<Number> {
        let mut agents = self.0.config()["agents"].as_array().into_iter().flatten();
        let seed = &agents.find(|entry| entry["name"] == agent)?["model"]["sampling"]["seed"];
        seed.as_number().filter(|seed| !seed.is_f64()).cloned()
    }

    /// Whether the tasks are questions of a benchmark.
    fn is_benchmark(self) -> bool {
        self.0.header().kind == JobKind::Benchmark
    }

    fn tool_names(self, said: Option<&Conversation>) -> Vec<String> {
        let recorded = said.map(|said| said.tools.as_ref()).unwrap_or_default();
        if !recorded.is_empty() {
            return recorded.iter().map(|tool| tool.name.clone()).collect();
        }
        let row = said.and_then(|said| said.row.as_ref()?.columns.get(TOOL_NAMES)?.as_array());
        // Older rows have no names. The requested names are used if they are not patterns.
        let asked_for = self.0.config()["available_tools"].as_array();
        let names = row.or(asked_for).into_iter().flatten().filter_map(Value::as_str);
        names.filter(|name| !name.contains('*')).map(str::to_owned).collect()
    }
}

/// Returns the version of the example of a conversation, or None if its row does not contain the example.
fn example_version(said: &Conversation) -> Option<String> {
    let row = said.row.as_ref()?;
    let prompt = serde_json::to_value(&said.prompt).ok().filter(|_| !said.prompt.is_empty())?;
    let version = ExampleVersion { prompt: &prompt, answer: row.answer.as_deref(), info: row.info.as_ref() };
    Some(version.hash())
}

/// Returns the directory of an agent on a dataset in the eval log of a job.
pub(super) fn place(log: &Path, agent: &str, dataset: &str) -> std::path::PathBuf {
    log.join(agent).join(dataset)
}

/// Counts the steps of a trial. Everything between two responses is one environment step: tool results, user messages,
/// or the grading. An agent that is not a model takes one step.
fn steps(result: &TrialResult, said: Option<&Conversation>) -> Steps {
    let mut steps = Steps::default();
    let started = result.timestamps.agent_execution_started_at.is_some();
    if !started && said.is_none() && result.timestamps.verifier_started_at.is_none() {
        return steps;
    }
    steps.environment(0.0, None);
    for _ in 0..said.map_or(usize::from(started), Conversation::model_calls) {
        steps.agent(None);
        steps.environment(0.0, None);
    }
    steps
}

fn usage(result: &TrialResult, said: Option<&Conversation>) -> UsageSummary {
    let reported = result.usage.unwrap_or_default();
    let [prompt_tokens, completion_tokens] =
        [reported.input_tokens, reported.output_tokens].map(Option::unwrap_or_default);
    let turns = said.map(|said| said.turns.as_slice()).unwrap_or_default();
    let cached = turns.iter().filter_map(|turn| turn.usage).map(|usage| usage.cache_write_tokens);
    UsageSummary {
        prompt_tokens,
        completion_tokens,
        total_tokens: prompt_tokens.saturating_add(completion_tokens),
        cached_tokens: reported.cached_tokens.unwrap_or_default(),
        cache_creation_tokens: cached.fold(0, u64::saturating_add),
        total_cost_usd: result.model_cost.or(reported.cost_usd).unwrap_or_default(),
        n_llm_calls: match &result.model_calls {
            Some(calls) => calls.turns,
            None => said.map_or(0, Conversation::model_calls) as u64,
        },
        unknown: Map::new(),
    }
}

fn seconds(time: Timestamp) -> f64 {
    time.as_microsecond() as f64 / 1e6
}
