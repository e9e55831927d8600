//! Trajectories in Harbor's Agent Trajectory Interchange Format, one file for each trial of a model.
//!
//! Images in messages are written to separate files, as the format requires.

mod format;
mod steps;

use std::{collections::BTreeSet, io::Write as _};

use serde_json::{Value, json};

use self::format::{Agent, FinalMetrics, Trajectory};
use super::{Export, ExportError, Exported, chat};
use crate::saved::{Conversation, SavedJob, SavedTrial};
use rollout_core::{message::ToolDef, moment};

/// Writes `<agent>/<dataset>/<task>__<n>.json` for each trial with a model conversation.
pub fn write(export: &Export<'_>) -> Result<Exported, ExportError> {
    let job = export.job;
    let mut made = Exported::default();
    let mut folders = BTreeSet::new();
    let mut silent = 0u64;
    for trial in export.trials()? {
        let trial = trial?;
        let Some(conversation) = job.conversation(&trial)?.filter(|said| said.messages().next().is_some())
        else {
            silent += 1;
            continue;
        };
        let id = &trial.id;
        let name = trial.name();
        let (steps, images) = steps::steps(&conversation, &format!("{name}.images"));
        let folder = std::path::Path::new(id.agent.as_str()).join(id.dataset.as_str());
        for image in images {
            let mut file = export.file(folder.join(&image.path))?;
            file.write_all(&image.bytes).map_err(|error| file.failed(error))?;
            file.finish()?;
        }
        let mut file = export.file(folder.join(format!("{name}.json")))?;
        file.json_line(&trajectory(job, &trial, &conversation, steps))?;
        file.finish()?;
        folders.insert(export.dir().join(folder));
        made.rows += 1;
    }
    if made.rows == 0 {
        let silent = (silent > 0 || export.by_tag().is_none())
            .then(|| "no trial has a conversation with a model".to_owned());
        return Err(export.nothing("", silent.as_slice()));
    }
    made.files = folders.into_iter().collect();
    if silent > 0 {
        made.left_out.push(format!("trials without a conversation with a model: {silent}"));
    }
    Ok(made)
}

fn trajectory(
    job: &SavedJob,
    trial: &SavedTrial,
    conversation: &Conversation,
    steps: Vec<format::Step>,
) -> Trajectory {
    let (id, result, task) = (&trial.id, &trial.result, job.task(trial));
    let usage = result.usage.unwrap_or_default();
    let provenance = job.provenance(trial);
    let mut extra = json!({
        "job": job.header().job_name,
        "dataset": id.dataset,
        "task": id.task,
        "attempt": id.attempt,
        "reward": result.reward,
        "rewards": result.rewards,
        "error": result.error,
        "model_error": conversation.error,
        "stop_condition": conversation.stop_condition,
        "is_truncated": conversation.is_truncated,
        "task_git_commit_id": task.git_commit_id,
        "provenance": provenance,
        "started_at": moment::text(result.timestamps.started_at),
        "ended_at": moment::text(result.timestamps.ended_at),
    });
    if let Some(calls) = &result.model_calls {
        extra["model_calls"] = json!(calls);
    }
    if let Some(reported) = &result.reported_usage {
        extra["reported_usage"] = json!(reported);
    }
    Trajectory {
        schema_version: format::VERSION.to_owned(),
        session_id: format!("{}/{id}", job.header().job_name),
        agent: Agent {
            name: id.agent.to_string(),
            version: provenance.map_or_else(
                || env!("CARGO_PKG_VERSION").to_owned(),
                |provenance| provenance.agent_version.unwrap_or(provenance.rollout_version),
            ),
            model_name: chat::model_of(job, id.agent.as_str()).map(str::to_owned),
            tool_definitions: conversation.tools.iter().map(tool).collect(),
        },
        final_metrics: FinalMetrics {
            total_prompt_tokens: usage.input_tokens,
            total_completion_tokens: usage.output_tokens,
            total_cached_tokens: usage.cached_tokens,
            total_cost_usd: usage.cost_usd.or(result.model_cost),
            total_steps: steps.len(),
        },
        steps,
        extra: match extra {
            Value::Object(extra) => extra,
            _ => serde_json::Map::new(),
        },
    }
}

/// Converts a tool to OpenAI's form.
fn tool(tool: &ToolDef) -> Value {
    json!({
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    })
}
