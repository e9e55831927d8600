//! The columns of the table of trials.

use super::{Cell, Column, Kind};
use crate::{
    saved::{Conversation, SavedJob, SavedTrial},
    tasks::TaskAbout,
};
use rollout_core::{
    message::Role,
    provenance::{GitState, Provenance},
    result::{AgentUsage, EnvironmentRecord, Standing},
};

/// One trial, with what the job knows of it.
#[derive(Debug, Clone, Copy)]
pub struct TrialRow<'a> {
    /// The job.
    pub job: &'a SavedJob,
    /// The trial.
    pub trial: &'a SavedTrial,
    /// What its task said when the job was planned, where that is kept.
    pub about: Option<&'a TaskAbout>,
    /// What was said in it, where that is kept.
    pub conversation: Option<&'a Conversation>,
    /// The model, where the agent is one.
    pub model: Option<&'a str>,
}

impl<'a> TrialRow<'a> {
    /// All columns, in their order.
    pub const COLUMNS: &'a [Column<TrialRow<'a>>] = &[
        Column::required("job", Kind::Text, "The job", |row| (&row.job.header().job_name).into()),
        Column::required(
            "trial",
            Kind::Text,
            "Names the trial within its job: `<agent>/<dataset>/<task>__<attempt>`",
            |row| row.trial.id.to_string().into(),
        ),
        Column::required("agent", Kind::Text, "Who attempted", |row| row.trial.id.agent.as_str().into()),
        Column::required("dataset", Kind::Text, "The dataset of the task", |row| {
            row.trial.id.dataset.as_str().into()
        }),
        Column::required("task", Kind::Text, "The task, example or question", |row| {
            row.trial.id.task.as_str().into()
        }),
        Column::required("attempt", Kind::Integer, "Which attempt, from 1", |row| {
            row.trial.id.attempt.into()
        }),
        Column::required(
            "run",
            Kind::Integer,
            "Which run of the job finished it: 1 the first, more after a resume",
            |row| (row.trial.run + 1).into(),
        ),
        Column::required(
            "standing",
            Kind::Text,
            "`completed`, or `failed` if an error kept it from a reward",
            |row| standing(row.trial.result.standing()).into(),
        ),
        Column::optional("reward", Kind::Real, "The score", |row| row.trial.result.reward.into()),
        Column::required(
            "pass_threshold",
            Kind::Real,
            "The least reward that counts as solved in the dataset",
            |row| row.trial.result.pass_threshold.into(),
        ),
        Column::optional(
            "solved",
            Kind::Boolean,
            "Whether the reward reaches `pass_threshold`; null without one",
            |row| row.trial.result.is_solved().into(),
        ),
        Column::optional(
            "rewards",
            Kind::Json,
            "Further scores by name, or the metrics of a rollout",
            |row| {
                let rewards = &row.trial.result.rewards;
                if rewards.is_empty() { Cell::Null } else { Cell::json(rewards) }
            },
        ),
        Column::optional("error_type", Kind::Text, "The kind of error", |row| {
            row.trial.result.error.as_ref().map(|error| error.kind.as_str()).into()
        }),
        Column::optional("error_message", Kind::Text, "What went wrong", |row| {
            row.trial.result.error.as_ref().map(|error| &error.message).into()
        }),
        Column::required("total_sec", Kind::Real, "Seconds from start to end", |row| {
            row.trial.result.durations.total_sec.into()
        }),
        Column::optional(
            "environment_setup_sec",
            Kind::Real,
            "Seconds for image, start and first copies",
            |row| row.trial.result.durations.environment_setup_sec.into(),
        ),
        Column::optional("agent_setup_sec", Kind::Real, "Seconds of the install script", |row| {
            row.trial.result.durations.agent_setup_sec.into()
        }),
        Column::optional(
            "agent_execution_sec",
            Kind::Real,
            "Seconds of the execute script, or of the conversation",
            |row| row.trial.result.durations.agent_execution_sec.into(),
        ),
        Column::optional("verifier_sec", Kind::Real, "Seconds of the tests, or of scoring", |row| {
            row.trial.result.durations.verifier_sec.into()
        }),
        Column::required("started_at", Kind::Time, "When it started", |row| {
            row.trial.result.timestamps.started_at.into()
        }),
        Column::optional(
            "environment_setup_started_at",
            Kind::Time,
            "When work on the environment started",
            |row| row.trial.result.timestamps.environment_setup_started_at.into(),
        ),
        Column::optional(
            "environment_setup_ended_at",
            Kind::Time,
            "When the environment was ready, or failed",
            |row| row.trial.result.timestamps.environment_setup_ended_at.into(),
        ),
        Column::optional("agent_setup_started_at", Kind::Time, "When the install script started", |row| {
            row.trial.result.timestamps.agent_setup_started_at.into()
        }),
        Column::optional("agent_setup_ended_at", Kind::Time, "When the install script ended", |row| {
            row.trial.result.timestamps.agent_setup_ended_at.into()
        }),
        Column::optional("agent_execution_started_at", Kind::Time, "When the agent started", |row| {
            row.trial.result.timestamps.agent_execution_started_at.into()
        }),
        Column::optional("agent_execution_ended_at", Kind::Time, "When the agent ended", |row| {
            row.trial.result.timestamps.agent_execution_ended_at.into()
        }),
        Column::optional("verifier_started_at", Kind::Time, "When verification started", |row| {
            row.trial.result.timestamps.verifier_started_at.into()
        }),
        Column::optional("verifier_ended_at", Kind::Time, "When verification ended", |row| {
            row.trial.result.timestamps.verifier_ended_at.into()
        }),
        Column::required("ended_at", Kind::Time, "When it ended", |row| {
            row.trial.result.timestamps.ended_at.into()
        }),
        Column::required("cost_usd", Kind::Real, "What is known of the costs, in US dollars", |row| {
            row.trial.result.cost.into()
        }),
        Column::required("environment_cost_usd", Kind::Real, "Of it, the environment", |row| {
            row.trial.result.environment_cost.into()
        }),
        Column::optional("model_cost_usd", Kind::Real, "Of it, the model, where the agent told", |row| {
            row.trial.result.model_cost.into()
        }),
        Column::optional(
            "input_tokens",
            Kind::Integer,
            "Tokens sent to the model, where the agent told",
            |row| row.usage().input_tokens.into(),
        ),
        Column::optional("output_tokens", Kind::Integer, "Tokens received from it", |row| {
            row.usage().output_tokens.into()
        }),
        Column::optional("cached_tokens", Kind::Integer, "Of those sent, the ones from a cache", |row| {
            row.usage().cached_tokens.into()
        }),
        Column::required("tries", Kind::Integer, "How many tries the infrastructure needed", |row| {
            row.trial.result.tries.into()
        }),
        Column::required("agent_starts", Kind::Integer, "How many of the tries started the agent", |row| {
            row.trial.result.agent_starts.into()
        }),
        Column::optional("provider", Kind::Text, "Who provided the environment; null without one", |row| {
            row.environment().map(|environment| &environment.provider).into()
        }),
        Column::optional("environment_id", Kind::Text, "The provider's name for the environment", |row| {
            row.environment().map(|environment| &environment.id).into()
        }),
        Column::optional("image", Kind::Text, "The image it was made from", |row| {
            row.environment().map(|environment| &environment.image).into()
        }),
        Column::optional("network", Kind::Text, "The network it had", |row| {
            row.environment().map(|environment| &environment.network).into()
        }),
        Column::optional("enforced_limits", Kind::Json, "The limits that really held", |row| {
            row.environment().map_or(Cell::Null, |environment| Cell::json(&environment.enforced))
        }),
        Column::optional(
            "agent_snapshot",
            Kind::Text,
            "The snapshot of the install that it was started from",
            |row| row.environment().and_then(|environment| environment.agent_snapshot.as_ref()).into(),
        ),
        Column::optional(
            "model",
            Kind::Text,
            "The server's name for the model; null if the agent is a script",
            |row| row.model.into(),
        ),
        Column::optional("stop_condition", Kind::Text, "What ended the conversation", |row| {
            row.conversation.and_then(|said| said.stop_condition.as_ref()).into()
        }),
        Column::optional(
            "is_truncated",
            Kind::Boolean,
            "Whether the model was cut off; null without a conversation",
            |row| row.conversation.map(|said| said.is_truncated).into(),
        ),
        Column::optional(
            "n_turns",
            Kind::Integer,
            "Responses of the model; null without a conversation",
            |row| row.conversation.map(Conversation::responses).into(),
        ),
        Column::optional(
            "n_tool_calls",
            Kind::Integer,
            "Tools that it called; null without a conversation",
            |row| row.conversation.map(tool_calls).into(),
        ),
        Column::optional("category", Kind::Text, "The task's category", |row| {
            row.about.and_then(|about| about.category.as_ref()).into()
        }),
        Column::optional("difficulty", Kind::Text, "The task's difficulty", |row| {
            row.about.and_then(|about| about.difficulty.as_ref()).into()
        }),
        Column::optional("tags", Kind::Json, "The task's tags", |row| {
            row.about.map_or(Cell::Null, |about| Cell::json_list(&about.tags))
        }),
        Column::optional("task_source", Kind::Text, "The `source` of task.toml", |row| {
            row.about.and_then(|about| about.source.as_ref()).into()
        }),
        Column::optional("task_metadata", Kind::Json, "All of the task's `[metadata]`", |row| {
            match row.about.map(|about| &about.metadata) {
                Some(metadata) if !metadata.is_empty() => Cell::json(metadata),
                _ => Cell::Null,
            }
        }),
        Column::optional(
            "task_version_hash",
            Kind::Text,
            "The hash of all that the task's results depend on",
            |row| row.about.and_then(|about| about.version_hash.as_ref()).into(),
        ),
        Column::optional("content_hash", Kind::Text, "The hash of the task's files", |row| {
            row.job.task(row.trial).content_hash.as_ref().into()
        }),
        Column::optional("git_commit", Kind::Text, "The commit that the task was taken from", |row| {
            row.job.task(row.trial).git_commit_id.as_ref().into()
        }),
        Column::optional(
            "example_id",
            Kind::Integer,
            "The number of the example or question; null for tasks",
            |row| row.job.task(row.trial).example_id.into(),
        ),
        Column::required("config_hash", Kind::Text, "The hash of the job's configuration", |row| {
            (&row.job.header().config_hash).into()
        }),
        Column::optional("rollout_version", Kind::Text, "The version of Rollout that ran it", |row| {
            row.provenance().map(|provenance| &provenance.rollout_version).into()
        }),
        Column::optional("agent_install_hash", Kind::Text, "The hash of what the agent installs", |row| {
            let agent = row.trial.id.agent.as_str();
            row.provenance().and_then(|provenance| provenance.agent_install_hashes.get(agent)).into()
        }),
        Column::optional(
            "job_git_commit",
            Kind::Text,
            "The commit of the repository that holds the job file",
            |row| row.git().map(|git| &git.commit).into(),
        ),
        Column::optional(
            "job_git_is_dirty",
            Kind::Boolean,
            "Whether it had changes that were not committed",
            |row| row.git().map(|git| git.is_dirty).into(),
        ),
        Column::optional("survivors", Kind::Json, "Commands that the agent left running", |row| {
            Cell::json_list(&row.trial.result.survivors)
        }),
        Column::optional("notes", Kind::Json, "What else a reader should know", |row| {
            Cell::json_list(&row.trial.result.notes)
        }),
    ];

    fn usage(&self) -> AgentUsage {
        self.trial.result.usage.unwrap_or_default()
    }

    fn provenance(&self) -> Option<&'a Provenance> {
        self.job.runs().get(self.trial.run)?.provenance.as_deref()
    }

    fn git(&self) -> Option<&'a GitState> {
        self.provenance()?.git.as_ref()
    }

    fn environment(&self) -> Option<&'a EnvironmentRecord> {
        self.trial.result.environment.as_ref()
    }
}

fn standing(standing: Standing) -> &'static str {
    match standing {
        Standing::Completed => "completed",
        Standing::Failed => "failed",
        Standing::Skipped => "skipped",
    }
}

fn tool_calls(said: &Conversation) -> usize {
    let responses = said.completion.iter().filter(|message| message.role == Role::Assistant);
    responses.map(|message| message.tool_calls.len()).sum()
}
