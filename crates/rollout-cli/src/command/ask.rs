//! `rollout ask`: asks one question, and prints only the answer to stdout.

use std::io::Write as _;

use rollout::{
    benchmark::{QuickError, QuickOptions, QuickResult, Trajectory, quick_rollout},
    config::is_loopback,
    model::RolloutError,
    record::redact::Redactor,
};

use super::load;
use crate::{
    args::{Answer, Ask},
    exit::{Exit, Failure},
    report::text::{BAD, BOLD, DIM, GOOD, first_line, fit, paint},
    signals,
};

/// How many characters of a call's parameters are printed.
const PARAMETER_CHARS: usize = 100;

/// Asks the question, and prints the answer.
pub(crate) async fn run(args: Ask) -> Result<Exit, Failure> {
    let cancel = signals::listen()?;
    let base_url = args.base_url.filter(|url| !url.trim().is_empty()).ok_or_else(|| {
        let hint = "set OPENAI_BASE_URL, or pass --base-url, such as https://api.openai.com/v1";
        Failure::from("no URL of the model's server").hint(Some(hint))
    })?;
    let api_key = load::variable("OPENAI_API_KEY").unwrap_or_default();
    if api_key.is_empty() && !is_loopback(&base_url) {
        let hint = "set OPENAI_API_KEY to the API key of the server";
        return Err(Failure::from("no API key for the model's server").hint(Some(hint)));
    }
    let sandbox_token = match &args.sandbox_token_file {
        Some(path) => {
            std::fs::read_to_string(path).map(|token| token.trim().to_owned()).map_err(|error| {
                Failure::from(format!("cannot read the token in {}: {error}", path.display()))
            })?
        }
        None => String::new(),
    };
    let question = match args.question.as_str() {
        "-" => std::io::read_to_string(std::io::stdin())?.trim().to_owned(),
        _ => args.question,
    };
    if question.trim().is_empty() {
        return Err(Failure::from("the question is empty"));
    }
    let redactor = Redactor::new([api_key.as_str(), sandbox_token.as_str()]);
    let options = QuickOptions {
        tools: args.tools,
        model_name: args.model,
        api_key,
        base_url,
        max_turns: args.max_turns,
        sandbox_url: args.sandbox_url,
        sandbox_token,
        system_prompt: args.system,
        cancel: cancel.graceful.clone(),
    };
    let result = tokio::select! {
        biased;
        () = cancel.now.cancelled() => return Ok(Exit::Cancelled),
        result = quick_rollout(&question, options) => match result {
            Err(QuickError::Rollout(RolloutError::Cancelled)) => return Ok(Exit::Cancelled),
            result => result.map_err(failure)?,
        },
    };
    match args.output {
        Answer::Json => super::print(&redactor.json(serde_json::to_value(&result)?).to_string())?,
        Answer::Human => show(&result, args.show_trajectory, &redactor)?,
    }
    Ok(if result.success { Exit::Success } else { Exit::Unmet })
}

fn show(result: &QuickResult, whole: bool, redactor: &Redactor) -> Result<(), Failure> {
    if let Some(trajectory) = &result.trajectory {
        let text = if whole { conversation(trajectory) } else { calls(trajectory) };
        if !text.is_empty() {
            writeln!(anstream::stderr().lock(), "{}", redactor.text(&text))?;
        }
    }
    match &result.error {
        Some(error) => {
            writeln!(anstream::stderr().lock(), "{} {}", paint(BAD, "error:"), redactor.text(error))?;
        }
        None => super::print(&redactor.text(&result.answer))?,
    }
    Ok(())
}

/// Returns one short line for each tool call.
fn calls(trajectory: &Trajectory) -> String {
    let lines = trajectory.tool_calls.iter().map(|call| {
        let parameters = serde_json::Value::Object(call.parameters.clone()).to_string();
        let mark = if call.success { paint(GOOD, "✓") } else { paint(BAD, "✗") };
        let error = call.error.as_deref().map(|error| format!("  {}", first_line(error))).unwrap_or_default();
        let parameters = paint(DIM, &fit(&first_line(&parameters), PARAMETER_CHARS));
        format!("{mark} {}  {parameters}{error}", first_line(&call.tool_name))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the whole conversation as text.
fn conversation(trajectory: &Trajectory) -> String {
    let mut lines = Vec::new();
    for message in &trajectory.messages {
        lines.push(paint(BOLD, message.role.as_str()));
        let text = message.text();
        lines.extend(text.lines().map(first_line));
        let calls = message.tool_calls.iter();
        lines.extend(calls.map(|call| first_line(&format!("→ {} {}", call.name, call.arguments))));
        lines.push(String::new());
    }
    lines.pop();
    lines.join("\n")
}

fn failure(error: QuickError) -> Failure {
    let hint = match &error {
        QuickError::Setup(error) => error.hint(),
        QuickError::Rollout(_) => Some("set OPENAI_API_KEY to a valid key for this server"),
    };
    Failure::from(error).hint(hint)
}
