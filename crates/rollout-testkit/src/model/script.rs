//! Chooses the reply to a request.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use serde_json::json;

use super::{ModelReply, ModelRequest, benchmark, fixed::Fixed, request::text_of};

/// The script of a [`ModelServer`](super::ModelServer).
pub struct Script(pub(super) Kind);

pub(super) enum Kind {
    By(Box<dyn Fn(&ModelRequest) -> ModelReply + Send + Sync>),
    Fixed(Fixed),
}

impl Script {
    /// A function of the request.
    pub fn by(script: impl Fn(&ModelRequest) -> ModelReply + Send + Sync + 'static) -> Self {
        Self(Kind::By(Box::new(script)))
    }

    /// These replies in the order of the requests; then errors that clients do not retry.
    pub fn sequence(replies: impl IntoIterator<Item = ModelReply>) -> Self {
        let replies = Mutex::new(replies.into_iter().collect::<VecDeque<_>>());
        Self::by(move |_| {
            let next = replies.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            next.unwrap_or_else(|| ModelReply::error(400, "the script has no reply left"))
        })
    }

    /// The first reply for the first turn of every conversation, and so on; the last one for later turns.
    pub fn turns(replies: impl IntoIterator<Item = ModelReply>) -> Self {
        let replies: Vec<ModelReply> = replies.into_iter().collect();
        assert!(!replies.is_empty(), "a script of turns has a reply at least");
        Self::by(move |request| replies[request.turns().min(replies.len() - 1)].clone())
    }

    /// The same for measurements: replies are rendered once, requests are neither checked nor stored.
    pub fn fixed_turns(replies: impl IntoIterator<Item = ModelReply>) -> Self {
        Self(Kind::Fixed(Fixed::new(replies)))
    }

    /// The script of this name, for programs that start a server.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "arithmetic" => Some(Self::arithmetic()),
            "echo" => Some(Self::by(|request| ModelReply::text(request.last_text()))),
            "examples" => Some(Self::examples()),
            "guess" => Some(Self::guess()),
            "judge" => Some(Self::judge()),
            "tools" => Some(Self::tools()),
            "fixed" => Some(Self::fixed_turns([ModelReply::text("4")])),
            "fixed-tools" => Some(Self::fixed_turns(five_calls())),
            _ => None,
        }
    }

    /// The names of the scripts of [`named`](Self::named).
    pub const NAMES: [&str; 8] =
        ["arithmetic", "echo", "examples", "fixed", "fixed-tools", "guess", "judge", "tools"];

    /// Answers simple calculations such as "What is 2+2?", in a box if requested.
    pub fn arithmetic() -> Self {
        Self::by(arithmetic)
    }

    /// Guesses a number from 1 to 100 by bisection, with "higher" or "lower" after each guess.
    pub fn guess() -> Self {
        Self::by(guess)
    }

    /// Grades: "yes" if the last two fenced blocks of the prompt are equal, because a judge's prompt contains
    /// the ground truth and then the response.
    pub fn judge() -> Self {
        Self::by(|request| ModelReply::text(if judged(request) == Some(true) { "yes" } else { "no" }))
    }

    /// Plays the model of the repository's examples: it calculates, guesses numbers, opens a safe, judges, knows two
    /// shell commands, uses the tools of benchmarks, and investigates.
    pub fn examples() -> Self {
        Self::by(|request| {
            let asked = request.messages().iter().find(|message| message["role"] == "user");
            let asked = asked.map(|message| text_of(&message["content"])).unwrap_or_default();
            match judged(request) {
                // The prompt of `rollout investigate` has fenced blocks, too.
                _ if investigates(request) => ModelReply::text(FINDINGS),
                Some(right) => ModelReply::text(if right { "yes" } else { "no" }),
                None if request.body["tools"][0]["function"]["name"] == "price" => buy(request, &asked),
                None if request.body["tools"][0]["function"]["name"] == "dial" => dial(request),
                None if request.body["tools"].is_array() => {
                    benchmark::reply(request, &asked).unwrap_or_else(|| shell(request, &asked))
                }
                None if asked.contains("guess") => guess(request),
                None => arithmetic(request),
            }
        })
    }

    /// Calls the first offered tool in five turns, and then answers.
    pub fn tools() -> Self {
        Self::by(|request| {
            let tool = &request.body["tools"][0];
            let name = tool["function"]["name"].as_str().or(tool["name"].as_str());
            match (request.turns(), name) {
                (turn @ 0..5, Some(name)) => ModelReply::tool_call(name, &arguments(turn)),
                _ => ModelReply::text("done"),
            }
        })
    }
}

const FINDINGS: &str =
    r#"{"difficulty": "easy", "feasible": true, "failure_root_cause": "The agent did not try."}"#;

/// Whether the request asks why a trial failed.
fn investigates(request: &ModelRequest) -> bool {
    request.messages().iter().any(|message| text_of(&message["content"]).contains("failure_root_cause"))
}

/// Asks for the price in "What do 3 apples cost?", and multiplies.
fn buy(request: &ModelRequest, asked: &str) -> ModelReply {
    let mut words = asked.split([' ', '?']).skip_while(|word| word.parse::<u32>().is_err());
    let count: u32 = words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
    match request.turns() {
        0 => ModelReply::tool_call("price", &json!({"item": words.next()})),
        _ => match request.last_text().parse::<u32>() {
            Ok(price) => ModelReply::text((count * price).to_string()),
            Err(_) => ModelReply::text("I do not know."),
        },
    }
}

fn arithmetic(request: &ModelRequest) -> ModelReply {
    let boxed = request.messages().iter().any(|message| text_of(&message["content"]).contains("\\boxed"));
    ModelReply::text(match result_of(&request.last_text()) {
        Some(result) if boxed => format!("The answer is \\boxed{{{result}}}."),
        Some(result) => result.to_string(),
        None => "I do not know.".to_owned(),
    })
}

fn guess(request: &ModelRequest) -> ModelReply {
    ModelReply::text(middle(request, "user").to_string())
}

/// Dials until the safe is open.
fn dial(request: &ModelRequest) -> ModelReply {
    match request.messages().iter().any(|message| message["role"] == "tool" && message["content"] == "open") {
        true => ModelReply::text("It is open."),
        false => ModelReply::tool_call("dial", &json!({"code": middle(request, "tool")})),
    }
}

/// The middle of the numbers that are left after each "higher" and "lower" of this role.
fn middle(request: &ModelRequest, role: &str) -> i64 {
    let (mut low, mut high) = (1, 100);
    for message in request.messages().iter().filter(|message| message["role"] == role) {
        let said = text_of(&message["content"]).to_lowercase();
        let middle = i64::midpoint(low, high);
        if said.starts_with("higher") {
            low = middle + 1;
        } else if said.starts_with("lower") {
            high = middle - 1;
        }
    }
    i64::midpoint(low, high)
}

/// Whether a response agrees with the ground truth; `None` if the request is not a judgement.
fn judged(request: &ModelRequest) -> Option<bool> {
    let text = request.last_text();
    let blocks: Vec<&str> = text.split("```").skip(1).step_by(2).map(str::trim).collect();
    match blocks[..] {
        [.., truth, response] => Some(response.contains(truth)),
        _ => None,
    }
}

/// Runs the command that it knows for the question, and answers with the first line of its output.
fn shell(request: &ModelRequest, asked: &str) -> ModelReply {
    let status = asked.split_once("status ").map(|(_, rest)| rest.get(..3).unwrap_or_default());
    let command = match status {
        Some(status) => format!("grep -c '\" {status} ' /app/access.log | tee /app/answer.txt"),
        None if asked.contains("hello.txt") => "echo 'Hello, world!' > /app/hello.txt".to_owned(),
        None => return ModelReply::text("I do not know."),
    };
    match request.turns() {
        0 => ModelReply::tool_call("bash", &json!({"command": command})),
        _ => ModelReply::text(request.last_text().lines().next().unwrap_or("Done.")),
    }
}

/// Five turns that call `add`, and an answer.
fn five_calls() -> Vec<ModelReply> {
    let calls = (0..5).map(|turn| ModelReply::tool_call("add", &arguments(turn)));
    calls.chain([ModelReply::text("done")]).collect()
}

fn arguments(turn: usize) -> serde_json::Value {
    json!({"a": turn, "b": 1})
}

/// The result of the first `number operator number` of a text.
fn result_of(text: &str) -> Option<i64> {
    let operator = |character| matches!(character, '+' | '-' | '*' | '×');
    text.char_indices().filter(|(_, character)| operator(*character)).find_map(|(place, character)| {
        let (before, after) = (&text[..place], &text[place + character.len_utf8()..]);
        let before = before.trim_end();
        let digits = before.trim_end_matches(|character: char| character.is_ascii_digit()).len();
        let left: i64 = before[digits..].parse().ok()?;
        let after = after.trim_start();
        let end = after.find(|character: char| !character.is_ascii_digit()).unwrap_or(after.len());
        let right: i64 = after[..end].parse().ok()?;
        match character {
            '+' => left.checked_add(right),
            '-' => left.checked_sub(right),
            _ => left.checked_mul(right),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_found_in_sentences() {
        assert_eq!(result_of("What is 2+2?"), Some(4));
        assert_eq!(result_of("Well-known: what is 12 * 3, please?"), Some(36));
        assert_eq!(result_of("17 - 20"), Some(-3));
        assert_eq!(result_of("6×7"), Some(42));
        assert_eq!(result_of("What is love?"), None);
        assert_eq!(result_of("9223372036854775807+1"), None);
    }

    #[test]
    fn every_name_has_a_script() {
        assert!(Script::NAMES.iter().all(|name| Script::named(name).is_some()));
        assert!(Script::named("chess").is_none());
    }
}
