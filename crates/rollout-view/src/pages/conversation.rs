//! The conversation of a trial: messages, tool calls, images and patches.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rollout_core::{
    display::fine_span,
    message::{Content, Message, Role, ToolCall},
};
use rollout_record::saved::{ConversationStep, StepDetails};
use serde_json::Value;

use crate::{diff, files::image_kind, html::Html};

/// The most characters of a text that are shown.
const MAX_CHARS: usize = 60_000;

/// The most characters of the line that stands for a folded text.
const SUMMARY_CHARS: usize = 120;

/// The largest image that is shown, as base64.
const MAX_IMAGE_BYTES: usize = 8 << 20;

/// A step of the conversation.
#[derive(Debug)]
pub(crate) struct StepView {
    pub(crate) number: usize,
    pub(crate) role: String,
    pub(crate) class: &'static str,
    /// Tokens and times of a response.
    pub(crate) details: String,
    pub(crate) parts: Vec<PartView>,
}

/// A part of a step.
#[derive(Debug)]
pub(crate) struct PartView {
    /// The line that stands for the part while it is folded; None for a part that is always shown.
    pub(crate) fold: Option<Fold>,
    pub(crate) content: Html,
    /// Whether the content is preformatted.
    pub(crate) is_code: bool,
}

/// What a folded part is.
#[derive(Debug)]
pub(crate) struct Fold {
    pub(crate) label: String,
    pub(crate) summary: String,
}

pub(crate) fn steps(steps: &[ConversationStep]) -> Vec<StepView> {
    steps.iter().map(step).collect()
}

fn step(step: &ConversationStep) -> StepView {
    let mut parts = message(&step.message);
    for answer in &step.answers {
        parts.extend(message(answer));
    }
    StepView {
        number: step.number,
        role: step.message.role.as_str().to_owned(),
        class: class(&step.message.role),
        details: step.details.as_ref().map(details).unwrap_or_default(),
        parts,
    }
}

fn class(role: &Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
        Role::Text | Role::Other(_) => "other",
    }
}

fn details(details: &StepDetails) -> String {
    let mut parts = Vec::new();
    if let Some(usage) = &details.usage {
        parts.push(format!("{} tokens in, {} out", usage.input_tokens(), usage.completion_tokens));
    }
    parts.push(fine_span(details.model_sec));
    parts.extend(details.tools_sec.map(|seconds| format!("tools {}", fine_span(seconds))));
    let unusual = details.finish_reason.as_deref().filter(|reason| !["stop", "tool_calls"].contains(reason));
    parts.extend(unusual.map(|reason| format!("stopped by {reason}")));
    parts.join(" · ")
}

fn message(message: &Message) -> Vec<PartView> {
    let mut parts = Vec::new();
    if let Some(reasoning) = message.reasoning_content.as_deref().filter(|text| !text.trim().is_empty()) {
        parts.push(folded("reasoning", reasoning));
    }
    match &message.content {
        Some(Content::Text(text)) => parts.extend(text_part(&message.role, text)),
        Some(Content::Parts(values)) => {
            parts.extend(values.iter().filter_map(|value| part(&message.role, value)))
        }
        None => {}
    }
    parts.extend(message.tool_calls.iter().map(call));
    parts
}

fn text_part(role: &Role, text: &str) -> Option<PartView> {
    if text.trim().is_empty() {
        return None;
    }
    Some(match role {
        Role::Tool => folded("result", text),
        Role::System => folded("prompt", text),
        _ => PartView { fold: None, content: rendered(text), is_code: diff::is_diff(text) },
    })
}

fn part(role: &Role, value: &Value) -> Option<PartView> {
    if let Some(text) = value.get("text").and_then(Value::as_str) {
        return text_part(role, text);
    }
    let url = value.pointer("/image_url/url").or_else(|| value.get("image_url")).and_then(Value::as_str);
    if let Some(url) = url {
        return Some(PartView { fold: None, content: image(url), is_code: false });
    }
    let kind = value.get("type").and_then(Value::as_str).unwrap_or("part");
    Some(folded(kind, &serde_json::to_string_pretty(value).unwrap_or_default()))
}

/// An image whose data is in the message. Others would be loaded from elsewhere, so only their address is shown.
fn image(url: &str) -> Html {
    let data = url.strip_prefix("data:").and_then(|data| data.split_once(";base64,"));
    let bytes = data
        .filter(|(_, base64)| base64.len() <= MAX_IMAGE_BYTES)
        .and_then(|(_, base64)| BASE64_STANDARD.decode(base64).ok());
    let mut html = Html::default();
    match bytes.as_deref().and_then(|bytes| Some((image_kind(bytes)?, bytes))) {
        Some((kind, bytes)) => {
            let base64 = BASE64_STANDARD.encode(bytes);
            html.push_format(format_args!(
                "<img class=\"picture\" alt=\"image\" loading=\"lazy\" src=\"data:image/{kind};base64,{base64}\">"
            ));
        }
        None => {
            html.push_markup("<span class=\"dim\">image ");
            html.push_text(&rollout_core::text::cut(url, SUMMARY_CHARS));
            html.push_markup("</span>");
        }
    }
    html
}

/// A tool call, folded. The line shows the argument that says most.
fn call(call: &ToolCall) -> PartView {
    let arguments: Option<Value> = serde_json::from_str(&call.arguments).ok();
    let mut content = Html::default();
    let main = match &arguments {
        Some(Value::Object(map)) => {
            for (name, value) in map {
                content.push_markup("<span class=\"key\">");
                content.push_text(name);
                content.push_markup("</span> ");
                match value {
                    Value::String(text) if text.contains('\n') => {
                        content.push_markup("\n");
                        content.push(&rendered(text));
                    }
                    Value::String(text) => content.push(&rendered(text)),
                    other => content.push_text(&serde_json::to_string_pretty(other).unwrap_or_default()),
                }
                content.push_markup("\n");
            }
            let main = ["command", "cmd", "code", "path", "file_path", "query", "url"];
            let named = main.iter().find_map(|name| map.get(*name)?.as_str());
            named.or_else(|| map.values().find_map(Value::as_str)).unwrap_or_default().to_owned()
        }
        _ => {
            content.push(&rendered(&call.arguments));
            call.arguments.clone()
        }
    };
    PartView {
        fold: Some(Fold { label: call.name.clone(), summary: first_line(&main) }),
        content,
        is_code: true,
    }
}

fn folded(label: &str, text: &str) -> PartView {
    PartView {
        fold: Some(Fold { label: label.to_owned(), summary: first_line(text) }),
        content: rendered(text),
        is_code: true,
    }
}

fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    rollout_core::text::cut(line, SUMMARY_CHARS)
}

/// A text as markup: a patch, or output with colours. A very long text is cut.
fn rendered(text: &str) -> Html {
    let end = text.char_indices().nth(MAX_CHARS).map_or(text.len(), |(end, _)| end);
    let shown = &text[..end];
    let mut html = if diff::is_diff(shown) { diff::render(shown) } else { crate::ansi::render(shown) };
    if end < text.len() {
        html.push_format(format_args!(
            "\n<span class=\"dim\">{} more characters in the file</span>",
            text.len() - end
        ));
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_images_with_their_own_data_are_loaded() {
        let png = BASE64_STANDARD.encode(b"\x89PNG\r\n\x1a\nrest");
        let shown = image(&format!("data:text/html;base64,{png}")).to_string();
        assert!(shown.contains("src=\"data:image/png;base64,"), "{shown}");
        for url in ["https://example.org/a.png", "javascript:alert(1)", "data:image/png;base64,PHNjcmlwdD4="]
        {
            assert!(!image(url).to_string().contains("<img"), "{url}");
        }
    }

    #[test]
    fn the_line_of_a_call_is_its_command() {
        let view = call(&ToolCall::new("1", "bash", r#"{"timeout":3,"command":"ls -l\npwd"}"#));
        let fold = view.fold.unwrap();
        assert_eq!((fold.label.as_str(), fold.summary.as_str()), ("bash", "ls -l"));
        assert!(view.content.to_string().contains("ls -l\npwd"));
        assert_eq!(call(&ToolCall::new("1", "bash", "not json")).fold.unwrap().summary, "not json");
    }
}
