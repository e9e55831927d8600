//! Token ids and log-probabilities in a response.
//!
//! vLLM adds ids to Chat Completions on request; OpenAI, vLLM and Google give log-probabilities.

use rollout_core::response::ResponseTokens;
use serde_json::{Map, Value, json};

use crate::Dialect;

/// What vLLM writes in the place of a token's text on request.
const TOKEN_ID: &str = "token_id:";

/// What the agent did not ask for, and does not get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Extras {
    /// The last chunk of a stream of Chat Completions, which has only the usage.
    pub(crate) usage_chunk: bool,
    /// Log-probabilities.
    pub(crate) logprobs: bool,
    /// Token ids.
    pub(crate) token_ids: bool,
}

impl Extras {
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }

    pub(crate) fn has_tokens(self) -> bool {
        self.logprobs || self.token_ids
    }
}

/// The tokens of a whole response, as far as the upstream gave them. None if it gave none.
pub(crate) fn find(dialect: Dialect, body: &Value) -> Option<ResponseTokens> {
    let mut tokens = ResponseTokens::default();
    match dialect {
        Dialect::Chat => {
            let choice = body.pointer("/choices/0")?;
            let ids = |places: &[Option<&Value>]| places.iter().flatten().find_map(|value| read_ids(value));
            let message = choice.get("message");
            let in_message = |key| message.and_then(|message| message.get(key));
            tokens.prompt_ids = ids(&[
                body.get("prompt_token_ids"),
                choice.get("prompt_token_ids"),
                in_message("prompt_token_ids"),
            ])
            .unwrap_or_default();
            let logprobs = choice.pointer("/logprobs/content").and_then(Value::as_array);
            tokens.completion_logprobs = read_logprobs(logprobs, "logprob");
            tokens.completion_ids = ids(&[
                choice.get("token_ids"),
                choice.get("output_ids"),
                in_message("token_ids"),
                in_message("completion_token_ids"),
            ])
            .or_else(|| ids_in_texts(logprobs?))
            .unwrap_or_default();
        }
        Dialect::Responses => {
            let output = body.get("output").and_then(Value::as_array)?;
            let contents = output.iter().filter_map(|item| item.get("content")?.as_array()).flatten();
            for content in contents {
                let logprobs = content.get("logprobs").and_then(Value::as_array);
                tokens.completion_logprobs.extend(read_logprobs(logprobs, "logprob"));
            }
        }
        Dialect::Gemini => {
            let chosen =
                body.pointer("/candidates/0/logprobsResult/chosenCandidates").and_then(Value::as_array);
            tokens.completion_logprobs = read_logprobs(chosen, "logProbability");
            let ids: Option<Vec<u32>> = chosen?.iter().map(|token| read_id(token.get("tokenId")?)).collect();
            tokens.completion_ids = ids.unwrap_or_default();
        }
        Dialect::Messages => {}
    }
    (tokens != ResponseTokens::default()).then_some(tokens)
}

fn read_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// A list of ids. A list with something else in it is no list of ids.
fn read_ids(value: &Value) -> Option<Vec<u32>> {
    let ids: Option<Vec<u32>> = value.as_array()?.iter().map(read_id).collect();
    ids.filter(|ids| !ids.is_empty())
}

fn read_logprobs(list: Option<&Vec<Value>>, key: &str) -> Vec<f64> {
    let logprobs: Option<Vec<f64>> =
        list.into_iter().flatten().map(|token| token.get(key)?.as_f64()).collect();
    logprobs.unwrap_or_default()
}

fn ids_in_texts(list: &[Value]) -> Option<Vec<u32>> {
    let id = |token: &Value| token.get("token")?.as_str()?.strip_prefix(TOKEN_ID)?.parse().ok();
    list.iter().map(id).collect::<Option<Vec<u32>>>().filter(|ids| !ids.is_empty())
}

/// Takes the token ids and log-probabilities that the client did not ask for out of a response or of an event.
pub(crate) fn remove(dialect: Dialect, extras: Extras, body: &mut Value) {
    let take = |value: Option<&mut Value>, keys: &[&str]| {
        if let Some(fields) = value.and_then(Value::as_object_mut) {
            keys.iter().for_each(|key| drop(fields.shift_remove(*key)));
        }
    };
    match dialect {
        Dialect::Chat => {
            const IDS: [&str; 4] = ["prompt_token_ids", "token_ids", "output_ids", "completion_token_ids"];
            let ids: &[&str] = if extras.token_ids { &IDS } else { &[] };
            take(Some(&mut *body), ids);
            for choice in body.get_mut("choices").and_then(Value::as_array_mut).into_iter().flatten() {
                take(Some(&mut *choice), ids);
                if let Some(logprobs) = choice.get_mut("logprobs").filter(|_| extras.logprobs) {
                    *logprobs = Value::Null;
                }
                for key in ["message", "delta"] {
                    take(choice.get_mut(key), ids);
                }
            }
        }
        Dialect::Responses => {
            let empty = |fields: &mut Map<String, Value>| {
                if fields.contains_key("logprobs") {
                    fields.insert("logprobs".to_owned(), json!([]));
                }
            };
            for path in ["/part", "/item", "/response"] {
                let Some(place) = body.pointer_mut(path) else { continue };
                remove_from_output(place, &empty);
            }
            remove_from_output(body, &empty);
        }
        Dialect::Gemini => {
            for candidate in body.get_mut("candidates").and_then(Value::as_array_mut).into_iter().flatten() {
                take(Some(candidate), &["logprobsResult", "avgLogprobs"]);
            }
        }
        Dialect::Messages => {}
    }
}

/// Empties the log-probabilities of a response, an item or a part.
fn remove_from_output(place: &mut Value, empty: &impl Fn(&mut Map<String, Value>)) {
    place.as_object_mut().into_iter().for_each(empty);
    for part in place.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten() {
        part.as_object_mut().into_iter().for_each(empty);
    }
    for item in place.get_mut("output").and_then(Value::as_array_mut).into_iter().flatten() {
        for part in item.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten() {
            part.as_object_mut().into_iter().for_each(empty);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Extras = Extras { usage_chunk: false, logprobs: true, token_ids: true };

    #[test]
    fn the_tokens_of_vllm_are_found_and_removed() {
        let mut body = json!({"prompt_token_ids": [1, 2], "choices": [{"index": 0, "token_ids": [3, 4],
            "message": {"content": "ab"}, "logprobs": {"content": [{"token": "a", "logprob": -0.5},
                {"token": "b", "logprob": -0.25}]}}]});
        let found = find(Dialect::Chat, &body).unwrap();
        assert_eq!((found.prompt_ids, found.completion_ids), (vec![1, 2], vec![3, 4]));
        assert_eq!(found.completion_logprobs, [-0.5, -0.25]);
        remove(Dialect::Chat, ALL, &mut body);
        assert_eq!(body, json!({"choices": [{"index": 0, "message": {"content": "ab"}, "logprobs": null}]}));
        assert_eq!(find(Dialect::Chat, &body), None);
    }

    #[test]
    fn ids_in_the_place_of_texts_are_read() {
        let body = json!({"choices": [{"logprobs": {"content": [
            {"token": "token_id:7", "logprob": -1.0}, {"token": "token_id:8", "logprob": -2.0}]}}]});
        assert_eq!(find(Dialect::Chat, &body).unwrap().completion_ids, [7, 8]);
    }

    #[test]
    fn other_dialects_give_log_probabilities() {
        let mut response = json!({"output": [{"type": "message", "content": [
            {"type": "output_text", "text": "a", "logprobs": [{"token": "a", "logprob": -0.5}]}]}]});
        assert_eq!(find(Dialect::Responses, &response).unwrap().completion_logprobs, [-0.5]);
        remove(Dialect::Responses, ALL, &mut response);
        assert_eq!(find(Dialect::Responses, &response), None);
        let mut event =
            json!({"type": "response.output_text.delta", "delta": "a", "logprobs": [{"logprob": -0.5}]});
        remove(Dialect::Responses, ALL, &mut event);
        assert_eq!(event["logprobs"], json!([]));

        let mut gemini = json!({"candidates": [{"avgLogprobs": -0.5, "logprobsResult": {"chosenCandidates": [
            {"token": "a", "tokenId": 5, "logProbability": -0.5}]}}]});
        let found = find(Dialect::Gemini, &gemini).unwrap();
        assert_eq!((found.completion_ids, found.completion_logprobs), (vec![5], vec![-0.5]));
        remove(Dialect::Gemini, ALL, &mut gemini);
        assert_eq!(gemini, json!({"candidates": [{}]}));
    }

    #[test]
    fn what_is_no_list_of_tokens_is_none() {
        for body in [
            json!({}),
            json!({"choices": [{"token_ids": [1, -1], "logprobs": {"content": [{"logprob": "x"}]}}]}),
            json!({"choices": [{"token_ids": [4294967296u64]}]}),
            json!({"output": [7], "candidates": [7]}),
        ] {
            for dialect in [Dialect::Chat, Dialect::Responses, Dialect::Messages, Dialect::Gemini] {
                assert_eq!(find(dialect, &body), None, "{body}");
                remove(dialect, ALL, &mut body.clone());
            }
        }
    }
}
