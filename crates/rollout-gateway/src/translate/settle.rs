//! Puts a conversation into the order that every upstream accepts: each call is followed by its result.

use std::collections::{BTreeMap, VecDeque};

use super::{
    fields::Notes,
    neutral::{Author, Conversation, Part, ToolResult, Turn, joined_text},
    signature,
};
use crate::Dialect;

/// Marks a message of the system where the upstream takes it only from the user.
const REMINDER: (&str, &str) = ("<system-reminder>\n", "\n</system-reminder>");

/// Moves results to their calls, adds results that are missing, turns results without a call into text, restores the
/// thoughts that this upstream wrote, and joins turns of one author.
pub(super) fn settle(conversation: &mut Conversation, upstream: Dialect, notes: &mut Notes) {
    let turns = std::mem::take(&mut conversation.turns);
    let mut results: BTreeMap<String, VecDeque<ToolResult>> = BTreeMap::new();
    let mut called: BTreeMap<String, String> = BTreeMap::new();
    for part in turns.iter().flat_map(|turn| &turn.parts) {
        match part {
            Part::Call(call) => {
                called.insert(call.id.clone(), call.name.clone());
            }
            Part::Result(result) => {
                // Some servers use an id again in a later turn, so an id may have several results.
                results.entry(result.id.clone()).or_default().push_back(result.clone());
            }
            _ => {}
        }
    }
    for Turn { author, parts } in turns {
        let mut calls = Vec::new();
        for part in parts {
            match part {
                Part::Result(result) => {
                    if !called.contains_key(&result.id) {
                        notes.add("tool result", "a result without a call became text");
                        let text = format!("Result of an earlier tool call:\n{}", joined_text(&result.parts));
                        conversation.push(Author::User, Part::Text(text));
                    }
                }
                Part::Call(call) => {
                    calls.push(call.id.clone());
                    conversation.push(author, Part::Call(call));
                }
                Part::Thought(thought) => {
                    conversation.push(author, Part::Thought(signature::unwrap(upstream, thought)));
                }
                part => conversation.push(author, part),
            }
        }
        for id in calls {
            let name = called.get(&id).cloned();
            let result = results.get_mut(&id).and_then(VecDeque::pop_front).unwrap_or_else(|| {
                notes.add("tool call", "a call without a result got an empty one");
                ToolResult {
                    id,
                    parts: vec![Part::text("No result.")],
                    is_error: true,
                    ..ToolResult::default()
                }
            });
            conversation.push(Author::User, Part::Result(ToolResult { name, ..result }));
        }
    }
    // No upstream answers instructions alone.
    if let [only] = conversation.turns.as_mut_slice()
        && only.author == Author::System
    {
        only.author = Author::User;
    }
}

/// Splits the instructions at the start from the rest. Later messages of the system become marked text of the user.
pub(super) fn split_instructions(turns: Vec<Turn>) -> (Vec<Part>, Vec<Turn>) {
    let mut instructions = Vec::new();
    let mut rest = Conversation::default();
    for Turn { author, parts } in turns {
        match author {
            Author::System if rest.turns.is_empty() => instructions.extend(parts),
            Author::System => {
                let text = format!("{}{}{}", REMINDER.0, joined_text(&parts), REMINDER.1);
                rest.push(Author::User, Part::Text(text));
            }
            author => parts.into_iter().for_each(|part| rest.push(author, part)),
        }
    }
    (instructions, rest.turns)
}
