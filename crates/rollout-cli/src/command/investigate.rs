//! `rollout investigate`: a model explains why trials were not solved.

use std::sync::Arc;

use rollout::{
    config::{LoadedBenchmark, RolloutConfig},
    export::eval_log::Findings,
    investigate::{InvestigateError, InvestigateOptions, Investigated, Investigation, Which, investigate},
    model::{Model, build},
    record::redact::Redactor,
};

use super::load::{endpoint, variable};
use crate::{
    args::{Investigate, InvestigateOnly},
    exit::{Exit, Failure},
    report::text::{BAD, BOLD, DIM, ODD, count, dollars, first_line, paint},
};

/// Investigates the trials of a job, and prints the findings.
pub(crate) async fn run(args: &Investigate) -> Result<Exit, Failure> {
    let (model, secrets) = model(args)?;
    let options = InvestigateOptions {
        which: match args.only {
            InvestigateOnly::Unsolved => Which::Unsolved,
            InvestigateOnly::All => Which::All,
        },
        limit: args.limit,
        concurrency: args.concurrency,
        again: args.again,
    };
    let mut unshown = None;
    let each = |trial: &str, outcome: &Investigation| {
        if let Err(error) = super::print(&secrets.text(&line(trial, outcome))) {
            unshown.get_or_insert(error);
        }
    };
    let done = investigate(&args.directory, Arc::new(model), &secrets, options, each).await;
    let done = done.map_err(failed)?;
    if let Some(error) = unshown {
        return Err(error.into());
    }
    super::print(&report(&done))?;
    Ok(if done.refused + done.failed > 0 { Exit::Unmet } else { Exit::Success })
}

fn failed(error: InvestigateError) -> Failure {
    match &error {
        InvestigateError::Unauthorized(_) => {
            let hint = "pass the environment variable that contains the API key with --api-key-var";
            Failure::from(error).hint(Some(hint)).while_running()
        }
        InvestigateError::Log(cause) => {
            let hint = cause.hint();
            Failure::from(error).hint(hint)
        }
    }
}

/// Returns the model from the command line, and a redactor for its key.
fn model(args: &Investigate) -> Result<(Model, Redactor), Failure> {
    let hint = "pass --base-url, such as https://api.openai.com/v1, or set OPENAI_BASE_URL";
    let who = "the investigating model";
    let (base_url, api_key) = endpoint(args.base_url.as_ref(), args.api_key_var.as_ref(), who, hint)?;
    let config =
        RolloutConfig { model_name: args.model.clone(), base_url, api_key, ..RolloutConfig::default() };
    let loaded = LoadedBenchmark::new(config, &variable).map_err(|problems| {
        Failure::from("invalid settings of the investigating model").details(problems.render(true))
    })?;
    let secrets = Redactor::new(loaded.secrets.iter().map(String::as_str));
    Ok((build::model(&loaded.config.evaluator())?, secrets))
}

fn line(trial: &str, outcome: &Investigation) -> String {
    match outcome {
        Investigation::Found(Findings { difficulty, feasible, failure_root_cause, .. }) => {
            let feasible = match feasible {
                Some(true) => "feasible",
                Some(false) => "not feasible",
                None => "feasibility unknown",
            };
            let difficulty = first_line(difficulty.as_deref().unwrap_or("difficulty unknown"));
            let cause = failure_root_cause.as_deref().map(first_line).unwrap_or_default();
            format!("{} {}\n  {cause}", paint(BOLD, trial), paint(DIM, &format!("{difficulty}, {feasible}")))
                .trim_end()
                .to_owned()
        }
        Investigation::Refused(reason) => {
            format!("{} {} {}", paint(BOLD, trial), paint(ODD, "no usable answer:"), first_line(reason))
        }
        Investigation::Failed(error) => {
            format!("{} {} {}", paint(BOLD, trial), paint(BAD, "failed:"), first_line(&error.to_string()))
        }
    }
}

fn report(done: &Investigated) -> String {
    let used = done.usage;
    let mut lines = vec![format!("{} with new findings", count(done.found, "trial"))];
    let others = [
        (done.refused, "without findings: no usable answer in two requests"),
        (done.failed, "without findings: the model's server failed"),
        (done.skipped, "skipped: findings exist already; --again replaces them"),
    ];
    let others = others.iter().filter(|(number, _)| *number > 0);
    lines.extend(others.map(|(number, what)| format!("{} {what}", count(*number, "trial"))));
    if used.calls > 0 {
        let cost =
            used.cost.map_or_else(|| "unknown cost".to_owned(), |cost| format!("cost {}", dollars(cost)));
        let [input, output] = [used.input_tokens, used.output_tokens];
        lines.push(format!(
            "{}: {input} input tokens, {output} output tokens, {cost}",
            count(used.calls, "request")
        ));
    }
    lines.push(format!("written to {}", done.log.display()));
    format!("\n{}", lines.join("\n"))
}
