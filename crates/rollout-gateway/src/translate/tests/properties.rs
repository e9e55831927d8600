//! What holds for every conversation and every answer.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    super::{
        neutral::{
            Author, Conversation, Ending, Media, MediaSource, Part, Thought, ToolOrigin, ToolResult,
            ToolSpec, ToolUse, Turn,
        },
        *,
    },
    *,
};
use crate::assemble::Assembler;

const DIALECTS: [Dialect; 4] = [Dialect::Chat, Dialect::Responses, Dialect::Messages, Dialect::Gemini];

fn dialect() -> impl Strategy<Value = Dialect> {
    prop::sample::select(DIALECTS.to_vec())
}

fn text() -> impl Strategy<Value = String> {
    "[a-zé🦀 \"\\\\\n]{0,12}[a-z]"
}

fn arguments() -> impl Strategy<Value = String> {
    prop::collection::btree_map("[a-z]{1,4}", text(), 0..3).prop_map(|fields| json!(fields).to_string())
}

/// An answer as upstreams give it: a thought, a text, then calls.
fn parts() -> impl Strategy<Value = Vec<Part>> {
    (
        prop::option::of((text(), prop::option::of("[A-Za-z0-9]{4,8}"))),
        prop::option::of(text()),
        prop::collection::vec(("[a-z_]{1,6}", arguments()), 0..4),
    )
        .prop_map(|(thought, said, calls)| {
            let thought = thought
                .map(|(text, signature)| Part::Thought(Thought { text, signature, ..Thought::default() }));
            let calls = calls.into_iter().enumerate().map(|(at, (name, arguments))| {
                Part::Call(ToolUse { id: format!("id_{at}"), name, arguments })
            });
            thought.into_iter().chain(said.map(Part::Text)).chain(calls).collect()
        })
}

fn answer() -> impl Strategy<Value = Answer> {
    let ending = prop::sample::select(vec![Ending::Done, Ending::Length, Ending::Filtered]);
    (parts(), ending, 0..1000u64, 0..1000u64, 0..1000u64).prop_map(
        |(parts, ending, prompt, cached, output)| Answer {
            id: Some("answer".to_owned()),
            model: Some("m".to_owned()),
            parts,
            ending,
            usage: Some(rollout_core::response::TokenUsage {
                prompt_tokens: prompt,
                cached_tokens: cached,
                completion_tokens: output,
                ..Default::default()
            }),
        },
    )
}

/// Turns of the user and the assistant, with a result for each call.
fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let image = prop::option::of("[A-Za-z0-9]{4}");
    prop::collection::vec((text(), image, parts(), text()), 1..4).prop_map(|rounds| {
        let mut conversation = Conversation::default();
        conversation.push(Author::System, Part::text("Be brief."));
        let mut number = 0;
        for (question, image, parts, result) in rounds {
            conversation.push(Author::User, Part::Text(question));
            if let Some(data) = image {
                let source = MediaSource::Base64 { media_type: "image/png".to_owned(), data };
                conversation.push(Author::User, Part::Image(Media { source, name: None, detail: None }));
            }
            let mut results = Vec::new();
            // Two messages of the user in a row would become one.
            if !parts.iter().any(|part| matches!(part, Part::Text(_))) {
                conversation.push(Author::Assistant, Part::text("Well."));
            }
            for part in parts {
                match part {
                    Part::Call(call) => {
                        let id = format!("call_{number}");
                        number += 1;
                        results.push(ToolResult {
                            id: id.clone(),
                            name: Some(call.name.clone()),
                            parts: vec![Part::Text(result.clone())],
                            is_error: false,
                        });
                        conversation.push(Author::Assistant, Part::Call(ToolUse { id, ..call }));
                    }
                    // Thoughts of another upstream do not stay.
                    Part::Thought(_) => {}
                    part => conversation.push(Author::Assistant, part),
                }
            }
            for result in results {
                conversation.push(Author::User, Part::Result(result));
            }
        }
        conversation.turns
    })
}

fn written(dialect: Dialect, turns: Vec<Turn>) -> Value {
    let tool = ToolSpec {
        name: "ls".to_owned(),
        description: Some("Lists".to_owned()),
        schema: json!({"type": "object", "properties": {"path": {"type": "string"}}}),
        strict: None,
        origin: ToolOrigin::function("ls"),
    };
    let conversation = Conversation {
        model: "m".to_owned(),
        turns,
        tools: vec![tool],
        max_tokens: Some(100),
        ..Conversation::default()
    };
    let mut notes = Notes::default();
    match dialect {
        Dialect::Chat => chat::write_request(conversation, &mut notes),
        Dialect::Responses => responses::write_request(conversation, &mut notes),
        Dialect::Messages => messages::write_request(conversation, &mut notes),
        Dialect::Gemini => gemini::write_request(conversation, &mut notes),
    }
    .unwrap()
}

fn context_of(client: Dialect, upstream: Dialect) -> AnswerContext {
    context(client, upstream, plain_request(client))
}

fn whole(dialect: Dialect, answer: Answer) -> Value {
    let context = context_of(dialect, dialect);
    match dialect {
        Dialect::Chat => chat::write_answer(answer, &context),
        Dialect::Responses => responses::write_answer(answer, &context),
        Dialect::Messages => messages::write_answer(answer, &context),
        Dialect::Gemini => gemini::write_answer(answer, &context),
    }
}

/// The events of an answer, its texts and arguments cut into pieces.
fn events(dialect: Dialect, answer: &Answer, size: usize) -> Vec<Value> {
    let mut translator = context_of(dialect, dialect).stream();
    let mut pieces = vec![Piece::Start { id: answer.id.clone(), model: answer.model.clone(), usage: None }];
    let cut = |text: &str| {
        let letters: Vec<char> = text.chars().collect();
        letters.chunks(size).map(|piece| piece.iter().collect::<String>()).collect::<Vec<_>>()
    };
    for (key, part) in answer.parts.iter().enumerate() {
        let key = key as u64;
        match part {
            Part::Text(text) => pieces.extend(cut(text).into_iter().map(Piece::Text)),
            Part::Thought(thought) => {
                pieces.extend(cut(&thought.text).into_iter().map(Piece::Thought));
                let signature = thought.signature.clone();
                pieces.extend(signature.map(|signature| Piece::Signature { signature, is_redacted: false }));
            }
            Part::Call(call) => {
                pieces.push(Piece::Call {
                    key,
                    id: call.id.clone(),
                    name: call.name.clone(),
                    arguments: String::new(),
                });
                let more = |arguments| Piece::Call { key, id: String::new(), name: String::new(), arguments };
                pieces.extend(cut(&call.arguments).into_iter().map(more));
            }
            _ => {}
        }
    }
    pieces.extend([Piece::Ending(answer.ending.clone()), Piece::Usage(answer.usage.unwrap()), Piece::End]);
    let bytes = translator.write(pieces);
    let text = String::from_utf8(bytes).unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_conversation_keeps_its_messages_calls_and_ids_through_two_dialects(
        turns in turns(),
        first in dialect(),
        second in dialect(),
    ) {
        let there = request(first, second, written(first, turns.clone()), &target("m")).unwrap();
        let back = request(second, first, there.body, &target("m")).unwrap();
        let again = request(first, first, written(first, turns), &target("m")).unwrap();
        prop_assert_eq!(back.body, again.body);
    }

    #[test]
    fn a_translated_stream_equals_the_translated_response(
        answer in answer(),
        upstream in dialect(),
        client in dialect(),
        size in 1..9usize,
    ) {
        let context = context_of(client, upstream);
        let expected = context.response(whole(upstream, answer.clone())).unwrap();
        let mut translator = context.stream();
        let mut bytes = Vec::new();
        for event in events(upstream, &answer, size) {
            bytes.extend(translator.feed(event.to_string().as_bytes()).unwrap());
        }
        bytes.extend(translator.finish().unwrap());
        let mut assembler = Assembler::new(client);
        let text = String::from_utf8(bytes).unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        for data in data.filter(|data| *data != "[DONE]") {
            assembler.feed(&serde_json::from_str(data).unwrap());
        }
        let assembled = assembler.finish();
        prop_assert!(assembled.is_complete);
        prop_assert_eq!(plain(client, assembled.body), plain(client, expected));
    }

    #[test]
    fn any_bytes_are_survived(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..4),
        upstream in dialect(),
        client in dialect(),
    ) {
        let mut translator = context_of(client, upstream).stream();
        for piece in pieces {
            let _ = translator.feed(&piece);
        }
        let _ = translator.finish();
    }

    #[test]
    fn a_body_with_one_field_replaced_is_translated_or_refused(
        turns in turns(),
        from in dialect(),
        to in dialect(),
        at in any::<prop::sample::Index>(),
        value in prop::sample::select(vec![json!(null), json!(7), json!("x"), json!([]), json!([7]), json!({}), json!({"type": "x"})]),
    ) {
        let body = spoiled(written(from, turns), at, value);
        let _ = request(from, to, body, &target("m"));
    }

    #[test]
    fn an_answer_or_an_event_with_one_field_replaced_is_survived(
        answer in answer(),
        upstream in dialect(),
        client in dialect(),
        at in any::<prop::sample::Index>(),
        value in prop::sample::select(vec![json!(null), json!(7), json!("x"), json!([]), json!([7]), json!({})]),
    ) {
        let context = context_of(client, upstream);
        let _ = context.response(spoiled(whole(upstream, answer.clone()), at, value.clone()));
        let mut translator = context.stream();
        let mut assembler = Assembler::new(upstream);
        let mut usage = crate::usage::StreamUsage::new(upstream);
        for event in events(upstream, &answer, 3) {
            let event = spoiled(event, at, value.clone());
            assembler.feed(&event);
            usage.feed(&event);
            let _ = translator.feed(event.to_string().as_bytes());
        }
        let _ = translator.finish();
        let body = assembler.finish().body;
        let _ = (usage.usage(), crate::usage::tokens::find(upstream, &body));
    }
}

/// A body with one of its values replaced.
fn spoiled(mut body: Value, at: prop::sample::Index, value: Value) -> Value {
    let mut paths = Vec::new();
    collect_paths(&body, String::new(), &mut paths);
    *body.pointer_mut(&paths[at.index(paths.len())]).unwrap() = value;
    body
}

fn collect_paths(value: &Value, path: String, paths: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| collect_paths(value, format!("{path}/{key}"), paths));
        }
        Value::Array(list) => {
            list.iter()
                .enumerate()
                .for_each(|(at, value)| collect_paths(value, format!("{path}/{at}"), paths));
        }
        _ => {}
    }
    paths.push(path);
}

/// A response without what only a whole one has.
fn plain(dialect: Dialect, mut body: Value) -> Value {
    if dialect == Dialect::Chat {
        let message = body["choices"][0]["message"].as_object_mut().unwrap();
        message.retain(|_, value| !value.is_null());
    }
    body
}
