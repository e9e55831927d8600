//! What a request makes the provider fetch or run: it happens outside of the environment, past its network rules.
//!
//! Providers add tools of their own all the time, so the lists here name what is known to run at the client; anything
//! else counts as the provider's.

use serde_json::{Map, Value, json};

use crate::Dialect;

/// What stands in the place of an image or a file that the provider would have to fetch.
const REMOVED: &str = "[removed: the model server may not fetch this URL: ";

/// The most names that are reported: a request may have any number of tools.
const NAMES: usize = 50;

/// Names what the provider would fetch or run, without changing the request.
#[cfg(test)]
fn find(dialect: Dialect, body: &Value) -> Vec<String> {
    remove(dialect, &mut body.clone())
}

/// Removes what the provider would fetch or run, and names it. URLs of images and files become text. Names are those of
/// the dialect, such as `web_search_20250305` or `googleSearch`, and `url` for a URL.
pub(crate) fn remove(dialect: Dialect, body: &mut Value) -> Vec<String> {
    let Some(fields) = body.as_object_mut() else { return Vec::new() };
    let mut removed = Vec::new();
    let options: &[&str] = match dialect {
        Dialect::Chat => &["web_search_options", "plugins"],
        Dialect::Messages => &["mcp_servers", "container"],
        Dialect::Responses | Dialect::Gemini => &[],
    };
    for option in options {
        let is_set = fields.get(*option).is_some_and(|value| !value.is_null() && *value != json!([]));
        if is_set {
            fields.shift_remove(*option);
            note(&mut removed, option);
        }
    }
    let had_tools = fields.get("tools").and_then(Value::as_array).is_some_and(|tools| !tools.is_empty());
    remove_from_list(dialect, fields.get_mut("tools"), &mut removed);
    if let (Dialect::Responses, Some(Value::Array(items))) = (dialect, fields.get_mut("input")) {
        for item in items {
            remove_from_list(dialect, item.get_mut("tools"), &mut removed);
        }
    }
    settle_choice(dialect, fields, had_tools, &removed);
    remove_urls(dialect, fields, &mut removed);
    removed
}

fn note(removed: &mut Vec<String>, name: &str) {
    if removed.len() < NAMES && !removed.iter().any(|known| known == name) {
        removed.push(name.chars().take(80).collect());
    }
}

fn remove_from_list(dialect: Dialect, tools: Option<&mut Value>, removed: &mut Vec<String>) {
    let Some(Value::Array(tools)) = tools else { return };
    tools.retain_mut(|tool| {
        let Some(fields) = tool.as_object_mut() else { return true };
        if dialect == Dialect::Gemini {
            fields.retain(|key, _| {
                let is_kept =
                    ["functionDeclarations", "function_declarations", "computerUse", "computer_use"]
                        .contains(&key.as_str());
                if !is_kept {
                    note(removed, key);
                }
                is_kept
            });
            return !fields.is_empty();
        }
        let is_kept = runs_at_client(dialect, fields);
        if !is_kept {
            let kind = fields.get("type").and_then(Value::as_str).unwrap_or("tool");
            note(removed, kind);
        } else if dialect == Dialect::Responses {
            // A namespace contains tools.
            remove_from_list(dialect, fields.get_mut("tools"), removed);
        }
        is_kept
    });
}

fn runs_at_client(dialect: Dialect, tool: &Map<String, Value>) -> bool {
    let text = |key: &str| tool.get(key).and_then(Value::as_str);
    let kind = text("type");
    match dialect {
        Dialect::Chat => kind.is_none_or(|kind| ["function", "custom"].contains(&kind)),
        Dialect::Responses => match kind.unwrap_or("function") {
            "function"
            | "custom"
            | "namespace"
            | "local_shell"
            | "apply_patch"
            | "computer"
            | "computer_use_preview" => true,
            "tool_search" => text("execution") == Some("client"),
            "shell" => tool.get("environment").is_some_and(|environment| environment["type"] == "local"),
            _ => false,
        },
        // A search among the request's own tools stays with the provider, but reaches nothing else.
        Dialect::Messages => kind.is_none_or(|kind| {
            let starts = ["bash_", "text_editor_", "computer_", "memory_", "tool_search_tool_"];
            kind == "custom" || starts.iter().any(|start| kind.starts_with(start))
        }),
        Dialect::Gemini => true,
    }
}

/// A choice among no tools, or of a tool that is gone, would be rejected.
fn settle_choice(dialect: Dialect, fields: &mut Map<String, Value>, had_tools: bool, removed: &[String]) {
    let has_tools = fields.get("tools").and_then(Value::as_array).is_some_and(|tools| !tools.is_empty());
    let choice = if dialect == Dialect::Gemini { "toolConfig" } else { "tool_choice" };
    if had_tools && !has_tools {
        for key in ["tools", choice, "parallel_tool_calls"] {
            fields.shift_remove(key);
        }
    } else if dialect == Dialect::Responses {
        let kind = fields.get(choice).and_then(|choice| choice["type"].as_str());
        if kind.is_some_and(|kind| removed.iter().any(|name| name == kind)) {
            fields.insert(choice.to_owned(), json!("auto"));
        }
    }
}

/// Replaces the URLs of images and files. They are in the content of messages, and in that of results in it.
fn remove_urls(dialect: Dialect, fields: &mut Map<String, Value>, removed: &mut Vec<String>) {
    let (messages, content) = match dialect {
        Dialect::Chat | Dialect::Messages => ("messages", "content"),
        Dialect::Responses => ("input", "content"),
        Dialect::Gemini => ("contents", "parts"),
    };
    let Some(Value::Array(messages)) = fields.get_mut(messages) else { return };
    for message in messages {
        for key in [content, "output"] {
            match message.get_mut(key) {
                Some(Value::Array(parts)) => {
                    parts.iter_mut().for_each(|part| remove_url(dialect, part, removed));
                }
                Some(part) => remove_url(dialect, part, removed),
                None => {}
            }
        }
    }
}

/// Replaces a part of a message that has a URL. Results of tools and documents have parts of their own.
fn remove_url(dialect: Dialect, part: &mut Value, removed: &mut Vec<String>) {
    let Some(url) = urls(dialect, part).find(|url| is_url(url)) else {
        const LISTS: [&str; 4] =
            ["/content", "/source/content", "/functionResponse/parts", "/function_response/parts"];
        for list in LISTS {
            let parts = part.pointer_mut(list).and_then(Value::as_array_mut);
            parts.into_iter().flatten().for_each(|part| remove_url(dialect, part, removed));
        }
        return;
    };
    let text = format!("{REMOVED}{}]", url.chars().take(500).collect::<String>());
    note(removed, "url");
    *part = match dialect {
        Dialect::Chat | Dialect::Messages => json!({"type": "text", "text": text}),
        Dialect::Responses => json!({"type": "input_text", "text": text}),
        Dialect::Gemini => json!({"text": text}),
    };
}

/// What may be a URL in a part of a message. Servers of Chat have fields of their own, such as `video_url`.
fn urls(dialect: Dialect, part: &Value) -> impl Iterator<Item = &str> {
    let fields = part.as_object().into_iter().flatten();
    let values = fields.flat_map(move |(key, value)| match (dialect, key.as_str()) {
        (Dialect::Chat, "file") => vec![&value["file_data"]],
        (Dialect::Chat | Dialect::Responses, key) if key.ends_with("_url") => vec![value, &value["url"]],
        (Dialect::Messages, "source") => vec![&value["url"]],
        (Dialect::Gemini, "fileData" | "file_data") => vec![&value["fileUri"], &value["file_uri"]],
        _ => Vec::new(),
    });
    values.filter_map(Value::as_str)
}

/// Whether a text is a URL that a server would fetch. Data in the form of a URL is not.
fn is_url(text: &str) -> bool {
    let text = text.trim_start().to_ascii_lowercase();
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    text.starts_with("http")
        || scheme.is_some_and(|scheme| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_provider_runs_is_removed_in_every_dialect() {
        for (dialect, body, names, left) in [
            (
                Dialect::Chat,
                json!({"tools": [{"type": "function", "function": {}}, {"type": "openrouter:web_search"}],
                       "web_search_options": {}}),
                vec!["web_search_options", "openrouter:web_search"],
                json!({"tools": [{"type": "function", "function": {}}]}),
            ),
            (
                Dialect::Responses,
                json!({"tools": [{"type": "web_search"}, {"type": "mcp", "server_url": "x"}, {"type": "local_shell"},
                        {"type": "tool_search", "execution": "client"}, {"type": "tool_search"},
                        {"type": "namespace", "tools": [{"type": "function"}, {"type": "web_search"}]}],
                       "tool_choice": {"type": "web_search"}}),
                vec!["web_search", "mcp", "tool_search"],
                json!({"tools": [{"type": "local_shell"}, {"type": "tool_search", "execution": "client"},
                        {"type": "namespace", "tools": [{"type": "function"}]}], "tool_choice": "auto"}),
            ),
            (
                Dialect::Responses,
                json!({"tools": [{"type": "namespace", "tools": [{"type": "function"}, {"type": "mcp"}]}]}),
                vec!["mcp"],
                json!({"tools": [{"type": "namespace", "tools": [{"type": "function"}]}]}),
            ),
            (
                Dialect::Messages,
                json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "auto"},
                       "mcp_servers": [{"url": "x"}]}),
                vec!["mcp_servers", "web_search_20250305"],
                json!({}),
            ),
            (
                Dialect::Messages,
                json!({"tools": [{"name": "Bash"}, {"type": "bash_20250124"}, {"type": "tool_search_tool_regex_20251119"}],
                       "mcp_servers": []}),
                vec![],
                json!({"tools": [{"name": "Bash"}, {"type": "bash_20250124"}, {"type": "tool_search_tool_regex_20251119"}],
                       "mcp_servers": []}),
            ),
            (
                Dialect::Gemini,
                json!({"tools": [{"functionDeclarations": [], "urlContext": {}}, {"googleSearch": {}}]}),
                vec!["urlContext", "googleSearch"],
                json!({"tools": [{"functionDeclarations": []}]}),
            ),
        ] {
            let mut body = body;
            assert_eq!(find(dialect, &body), names);
            assert_eq!(remove(dialect, &mut body), names);
            assert_eq!(body, left);
        }
    }

    #[test]
    fn urls_become_text_and_data_stays() {
        let url = "https://example.com/a.png";
        let data = "data:image/png;base64,iVBO";
        let chat = |part: Value| {
            let other = json!({"type": "image_url", "image_url": {"url": data}});
            (Dialect::Chat, json!({"messages": [{"content": [part, other]}]}))
        };
        let responses = |item: Value| {
            let other = json!({"content": [{"type": "input_image", "image_url": data}]});
            (Dialect::Responses, json!({"input": [item, other]}))
        };
        let messages = |part: Value| {
            let other = json!({"type": "image", "source": {"type": "base64", "data": data}});
            (Dialect::Messages, json!({"messages": [{"content": [part, other]}]}))
        };
        let gemini = |part: Value| {
            let other = json!({"inlineData": {"data": data}});
            (Dialect::Gemini, json!({"contents": [{"parts": [part, other]}]}))
        };
        let image = json!({"type": "image", "source": {"type": "url", "url": url}});
        for (dialect, mut body) in [
            chat(json!({"type": "image_url", "image_url": {"url": url}})),
            chat(json!({"type": "image_url", "image_url": url})),
            chat(json!({"type": "audio_url", "audio_url": {"url": url}})),
            chat(json!({"type": "video_url", "video_url": {"url": url}})),
            chat(json!({"type": "document_url", "document_url": url, "document_name": "a"})),
            chat(json!({"type": "file", "file": {"filename": "a.png", "file_data": url}})),
            responses(json!({"content": [{"type": "input_image", "image_url": url}]})),
            responses(json!({"output": [{"type": "input_file", "file_url": url}]})),
            responses(json!({"type": "computer_call_output",
                             "output": {"type": "computer_screenshot", "image_url": url}})),
            messages(image.clone()),
            messages(json!({"type": "tool_result", "content": [image]})),
            messages(json!({"type": "tool_result", "content": [
                {"type": "document", "source": {"type": "content", "content": [image]}}]})),
            gemini(json!({"fileData": {"fileUri": url}})),
            gemini(json!({"fileData": {"file_uri": url}})),
            gemini(json!({"file_data": {"fileUri": url}})),
            gemini(json!({"functionResponse": {"name": "f", "parts": [{"fileData": {"fileUri": url}}]}})),
        ] {
            let shown = body.to_string();
            assert_eq!(remove(dialect, &mut body), ["url"], "{shown}");
            let text = body.to_string();
            assert!(text.contains("may not fetch this URL: https://example.com/a.png]"), "{text}");
            assert!(text.contains("iVBO"), "{text}");
            assert_eq!(remove(dialect, &mut body), [""; 0]);
        }
    }

    #[test]
    fn every_kind_of_url_is_replaced_and_arguments_and_answers_of_tools_stay() {
        for url in [" HTTP://a/b", "https:/a", "gs://bucket/a", "file:///etc/passwd"] {
            let mut body = json!({"contents": [{"parts": [{"fileData": {"fileUri": url}}]}]});
            assert_eq!(remove(Dialect::Gemini, &mut body), ["url"], "{url}");
        }
        let url = "https://example.com";
        for (dialect, mut body) in [
            (Dialect::Chat, json!({"messages": [{"content": url}]})),
            (Dialect::Responses, json!({"input": [{"type": "function_call_output", "output": url}]})),
            (
                Dialect::Messages,
                json!({"messages": [{"content": [{"type": "tool_use", "input": {"source": {"url": url}}}]}]}),
            ),
            (
                Dialect::Gemini,
                json!({"contents": [{"parts": [{"functionCall": {"args": {"fileData": {"fileUri": url}}}}]}]}),
            ),
        ] {
            let before = body.clone();
            assert_eq!(remove(dialect, &mut body), [""; 0], "{before}");
            assert_eq!(body, before);
        }
    }
}
