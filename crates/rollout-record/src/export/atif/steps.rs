//! The steps of a conversation, and the images in it.

use serde_json::{Map, Value, json};

use super::format::{Answer, Call, ContentPart, ImageSource, Metrics, Observation, Said, Source, Step};
use crate::{
    export::chat::{self, Part, later},
    saved::{Conversation, Turn},
};
use rollout_core::{
    lenient_base64,
    message::{Content, Message, Role},
    moment,
    response::TokenUsage,
};

/// The image types of the format, and their file extensions.
const IMAGES: [(&str, &[&str]); 4] = [
    ("image/png", &["png"]),
    ("image/jpeg", &["jpg", "jpeg"]),
    ("image/gif", &["gif"]),
    ("image/webp", &["webp"]),
];

/// An image from a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    /// Its path, relative to the trajectory file.
    pub(super) path: String,
    pub(super) bytes: Vec<u8>,
}

/// Converts a conversation to steps. Images are written to `folder`.
pub(super) fn steps(conversation: &Conversation, folder: &str) -> (Vec<Step>, Vec<Image>) {
    let mut making = Making { folder, steps: Vec::new(), images: Vec::new() };
    let prompt = conversation.prompt.len();
    let mut now = conversation.started_at;
    let mut tools_sec = None;
    for (place, message) in conversation.messages().enumerate() {
        let turn = conversation.turns.iter().find(|turn| place >= prompt && turn.message == place - prompt);
        match (&message.role, place >= prompt) {
            (Role::Tool, _) => making.answer(message),
            (Role::Assistant, is_completion) | (Role::Text, is_completion @ true) => {
                now = now.map(|now| later(now, tools_sec.take()));
                let at = now.filter(|_| turn.is_some()).map(moment::text);
                making.agent(message, turn, at, !is_completion);
                now = now.map(|now| later(now, turn.map(|turn| turn.model_sec)));
                tools_sec = turn.and_then(|turn| turn.tools_sec);
            }
            (Role::System, _) => making.message(Source::System, message, Map::new()),
            (Role::User | Role::Text, _) => making.message(Source::User, message, Map::new()),
            (Role::Other(role), _) => {
                let source = if role == "developer" { Source::System } else { Source::User };
                making.message(source, message, Map::from_iter([("role".to_owned(), role.as_str().into())]));
            }
        }
    }
    (making.steps, making.images)
}

struct Making<'a> {
    folder: &'a str,
    steps: Vec<Step>,
    images: Vec<Image>,
}

impl Making<'_> {
    fn message(&mut self, source: Source, message: &Message, extra: Map<String, Value>) {
        let said = self.said(message.content.as_ref());
        self.step(source, said, extra);
    }

    fn agent(&mut self, message: &Message, turn: Option<&Turn>, at: Option<String>, is_example: bool) {
        let mut extra = Map::new();
        let mut unreadable = Vec::new();
        let mut call = |call: &rollout_core::message::ToolCall| {
            let arguments = chat::arguments(call).unwrap_or_else(|| {
                unreadable.push(call.id.clone());
                Map::from_iter([("arguments".to_owned(), call.arguments.as_str().into())])
            });
            Call { tool_call_id: call.id.clone(), function_name: call.name.clone(), arguments }
        };
        let calls: Vec<_> = message.tool_calls.iter().map(&mut call).collect();
        if !unreadable.is_empty() {
            extra.insert("calls_without_json_arguments".to_owned(), unreadable.into());
        }
        if is_example {
            extra.insert("is_example_of_the_prompt".to_owned(), true.into());
        }
        if let Some(reason) = turn.and_then(|turn| turn.finish_reason.as_deref()) {
            extra.insert("finish_reason".to_owned(), reason.into());
        }
        let said = self.said(message.content.as_ref());
        let step = self.step(Source::Agent, said, extra);
        step.timestamp = at;
        step.tool_calls = calls;
        step.reasoning_content = message.reasoning_content.clone();
        if let Some(turn) = turn {
            step.model_name = (!turn.model.is_empty()).then(|| turn.model.clone());
            step.metrics = turn.usage.as_ref().map(metrics);
        }
    }

    /// Adds a tool result to the step that called the tool: the last step, if it is one of the agent.
    fn answer(&mut self, message: &Message) {
        let content = self.said(message.content.as_ref());
        if self.steps.last().is_none_or(|step| step.source != Source::Agent) {
            self.step(Source::System, Said::Text(String::new()), Map::new());
        }
        let Some(step) = self.steps.last_mut() else { return };
        let asked = |id: &&String| step.tool_calls.iter().any(|call| call.tool_call_id == **id);
        let source_call_id = message.tool_call_id.as_ref().filter(asked).cloned();
        let observation = step.observation.get_or_insert_with(|| Observation { results: Vec::new() });
        observation.results.push(Answer { source_call_id, content });
    }

    fn step(&mut self, source: Source, message: Said, extra: Map<String, Value>) -> &mut Step {
        let step = Step {
            step_id: self.steps.len() + 1,
            timestamp: None,
            source,
            model_name: None,
            message,
            reasoning_content: None,
            tool_calls: Vec::new(),
            observation: None,
            metrics: None,
            extra,
        };
        self.steps.push(step);
        self.steps.last_mut().expect("a step was just added")
    }

    fn said(&mut self, content: Option<&Content>) -> Said {
        let mut parts = match content {
            None => return Said::Text(String::new()),
            Some(Content::Text(text)) => return Said::Text(text.clone()),
            Some(content) => chat::parts(content).into_iter().map(|part| self.part(part)).collect::<Vec<_>>(),
        };
        match parts.pop() {
            Some(ContentPart::Text { text }) if parts.is_empty() => Said::Text(text),
            last => {
                parts.extend(last);
                Said::Parts(parts)
            }
        }
    }

    fn part(&mut self, part: Part<'_>) -> ContentPart {
        match part {
            Part::Text(text) => ContentPart::Text { text: text.into_owned() },
            Part::Image(url) => match self.image(&url) {
                Some(source) => ContentPart::Image { source },
                None => {
                    let shown: String = url.chars().take(200).collect();
                    ContentPart::Text { text: format!("[image: {shown}]") }
                }
            },
        }
    }

    /// Returns the path and the type of an image, or None if the format does not support it.
    fn image(&mut self, url: &str) -> Option<ImageSource> {
        let Some(data) = url.strip_prefix("data:") else {
            let path = url.split(['?', '#']).next()?;
            let ending = path.rsplit_once('.')?.1.to_ascii_lowercase();
            let (media_type, _) = IMAGES.iter().find(|(_, endings)| endings.contains(&ending.as_str()))?;
            return Some(ImageSource { media_type: (*media_type).to_owned(), path: url.to_owned() });
        };
        let (kind, data) = data.split_once(";base64,")?;
        let (media_type, endings) = IMAGES.iter().find(|(media_type, _)| *media_type == kind)?;
        let path = format!("{}/{}.{}", self.folder, self.images.len() + 1, endings[0]);
        self.images.push(Image { path: path.clone(), bytes: lenient_base64::decode(data)? });
        Some(ImageSource { media_type: (*media_type).to_owned(), path })
    }
}

fn metrics(usage: &TokenUsage) -> Metrics {
    let beside =
        [("reasoning_tokens", usage.reasoning_tokens), ("cache_write_tokens", usage.cache_write_tokens)];
    Metrics {
        prompt_tokens: usage.input_tokens(),
        completion_tokens: usage.completion_tokens,
        cached_tokens: usage.cached_tokens,
        cost_usd: usage.cost,
        extra: beside
            .into_iter()
            .filter(|(_, tokens)| *tokens > 0)
            .map(|(name, tokens)| (name.to_owned(), json!(tokens)))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use rollout_core::message::ToolCall;

    fn content() -> impl Strategy<Value = Option<Content>> {
        let part = prop_oneof![
            any::<String>().prop_map(|text| json!({"type": "text", "text": text})),
            Just(json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}})),
            Just(json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,!"}})),
            "https://[a-z]{1,3}/[a-z]{1,3}(\\.png|\\.gif|\\.exe)?(\\?a=b\\.png)?"
                .prop_map(|url| json!({"type": "image_url", "image_url": {"url": url}})),
            Just(json!(["what is this"])),
        ];
        prop_oneof![
            Just(None),
            any::<String>().prop_map(|text| Some(Content::Text(text))),
            prop::collection::vec(part, 0..4).prop_map(|parts| Some(Content::Parts(parts))),
        ]
    }

    fn message() -> impl Strategy<Value = Arc<Message>> {
        let role = prop_oneof![
            Just(Role::System),
            Just(Role::User),
            Just(Role::Assistant),
            Just(Role::Tool),
            Just(Role::Text),
            Just(Role::Other("developer".to_owned())),
        ];
        let arguments = prop_oneof![Just("{\"x\": [1.5]}".to_owned()), any::<String>()];
        let call = ("[ab]", "[a-z]{0,3}", arguments)
            .prop_map(|(id, name, arguments)| ToolCall::new(id, name, arguments));
        let calls = prop::collection::vec(call, 0..3);
        (role, content(), calls, prop::option::of("[abc]"), prop::option::of(any::<String>())).prop_map(
            |(role, content, calls, answers, thought)| {
                let of_model = role == Role::Assistant;
                Arc::new(Message {
                    tool_calls: if of_model { calls } else { Vec::new() },
                    tool_call_id: answers.filter(|_| role == Role::Tool),
                    reasoning_content: thought.filter(|_| of_model),
                    content,
                    ..Message::new(role, "")
                })
            },
        )
    }

    proptest! {
        #[test]
        fn every_conversation_keeps_the_rules_of_the_format_and_is_read_back_as_it_was(
            prompt in prop::collection::vec(message(), 0..4),
            completion in prop::collection::vec(message(), 0..8),
        ) {
            let conversation = Conversation { prompt, completion, ..Conversation::default() };
            let (steps, images) = steps(&conversation, "folder");
            let text = serde_json::to_string(&steps).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Vec<Step>>(&text).unwrap(), &steps);

            let answers: usize =
                steps.iter().filter_map(|step| Some(step.observation.as_ref()?.results.len())).sum();
            let tools = conversation.messages().filter(|message| message.role == Role::Tool).count();
            prop_assert_eq!(answers, tools);
            for (place, step) in steps.iter().enumerate() {
                prop_assert_eq!(step.step_id, place + 1);
                let of_agent = step.source == Source::Agent;
                prop_assert!(of_agent || (step.tool_calls.is_empty() && step.reasoning_content.is_none()));
                for answer in step.observation.iter().flat_map(|observation| &observation.results) {
                    let asked = |id: &String| step.tool_calls.iter().any(|call| call.tool_call_id == *id);
                    prop_assert!(answer.source_call_id.as_ref().is_none_or(asked));
                }
            }
            prop_assert!(images.iter().all(|image| image.bytes == b"\x89PNG" && text.contains(&image.path)));
        }

        #[test]
        fn plain_words_and_well_formed_calls_are_not_lost(words in prop::collection::vec(any::<String>(), 1..6)) {
            let said = |(place, text): (usize, &String)| {
                let call = ToolCall::new(place.to_string(), "f", json!({"word": text}).to_string());
                let message = Message { tool_calls: vec![call], ..Message::assistant(text.clone()) };
                [Arc::new(message), Arc::new(Message::tool(place.to_string(), text.clone()))]
            };
            let completion = words.iter().enumerate().flat_map(said).collect();
            let (steps, _) = steps(&Conversation { completion, ..Conversation::default() }, "folder");
            let back: Vec<_> = steps.iter().map(|step| {
                let word = step.tool_calls[0].arguments["word"].as_str().unwrap();
                let answer = &step.observation.as_ref().unwrap().results[0];
                prop_assert_eq!(answer.source_call_id.as_ref(), Some(&step.tool_calls[0].tool_call_id));
                prop_assert_eq!(&answer.content, &Said::Text(word.to_owned()));
                prop_assert_eq!(&step.message, &answer.content);
                Ok(word.to_owned())
            }).collect::<Result<_, _>>()?;
            prop_assert_eq!(back, words);
        }
    }
}
