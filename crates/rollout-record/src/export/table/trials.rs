//! The columns of the table of trials.

use super::{Cell, Column, Kind};
use crate::{
    notes::TrialNotes,
    saved::{Conversation, SavedJob, SavedTrial},
    tasks::TaskRecord,
};
use rollout_core::{
    message::Role,
    provenance::{GitState, Provenance},
    result::{AgentUsage, EnvironmentRecord, Standing},
};

/// One trial, with the data that the job has about it.
#[derive(Debug, Clone, Copy)]
pub struct TrialRow<'a> {
    /// The job.
    pub job: &'a SavedJob,
    /// The trial.
    pub trial: &'a SavedTrial,
    /// The record of its task, if there is one.
    pub about: Option<&'a TaskRecord>,
    /// Its conversation, if it was recorded.
    pub conversation: Option<&'a Conversation>,
    /// The model, if the agent is one.
    pub model: Option<&'a str>,
    /// What people noted about it.
    pub notes: Option<&'a TrialNotes>,
}

impl<'a> TrialRow<'a> {
    /// All columns in order.
    pub const COLUMNS: &'a [Column<TrialRow<'a>>] = &[
        Column::required("job", Kind::Text, "Name of the job", |row| (&row.job.header().job_name).into()),
        Column::required(
            "trial",
            Kind::Text,
            "Name of the trial in its job: `<agent>/<dataset>/<task>__<attempt>`",
            |row| row.trial.id.to_string().into(),
        ),
        Column::required("agent", Kind::Text, "Name of the agent", |row| row.trial.id.agent.as_str().into()),
        Column::required("dataset", Kind::Text, "Dataset of the task", |row| {
            row.trial.id.dataset.as_str().into()
        }),
        Column::required("task", Kind::Text, "Task, example or question", |row| {
            row.trial.id.task.as_str().into()
        }),
        Column::required("attempt", Kind::Integer, "Number of the attempt, from 1", |row| {
            row.trial.id.attempt.into()
        }),
        Column::required(
            "run",
            Kind::Integer,
            "Number of the run of the job that finished the trial: 1 for the first run, 2 after the first resume, and so on",
            |row| (row.trial.run + 1).into(),
        ),
        Column::required(
            "standing",
            Kind::Text,
            "`completed`, or `failed` if there is no reward because of an error",
            |row| standing(row.trial.result.standing()).into(),
        ),
        Column::optional("reward", Kind::Real, "Reward", |row| row.trial.result.reward.into()),
        Column::required(
            "pass_threshold",
            Kind::Real,
            "Minimum reward of a solved trial in the dataset",
            |row| row.trial.result.pass_threshold.into(),
        ),
        Column::optional(
            "solved",
            Kind::Boolean,
            "Whether the reward is at least `pass_threshold`; null without a reward",
            |row| row.trial.result.is_solved().into(),
        ),
        Column::optional(
            "rewards",
            Kind::Json,
            "Other rewards by name, or the metrics of a rollout",
            |row| {
                let rewards = &row.trial.result.rewards;
                if rewards.is_empty() { Cell::Null } else { Cell::json(rewards) }
            },
        ),
        Column::optional("error_type", Kind::Text, "Type of the error", |row| {
            row.trial.result.error.as_ref().map(|error| error.kind.as_str()).into()
        }),
        Column::optional("error_message", Kind::Text, "Error message", |row| {
            row.trial.result.error.as_ref().map(|error| &error.message).into()
        }),
        Column::required("total_sec", Kind::Real, "Seconds from start to end", |row| {
            row.trial.result.durations.total_sec.into()
        }),
        Column::optional(
            "environment_setup_sec",
            Kind::Real,
            "Seconds for the image, the start and the first copies",
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
        Column::required("started_at", Kind::Time, "Start of the trial", |row| {
            row.trial.result.timestamps.started_at.into()
        }),
        Column::optional(
            "environment_setup_started_at",
            Kind::Time,
            "Start of the environment setup",
            |row| row.trial.result.timestamps.environment_setup_started_at.into(),
        ),
        Column::optional(
            "environment_setup_ended_at",
            Kind::Time,
            "End of the environment setup, successful or not",
            |row| row.trial.result.timestamps.environment_setup_ended_at.into(),
        ),
        Column::optional("agent_setup_started_at", Kind::Time, "Start of the install script", |row| {
            row.trial.result.timestamps.agent_setup_started_at.into()
        }),
        Column::optional("agent_setup_ended_at", Kind::Time, "End of the install script", |row| {
            row.trial.result.timestamps.agent_setup_ended_at.into()
        }),
        Column::optional("agent_execution_started_at", Kind::Time, "Start of the agent", |row| {
            row.trial.result.timestamps.agent_execution_started_at.into()
        }),
        Column::optional("agent_execution_ended_at", Kind::Time, "End of the agent", |row| {
            row.trial.result.timestamps.agent_execution_ended_at.into()
        }),
        Column::optional("verifier_started_at", Kind::Time, "Start of verification", |row| {
            row.trial.result.timestamps.verifier_started_at.into()
        }),
        Column::optional("verifier_ended_at", Kind::Time, "End of verification", |row| {
            row.trial.result.timestamps.verifier_ended_at.into()
        }),
        Column::required("ended_at", Kind::Time, "End of the trial", |row| {
            row.trial.result.timestamps.ended_at.into()
        }),
        Column::required("cost_usd", Kind::Real, "Known costs in US dollars", |row| {
            row.trial.result.cost.into()
        }),
        Column::required(
            "environment_cost_usd",
            Kind::Real,
            "Part of `cost_usd` for the environment",
            |row| row.trial.result.environment_cost.into(),
        ),
        Column::optional(
            "model_cost_usd",
            Kind::Real,
            "Part of `cost_usd` for the model, if reported",
            |row| row.trial.result.model_cost.into(),
        ),
        Column::optional(
            "input_tokens",
            Kind::Integer,
            "Tokens sent to the model, if the agent reported them",
            |row| row.usage().input_tokens.into(),
        ),
        Column::optional("output_tokens", Kind::Integer, "Tokens received from the model", |row| {
            row.usage().output_tokens.into()
        }),
        Column::optional("cached_tokens", Kind::Integer, "Tokens sent that were read from a cache", |row| {
            row.usage().cached_tokens.into()
        }),
        Column::optional(
            "model_calls",
            Kind::Json,
            "Calls to the model, as the gateway recorded them: counts, models and failed calls",
            |row| row.trial.result.model_calls.as_ref().map_or(Cell::Null, Cell::json),
        ),
        Column::optional(
            "reported_usage",
            Kind::Json,
            "Usage that the agent reported itself, if it differs",
            |row| row.trial.result.reported_usage.as_ref().map_or(Cell::Null, Cell::json),
        ),
        Column::required(
            "tries",
            Kind::Integer,
            "Number of tries, more than 1 after infrastructure failures",
            |row| row.trial.result.tries.into(),
        ),
        Column::required("agent_starts", Kind::Integer, "Number of tries that started the agent", |row| {
            row.trial.result.agent_starts.into()
        }),
        Column::optional(
            "provider",
            Kind::Text,
            "Provider of the environment; null without an environment",
            |row| row.environment().map(|environment| &environment.provider).into(),
        ),
        Column::optional("environment_id", Kind::Text, "Id of the environment at its provider", |row| {
            row.environment().map(|environment| &environment.id).into()
        }),
        Column::optional("image", Kind::Text, "Image of the environment", |row| {
            row.environment().map(|environment| &environment.image).into()
        }),
        Column::optional("network", Kind::Text, "Network of the environment", |row| {
            row.environment().map(|environment| &environment.network).into()
        }),
        Column::optional("enforced_limits", Kind::Json, "Limits that were enforced", |row| {
            row.environment().map_or(Cell::Null, |environment| Cell::json(&environment.enforced))
        }),
        Column::optional(
            "agent_snapshot",
            Kind::Text,
            "Snapshot of the agent's install that was used",
            |row| row.environment().and_then(|environment| environment.agent_snapshot.as_ref()).into(),
        ),
        Column::optional(
            "model",
            Kind::Text,
            "Name of the model on its server; null if the agent is a script",
            |row| row.model.into(),
        ),
        Column::optional("stop_condition", Kind::Text, "Stop condition of the conversation", |row| {
            row.conversation.and_then(|said| said.stop_condition.as_ref()).into()
        }),
        Column::optional(
            "is_truncated",
            Kind::Boolean,
            "Whether a response was truncated; null without a conversation",
            |row| row.conversation.map(|said| said.is_truncated).into(),
        ),
        Column::optional(
            "n_turns",
            Kind::Integer,
            "Number of responses; null without a conversation",
            |row| row.conversation.map(Conversation::responses).into(),
        ),
        Column::optional(
            "n_tool_calls",
            Kind::Integer,
            "Number of tool calls; null without a conversation",
            |row| row.conversation.map(tool_calls).into(),
        ),
        Column::optional("category", Kind::Text, "Category of the task", |row| {
            row.about.and_then(|about| about.category.as_ref()).into()
        }),
        Column::optional("difficulty", Kind::Text, "Difficulty of the task", |row| {
            row.about.and_then(|about| about.difficulty.as_ref()).into()
        }),
        Column::optional("tags", Kind::Json, "Tags of the task", |row| {
            row.about.map_or(Cell::Null, |about| Cell::json_list(&about.tags))
        }),
        Column::optional("task_source", Kind::Text, "`source` of task.toml", |row| {
            row.about.and_then(|about| about.source.as_ref()).into()
        }),
        Column::optional("task_metadata", Kind::Json, "`[metadata]` of the task", |row| {
            match row.about.map(|about| &about.metadata) {
                Some(metadata) if !metadata.is_empty() => Cell::json(metadata),
                _ => Cell::Null,
            }
        }),
        Column::optional(
            "task_version_hash",
            Kind::Text,
            "Hash of everything that the task's results depend on",
            |row| row.about.and_then(|about| about.version_hash.as_ref()).into(),
        ),
        Column::optional("content_hash", Kind::Text, "Hash of the task's files", |row| {
            row.job.task(row.trial).content_hash.as_ref().into()
        }),
        Column::optional("git_commit", Kind::Text, "Git commit of the task", |row| {
            row.job.task(row.trial).git_commit_id.as_ref().into()
        }),
        Column::optional(
            "example_id",
            Kind::Integer,
            "Number of the example or question; null for tasks",
            |row| row.job.task(row.trial).example_id.into(),
        ),
        Column::required("config_hash", Kind::Text, "Hash of the job's configuration", |row| {
            (&row.job.header().config_hash).into()
        }),
        Column::optional("rollout_version", Kind::Text, "Version of Rollout that ran the trial", |row| {
            row.provenance().map(|provenance| &provenance.rollout_version).into()
        }),
        Column::optional("agent_install_hash", Kind::Text, "Hash of the agent's install", |row| {
            let agent = row.trial.id.agent.as_str();
            row.provenance().and_then(|provenance| provenance.agent_install_hashes.get(agent)).into()
        }),
        Column::optional("job_git_commit", Kind::Text, "Git commit of the job file's repository", |row| {
            row.git().map(|git| &git.commit).into()
        }),
        Column::optional(
            "job_git_is_dirty",
            Kind::Boolean,
            "Whether that repository had uncommitted changes",
            |row| row.git().map(|git| git.is_dirty).into(),
        ),
        Column::optional("survivors", Kind::Json, "Commands that still ran after the agent ended", |row| {
            Cell::json_list(&row.trial.result.survivors)
        }),
        Column::optional("notes", Kind::Json, "Notes", |row| Cell::json_list(&row.trial.result.notes)),
        Column::optional("note_tags", Kind::Json, "Tags of `rollout note`", |row| match row.notes {
            Some(notes) if !notes.tags.is_empty() => Cell::json(&notes.tags),
            _ => Cell::Null,
        }),
        Column::optional(
            "note_comments",
            Kind::Json,
            "Comments of `rollout note`, with their times",
            |row| row.notes.map_or(Cell::Null, |notes| Cell::json_list(&notes.comments)),
        ),
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
