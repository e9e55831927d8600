//! A replacement for a real tokeniser: words are tokens.
//!
//! The prompt of a later turn begins with the tokens of the previous prompt and completion, as with a chat
//! template that does not change earlier messages.

use serde_json::{Value, json};

use super::{
    reply::{ScriptedMessage, Tokens},
    request::text_of,
};

/// Ends every message.
const END: u32 = 2;

/// The words of a text, each with the following spaces.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(' ').filter(|word| !word.is_empty())
}

/// The tokens of a prompt, and then those that begin the model's message.
pub(super) fn prompt_ids(body: &Value) -> Vec<u32> {
    // A prompt may be given as tokens.
    if let Some(tokens) = body.get("tokens") {
        return serde_json::from_value(tokens.clone()).unwrap_or_default();
    }
    let mut ids = message_ids(body);
    ids.push(id("assistant"));
    ids
}

/// The answer of `/tokenize`.
pub(super) fn tokenized(body: &Value) -> Value {
    let mut ids = message_ids(body);
    if body["add_generation_prompt"] == true {
        ids.push(id("assistant"));
    }
    json!({"count": ids.len(), "max_model_len": 1 << 20, "tokens": ids})
}

fn message_ids(body: &Value) -> Vec<u32> {
    let mut ids = Vec::new();
    // Anthropic's dialect has a separate field for the system message.
    if let Some(system) = body.get("system") {
        ids.push(id("system"));
        ids.extend(words(&text_of(system)).map(id));
        ids.push(END);
    }
    for message in body["messages"].as_array().into_iter().flatten() {
        ids.push(id(message["role"].as_str().unwrap_or_default()));
        ids.extend(words(&text_of(&message["content"])).map(id));
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            ids.push(id(function["name"].as_str().unwrap_or_default()));
            ids.extend(words(function["arguments"].as_str().unwrap_or_default()).map(id));
        }
        ids.push(END);
    }
    ids
}

/// The tokens of a reply: those given by the script, or its words.
pub(super) fn tokens(said: &ScriptedMessage, prompt: &[u32]) -> Tokens {
    if let Some(tokens) = &said.tokens {
        return tokens.clone();
    }
    let mut completion: Vec<u32> = words(said.text.as_deref().unwrap_or_default()).map(id).collect();
    for call in &said.calls {
        completion.push(id(&call.name));
        completion.extend(words(&call.arguments).map(id));
    }
    completion.push(END);
    let logprobs = completion.iter().map(|id| f64::from(id % 100) / -100.0).collect();
    Tokens { prompt: prompt.to_vec(), completion, logprobs }
}

/// A stable number of a word (FNV-1a), above those of special tokens.
fn id(word: &str) -> u32 {
    let hash =
        word.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    16 + hash % 50_000
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_next_prompt_begins_with_all_previous_messages() {
        let first = json!([{"role": "user", "content": "What is 2+2?"}]);
        let prompt = prompt_ids(&json!({"messages": first}));
        let said = ScriptedMessage { text: Some("It is 4.".to_owned()), ..ScriptedMessage::default() };
        let reply = tokens(&said, &prompt);
        let next = prompt_ids(&json!({"messages": [
            {"role": "user", "content": "What is 2+2?"},
            {"role": "assistant", "content": "It is 4."},
            {"role": "user", "content": "Sure?"},
        ]}));
        let so_far = [reply.prompt, reply.completion].concat();
        assert_eq!(next[..so_far.len()], so_far);
        assert!(next.len() > so_far.len());
    }
}
