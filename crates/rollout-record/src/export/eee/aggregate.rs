//! The file of scores of one agent on one dataset.

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use sha2::Digest as _;

use super::{
    EeeOptions, Group, SCHEMA,
    evaluated::{generation, text},
    retrieved_at, scores_path, unix,
};
use crate::{
    export::{Export, ExportError},
    saved::SavedJob,
};
use rollout_core::{
    event::JobKind,
    message::ToolDef,
    moment,
    statistics::{Figures, Interval, Resampling},
    text::hex,
};

impl Group<'_> {
    /// Writes the file of scores beside the lines.
    pub(super) fn finish(
        self,
        export: &Export<'_>,
        options: &EeeOptions,
        figures: &Figures,
        bootstrap: Resampling,
    ) -> Result<PathBuf, ExportError> {
        let mut file = export.file(scores_path(&self.stem))?;
        let scores = self.scores(export.job, options, figures, bootstrap);
        let text = serde_json::to_string_pretty(&scores).expect("plain data with string keys");
        std::io::Write::write_all(&mut file, format!("{text}\n").as_bytes())
            .map_err(|error| file.failed(error))?;
        file.finish()
    }

    fn scores(self, job: &SavedJob, options: &EeeOptions, figures: &Figures, bootstrap: Resampling) -> Value {
        let runs = job.runs();
        let provenance = runs.last().and_then(|run| run.provenance.as_ref());
        let version = provenance.map_or("unknown", |provenance| &provenance.rollout_version);
        let started = runs.first().map(|run| moment::text(run.started_at)).unwrap_or_default();
        let mut library = json!({"name": "rollout", "version": version});
        if let Some(provenance) = provenance {
            let mut details = json!({"config_hash": provenance.config_hash});
            if let Some(git) = &provenance.git {
                details["git_commit"] = text(&json!(git.commit)).into();
                details["git_is_dirty"] = text(&json!(git.is_dirty)).into();
            }
            library["additional_details"] = details;
        }
        let generation = self.generation(job);
        let mean = json!({
            "evaluation_result_id": self.result_id(),
            "evaluation_name": self.dataset,
            "evaluation_timestamp": started,
            "source_data": self.source(job),
            "metric_config": reward_metric(job),
            "score_details": reward_score(figures, bootstrap),
            "generation_config": generation,
        });
        let pass = json!({
            "evaluation_result_id": format!("{}#pass_rate", self.evaluation_id),
            "evaluation_name": self.dataset,
            "evaluation_timestamp": started,
            "source_data": self.source(job),
            "metric_config": {
                "evaluation_description": "The fraction of solved trials, whose reward reaches the threshold of the dataset",
                "metric_id": "pass_rate", "metric_name": "Pass rate", "metric_kind": "pass_rate",
                "metric_unit": "proportion", "lower_is_better": false, "score_type": "continuous",
                "min_score": 0, "max_score": 1,
            },
            "score_details": pass_score(figures),
            "generation_config": generation,
        });
        json!({
            "schema_version": SCHEMA,
            "evaluation_id": self.evaluation_id,
            "evaluation_timestamp": started,
            "retrieved_timestamp": unix(retrieved_at(job)),
            "source_metadata": {
                "source_name": "Rollout",
                "source_type": "evaluation_run",
                "source_organization_name": options.organization.as_deref().unwrap_or("unknown"),
                "evaluator_relationship": options.relationship.as_str(),
            },
            "eval_library": library,
            "model_info": self.evaluated.info(),
            "evaluation_results": [mean, pass],
            "detailed_evaluation_results": {
                "format": "jsonl",
                "file_path": format!("{}_samples.jsonl", self.stem),
                "hash_algorithm": "sha256",
                "checksum": hex(&self.checksum.finalize()),
                "total_rows": self.rows,
            },
        })
    }

    fn source(&self, job: &SavedJob) -> Value {
        let tasks = || job.header().tasks.iter().filter(|task| task.dataset == self.dataset);
        let mut details =
            json!({"tasks": tasks().count().to_string(), "attempts": job.header().attempts.to_string()});
        let mut commits: Vec<&str> = tasks().filter_map(|task| task.git_commit_id.as_deref()).collect();
        commits.sort_unstable();
        commits.dedup();
        if !commits.is_empty() {
            details["git_commits"] = commits.join(" ").into();
        }
        json!({"dataset_name": self.dataset, "source_type": "other", "additional_details": details})
    }

    fn generation(&self, job: &SavedJob) -> Value {
        let (mut args, details) = generation(job, self.agent);
        if !self.tools.is_empty() {
            let tool = |tool: &ToolDef| json!({"name": tool.name, "description": tool.description});
            let tools: Vec<_> = self.tools.iter().map(tool).collect();
            args.insert("agentic_eval_config".to_owned(), json!({"available_tools": tools}));
        }
        let mut config = Map::new();
        config.insert("generation_args".to_owned(), Value::Object(args));
        if !details.is_empty() {
            config.insert("additional_details".to_owned(), Value::Object(details));
        }
        Value::Object(config)
    }
}

/// Describes the reward. A benchmark metric is between 0 and 1; rewards of tests and rubrics can be any number.
fn reward_metric(job: &SavedJob) -> Value {
    let metric =
        job.config()["evaluation_metric"].as_str().filter(|_| job.header().kind == JobKind::Benchmark);
    let (min, max) = match metric {
        Some(_) => (json!(0), json!(1)),
        None => (json!("-Infinity"), json!("Infinity")),
    };
    json!({
        "evaluation_description": "The mean reward over trials",
        "metric_id": metric.unwrap_or("rollout.mean_reward"),
        "metric_name": metric.unwrap_or("Mean reward"),
        "metric_kind": metric.unwrap_or("reward"),
        "lower_is_better": false,
        "score_type": "continuous",
        "min_score": min,
        "max_score": max,
    })
}

fn reward_score(figures: &Figures, bootstrap: Resampling) -> Value {
    let scores = &figures.headline;
    let mean = scores.mean_reward;
    let mut uncertainty = json!({"num_samples": scores.trials});
    if let Some(estimate) = mean.and_then(|mean| mean.clustered) {
        uncertainty["standard_error"] =
            json!({"value": estimate.standard_error, "method": "clustered by task"});
    }
    if let Some(estimate) = mean.and_then(|mean| mean.bootstrap) {
        uncertainty["confidence_interval"] = interval(estimate.interval, "bootstrap over tasks");
        uncertainty["num_bootstrap_samples"] = json!(bootstrap.resamples);
    }
    if let Some(plain) = mean.and_then(|mean| mean.plain) {
        uncertainty["standard_deviation"] = json!(plain.standard_error * (scores.trials as f64).sqrt());
    }
    let completed = figures.failed_excluded.mean_reward.map(|mean| mean.mean);
    json!({
        "score": mean.map(|mean| mean.mean),
        "details": details(figures, completed),
        "uncertainty": uncertainty,
    })
}

fn pass_score(figures: &Figures) -> Value {
    let scores = &figures.headline;
    let mut uncertainty = json!({"num_samples": scores.trials});
    if let Some(rate) = &scores.pass_rate {
        uncertainty["confidence_interval"] = interval(rate.interval, "Wilson");
    }
    let completed = figures.failed_excluded.pass_rate.map(|rate| rate.rate);
    json!({
        "score": scores.pass_rate.map(|rate| rate.rate),
        "details": details(figures, completed),
        "uncertainty": uncertainty,
    })
}

fn interval(interval: Interval, method: &str) -> Value {
    json!({"lower": interval.low, "upper": interval.high, "confidence_level": 0.95, "method": method})
}

/// Returns the number of trials, and the score over completed trials.
fn details(figures: &Figures, completed: Option<f64>) -> Value {
    let mut details = json!({
        "tasks": figures.tasks.to_string(),
        "completed_trials": figures.completed.to_string(),
        "failed_trials": figures.failed.to_string(),
        "failed_trials_counted_as_zero": (figures.failed - figures.excluded).to_string(),
        "excluded_trials": figures.excluded.to_string(),
    });
    if let Some(score) = completed {
        details["score_over_completed_trials"] = score.to_string().into();
    }
    details
}
