//! What the name of a model says about the requests that it accepts.
//!
//! Providers reject parameters that a model does not know, and no dialect says which model knows what. So the names
//! decide where a parameter would make the request fail. An unknown name gets the plainest request.

use super::neutral::Reasoning;

/// The name without a provider in front of it.
fn bare(model: &str) -> &str {
    model.rsplit('/').next().unwrap_or(model)
}

/// Whether this is a model of OpenAI that reasons: it takes an effort and `max_completion_tokens`, and neither
/// temperature nor stop sequences.
pub(super) fn is_openai_reasoner(model: &str) -> bool {
    let model = bare(model);
    let version =
        |rest: &str| rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse::<u32>().ok());
    match (model.strip_prefix("gpt-"), model.strip_prefix('o')) {
        (Some(rest), _) => version(rest).is_some_and(|version| version >= 5) && !model.contains("chat"),
        (None, Some(rest)) => version(rest).is_some(),
        (None, None) => model.starts_with("codex"),
    }
}

/// How a Claude model is asked to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaudeThinking {
    /// Not at all.
    Never,
    /// With a number of tokens.
    Budget,
    /// By itself, with an effort.
    Adaptive,
}

/// How this model is asked to think. Models from 4.6 on decide by themselves.
pub(super) fn claude_thinking(model: &str) -> ClaudeThinking {
    let model = bare(model);
    if !model.starts_with("claude") {
        return ClaudeThinking::Never;
    }
    let with_budget = ["-3-7", "-4-0", "-4-1", "-4-5", "-4-2025"];
    match () {
        () if with_budget.iter().any(|version| model.contains(version)) => ClaudeThinking::Budget,
        () if model.contains("claude-3") || model.contains("claude-2") => ClaudeThinking::Never,
        () => ClaudeThinking::Adaptive,
    }
}

/// The output tokens to allow when the client sets no limit. Messages requires one.
pub(super) fn claude_max_tokens(model: &str) -> u64 {
    match bare(model) {
        model if model.starts_with("claude-3-7") => 32_000,
        model if model.starts_with("claude-3-5") => 8192,
        model if model.starts_with("claude-3") => 4096,
        _ => 32_000,
    }
}

/// How a Gemini model is asked to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GeminiThinking {
    Never,
    /// With a number of tokens: 2.5.
    Budget,
    /// With a level: 3 and later. These also require signatures of function calls.
    Level,
}

/// How this model is asked to think.
pub(super) fn gemini_thinking(model: &str) -> GeminiThinking {
    match bare(model).strip_prefix("gemini-") {
        Some(rest) if rest.starts_with("2.5") => GeminiThinking::Budget,
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) && !rest.starts_with(['1', '2']) => {
            GeminiThinking::Level
        }
        _ => GeminiThinking::Never,
    }
}

/// The tokens of an effort, for models that take a number.
pub(super) fn budget_of(effort: &str) -> u64 {
    match effort {
        "none" => 0,
        "minimal" | "low" => 2048,
        "medium" => 8192,
        _ => 16_384,
    }
}

/// The effort of a number of tokens, for models that take a word.
pub(super) fn effort_of(budget: u64) -> &'static str {
    match budget {
        0 => "none",
        1..=4096 => "low",
        4097..=12_288 => "medium",
        _ => "high",
    }
}

/// The effort in a word that every model of OpenAI that reasons takes.
pub(super) fn openai_effort(reasoning: &Reasoning) -> Option<&str> {
    let effort = reasoning.effort.as_deref().or(reasoning.budget.map(effort_of));
    effort.map(|effort| match effort {
        "none" | "minimal" => "low",
        "max" => "high",
        effort => effort,
    })
}

/// The tokens that a Gemini model of version 2.5 accepts: Pro cannot be kept from thinking.
pub(super) fn gemini_budget(model: &str, budget: u64) -> u64 {
    let least = if model.contains("pro") { 128 } else { 0 };
    budget.clamp(least, 24_576)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_show_how_they_reason() {
        for (model, reasons) in [
            ("gpt-5.5", true),
            ("openai/gpt-5-codex", true),
            ("o3-mini", true),
            ("gpt-10", true),
            ("gpt-5-chat-latest", false),
            ("gpt-4.1", false),
            ("openchat-3.5", false),
            ("Qwen/Qwen3-8B", false),
            ("", false),
        ] {
            assert_eq!(is_openai_reasoner(model), reasons, "{model}");
        }
        for (model, thinking) in [
            ("claude-sonnet-4-5", ClaudeThinking::Budget),
            ("claude-opus-4-20250514", ClaudeThinking::Budget),
            ("anthropic/claude-opus-4-6", ClaudeThinking::Adaptive),
            ("claude-opus-5", ClaudeThinking::Adaptive),
            ("claude-3-5-haiku-20241022", ClaudeThinking::Never),
            ("glm-5", ClaudeThinking::Never),
        ] {
            assert_eq!(claude_thinking(model), thinking, "{model}");
        }
        for (model, thinking) in [
            ("gemini-2.5-pro", GeminiThinking::Budget),
            ("gemini-2.0-flash", GeminiThinking::Never),
            ("gemini-3-pro-preview", GeminiThinking::Level),
            ("gemma-3", GeminiThinking::Never),
        ] {
            assert_eq!(gemini_thinking(model), thinking, "{model}");
        }
    }
}
