//! Puts the pieces of a streamed answer in order, so that one item follows the other.
//!
//! Chat Completions may interleave the arguments of parallel calls, while the other dialects send one item after the
//! other. The first open item is passed on at once; pieces of later ones wait until it is complete.

use std::collections::VecDeque;

use rollout_core::response::TokenUsage;

use super::neutral::{CALL_ID, Ending, Item, Step};

/// What an upstream's event says.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Piece {
    Start {
        id: Option<String>,
        model: Option<String>,
        usage: Option<TokenUsage>,
    },
    Text(String),
    Thought(String),
    /// The signature of the thought before it.
    Signature {
        signature: String,
        is_redacted: bool,
    },
    Refusal(String),
    /// More of a call. The key identifies the call in its answer.
    Call {
        key: u64,
        id: String,
        name: String,
        arguments: String,
    },
    /// A call is complete.
    CallEnd(u64),
    /// The text or thought is complete: the next one is another.
    ItemEnd,
    Usage(TokenUsage),
    Ending(Ending),
    /// The upstream said that nothing follows.
    End,
}

/// The id of a call to which the upstream gave none.
pub(super) fn call_id(number: usize) -> String {
    format!("{CALL_ID}{number}")
}

/// Orders pieces.
#[derive(Debug)]
pub(super) struct Sequencer {
    items: VecDeque<Waiting>,
    /// The number of the next call in the conversation.
    next_call: usize,
    is_started: bool,
    is_over: bool,
    ending: Option<Ending>,
    usage: Option<TokenUsage>,
}

#[derive(Debug)]
struct Waiting {
    item: Item,
    key: u64,
    steps: Vec<Step>,
    is_open: bool,
    is_complete: bool,
}

impl Sequencer {
    /// Orders the pieces of one answer, after some calls in the conversation.
    pub(super) fn new(calls: usize) -> Self {
        Self {
            items: VecDeque::new(),
            next_call: calls,
            is_started: false,
            is_over: false,
            ending: None,
            usage: None,
        }
    }

    /// Whether the answer is complete and passed on.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether the upstream said why it stopped. What follows is at most the usage.
    pub(super) fn has_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Takes a piece, and adds the steps that it allows.
    pub(super) fn push(&mut self, piece: Piece, steps: &mut Vec<Step>) {
        if self.is_over {
            return;
        }
        if let Piece::Start { id, model, usage } = piece {
            if !self.is_started {
                self.is_started = true;
                self.usage = usage.or(self.usage);
                steps.push(Step::Start { id, model, usage });
            }
            return;
        }
        if !std::mem::replace(&mut self.is_started, true) {
            steps.push(Step::Start { id: None, model: None, usage: None });
        }
        match piece {
            Piece::Start { .. } => {}
            Piece::Text(text) => self.add(Item::Text, text),
            Piece::Thought(text) => self.add(Item::Thought { is_redacted: false }, text),
            Piece::Refusal(text) => self.add(Item::Refusal, text),
            Piece::Signature { signature, is_redacted } => self.sign(signature, is_redacted),
            Piece::Call { key, id, name, arguments } => self.add_call(key, id, name, arguments),
            Piece::CallEnd(key) => {
                if let Some(at) = self.call(key) {
                    self.items[at].is_complete = true;
                }
            }
            Piece::ItemEnd => self.end_item(),
            Piece::Usage(usage) => self.usage = Some(usage),
            Piece::Ending(ending) => self.ending = Some(ending),
            Piece::End => {
                self.items.iter_mut().for_each(|waiting| waiting.is_complete = true);
                self.flush(steps);
                self.is_over = true;
                let ending = self.ending.take().unwrap_or_default();
                steps.push(Step::End { ending, usage: self.usage });
                return;
            }
        }
        self.flush(steps);
    }

    /// Completes the last item if it is no call. A call is complete when the upstream says so, or at the end.
    fn end_item(&mut self) {
        if let Some(last) = self.items.back_mut()
            && !matches!(last.item, Item::Call { .. })
        {
            last.is_complete = true;
        }
    }

    fn add(&mut self, item: Item, text: String) {
        if text.is_empty() {
            return;
        }
        match self.items.back_mut() {
            Some(last) if last.item == item && !last.is_complete => last.steps.push(Step::More(text)),
            _ => {
                self.end_item();
                self.open(item, 0, vec![Step::More(text)]);
            }
        }
    }

    fn sign(&mut self, signature: String, is_redacted: bool) {
        let step = Step::Signature(signature);
        match self.items.back_mut() {
            Some(last) if matches!(last.item, Item::Thought { .. }) && !last.is_complete && !is_redacted => {
                last.steps.push(step);
            }
            _ => {
                self.end_item();
                self.open(Item::Thought { is_redacted }, 0, vec![step]);
            }
        }
        self.end_item();
    }

    fn call(&self, key: u64) -> Option<usize> {
        let is_open = |waiting: &Waiting| {
            matches!(waiting.item, Item::Call { .. }) && waiting.key == key && !waiting.is_complete
        };
        self.items.iter().rposition(is_open)
    }

    fn add_call(&mut self, key: u64, more_id: String, more_name: String, arguments: String) {
        let found = self.call(key).filter(|at| match &self.items[*at].item {
            // Some servers give every call the same index, and only the id differs.
            Item::Call { id, .. } => id.is_empty() || more_id.is_empty() || *id == more_id,
            _ => false,
        });
        let at = found.unwrap_or_else(|| {
            self.end_item();
            self.open(Item::Call { id: String::new(), name: String::new() }, key, Vec::new());
            self.items.len() - 1
        });
        let waiting = &mut self.items[at];
        if let Item::Call { id, name } = &mut waiting.item {
            if id.is_empty() {
                *id = more_id;
            }
            if name.is_empty() {
                *name = more_name;
            }
        }
        if !arguments.is_empty() {
            waiting.steps.push(Step::More(arguments));
        }
    }

    fn open(&mut self, item: Item, key: u64, steps: Vec<Step>) {
        self.items.push_back(Waiting { item, key, steps, is_open: false, is_complete: false });
    }

    fn flush(&mut self, steps: &mut Vec<Step>) {
        while let Some(first) = self.items.front_mut() {
            if !first.is_open {
                if let Item::Call { id, name } = &mut first.item {
                    if name.is_empty() && !first.is_complete {
                        return;
                    }
                    if id.is_empty() {
                        *id = call_id(self.next_call);
                    }
                    self.next_call = self.next_call.saturating_add(1);
                }
                first.is_open = true;
                steps.push(Step::Open(first.item.clone()));
            }
            steps.append(&mut first.steps);
            if !first.is_complete {
                return;
            }
            steps.push(Step::Close);
            self.items.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(key: u64, id: &str, name: &str, arguments: &str) -> Piece {
        Piece::Call { key, id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
    }

    fn steps(pieces: Vec<Piece>) -> Vec<Step> {
        let mut sequencer = Sequencer::new(3);
        let mut steps = Vec::new();
        for piece in pieces {
            sequencer.push(piece, &mut steps);
        }
        steps
    }

    fn open(id: &str, name: &str) -> Step {
        Step::Open(Item::Call { id: id.to_owned(), name: name.to_owned() })
    }

    #[test]
    fn interleaved_calls_come_one_after_the_other() {
        let more = |text: &str| Step::More(text.to_owned());
        let steps = steps(vec![
            Piece::Text("Hi".to_owned()),
            call(0, "a", "ls", "{\"p\""),
            call(1, "b", "cat", "{"),
            call(0, "", "", ":1}"),
            call(1, "", "", "}"),
            Piece::Ending(Ending::Done),
            Piece::End,
        ]);
        assert_eq!(
            steps,
            [
                Step::Start { id: None, model: None, usage: None },
                Step::Open(Item::Text),
                more("Hi"),
                Step::Close,
                open("a", "ls"),
                more("{\"p\""),
                more(":1}"),
                Step::Close,
                open("b", "cat"),
                more("{"),
                more("}"),
                Step::Close,
                Step::End { ending: Ending::Done, usage: None },
            ]
        );
    }

    #[test]
    fn calls_of_one_index_differ_by_id_and_calls_without_an_id_get_one() {
        let steps = steps(vec![
            call(0, "a", "ls", "{}"),
            call(0, "b", "ls", "{}"),
            call(7, "", "ls", "{}"),
            Piece::End,
        ]);
        let opened: Vec<&Step> = steps.iter().filter(|step| matches!(step, Step::Open(_))).collect();
        assert_eq!(opened, [&open("a", "ls"), &open("b", "ls"), &open("call_5", "ls")]);
    }
}
