//! Simulated users: a program, a Python function or a second model replies to the model.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use serde_json::Value;

use super::MultiTurn;
use crate::{
    Cause, Error, ErrorKind, Model, State,
    parser::{MaybeThink, Plain},
    process::{RunError, run},
    python::{Callable, PythonFunction, PythonWorker, odd},
    shown::Shown,
    state::added_usage,
};
use rollout_core::message::{Message, Messages, Role};

/// The maximum output of a program.
const MAX_OUTPUT_BYTES: usize = 1 << 20;

/// The field of the state with the usage of the user's model.
const USAGE: &str = "user_usage";

/// Servers require that the first message of a conversation is a user's.
const OPENING: &str = "Begin the conversation.";

/// A simulated user of a conversation: a program, a Python function, or a second model.
///
/// It replies after each response of the model. If its message contains the [end mark](Self::END), or is empty, the
/// conversation ends; the text before the mark is the final reply. Any failure is an [`ErrorKind::Infra`] of the
/// rollout whose message names `user`.
///
/// ```
/// use std::time::Duration;
///
/// use rollout::model::{MultiTurn, SimulatedUser};
///
/// let user = SimulatedUser::command(vec!["./customer".into()], ".".into(), Duration::from_secs(10));
/// let conversation = MultiTurn::with_user(user).max_turns(20);
/// ```
pub struct SimulatedUser {
    side: Side,
    end: String,
}

enum Side {
    Command { argv: Vec<String>, directory: PathBuf, timeout: Duration },
    Python(Callable),
    Model { model: Arc<Model>, prompt: String },
}

impl SimulatedUser {
    /// The default text that marks the end of the conversation.
    pub const END: &str = "###STOP###";

    /// A program that gets the rollout as JSON on its standard input, as a [`Command`](crate::rubric::Command) does,
    /// with all messages so far as `messages`. Its output is the next message.
    pub fn command(argv: Vec<String>, directory: PathBuf, timeout: Duration) -> Self {
        Self::new(Side::Command { argv, directory, timeout })
    }

    /// A Python function that gets the arguments that its parameters name: `messages`, all messages so far, and those
    /// of a [`PythonReward`](crate::rubric::PythonReward). It returns the next message, or None to end the
    /// conversation.
    pub fn python(worker: &PythonWorker, function: PythonFunction, timeout: Duration) -> Self {
        Self::new(Side::Python(Callable::new(worker, function).timeout(timeout)))
    }

    /// A model with a prompt of its own, which sees the conversation with the roles exchanged. The placeholders
    /// `{question}`, `{answer}` and `{info.KEY}` of the prompt are replaced. A sentence that names the end mark is
    /// added.
    ///
    /// Its usage does not count as usage of the rollout: the field `user_usage` of the state has its `input_tokens`,
    /// `output_tokens` and, if known, `cost`.
    pub fn model(model: Arc<Model>, prompt: impl Into<String>) -> Self {
        Self::new(Side::Model { model, prompt: prompt.into() })
    }

    fn new(side: Side) -> Self {
        Self { side, end: Self::END.to_owned() }
    }

    /// Sets another end mark.
    #[must_use]
    pub fn end(self, mark: impl Into<String>) -> Self {
        Self { end: mark.into(), ..self }
    }

    /// The user's next message. A final reply ends the rollout.
    async fn speak(&self, messages: &[Arc<Message>], state: &mut State) -> Result<Messages, Error> {
        let text = self
            .next(messages, state)
            .await
            .map_err(|cause| Error::new(ErrorKind::Infra, "`user` failed to reply").because(cause))?;
        let (words, is_last) = match text.split_once(&self.end) {
            Some((words, _)) => (words.trim_end(), true),
            None => (text.as_str(), text.trim().is_empty()),
        };
        let mut said = Messages::new();
        if !words.trim().is_empty() {
            said.push(Arc::new(Message::user(words)));
        }
        if is_last {
            state.final_env_response = Some(said);
            return Ok(Messages::new());
        }
        Ok(said)
    }

    async fn next(&self, messages: &[Arc<Message>], state: &mut State) -> Result<String, Cause> {
        let completion = messages.get(state.input.prompt.len()..).unwrap_or_default();
        let shown = Shown { state, completion, parser: &Plain, messages: Some(messages) };
        match &self.side {
            Side::Command { argv, directory, timeout } => {
                let input = serde_json::to_vec(&shown).map_err(|error| Cause::of("ValueError", &error))?;
                let ran = run(argv, Some(directory), &input, MAX_OUTPUT_BYTES, *timeout).await;
                let (output, _) = ran.map_err(|error| failed(argv, *timeout, error))?;
                let text = String::from_utf8_lossy(&output);
                Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
            }
            Side::Python(callable) => {
                let given = callable.ask("say", shown).await;
                let given = given.and_then(|given| match given {
                    Value::Null => Ok(String::new()),
                    Value::String(text) => Ok(text),
                    other => Err(odd(&callable.function, &other, "a text or None")),
                });
                given.map_err(|error| Cause::of("PythonError", &error))
            }
            Side::Model { model, prompt } => {
                let seen = self.exchanged(prompt, messages, state)?;
                let response = model.client.respond(model, &seen, &[], &state.trajectory_id).await?;
                if let Some(usage) = &response.usage {
                    let used = added_usage(state.fields.get(USAGE), usage);
                    state.fields.insert(USAGE.to_owned(), used);
                }
                Ok(MaybeThink::after_thoughts(&response.message.text()).to_owned())
            }
        }
    }

    /// The conversation from the view of the user's model: messages of the user become its own.
    fn exchanged(&self, prompt: &str, messages: &[Arc<Message>], state: &State) -> Result<Messages, Cause> {
        let mut instructions = filled(prompt, state)?;
        instructions += &format!("\n\nTo end the conversation, write {}.", self.end);
        let mut seen = vec![Arc::new(Message::system(instructions)), Arc::new(Message::user(OPENING))];
        seen.extend(messages.iter().filter_map(|message| {
            let text = message.text();
            match message.role {
                Role::User => Some(Arc::new(Message::assistant(text))),
                Role::Assistant => Some(Arc::new(Message::user(MaybeThink::after_thoughts(&text)))),
                _ => None,
            }
        }));
        Ok(seen)
    }
}

impl fmt::Debug for SimulatedUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.side {
            Side::Command { argv, .. } => write!(f, "SimulatedUser({argv:?})"),
            Side::Python(callable) => write!(f, "SimulatedUser({})", callable.function),
            Side::Model { model, .. } => write!(f, "SimulatedUser({})", model.name),
        }
    }
}

impl MultiTurn {
    /// The default limit of turns with a simulated user.
    const TURNS_WITH_USER: u32 = 50;

    /// A conversation with a simulated user, for at most 50 turns.
    pub fn with_user(user: SimulatedUser) -> Self {
        let user = Arc::new(user);
        Self::new(async move |messages, state| user.speak(messages, state).await)
            .max_turns(Self::TURNS_WITH_USER)
    }
}

fn failed(argv: &[String], timeout: Duration, error: RunError) -> Cause {
    let program = argv.first().map_or("", String::as_str);
    let (name, text) = match error {
        RunError::Start(error) => ("OSError", format!("cannot start `{program}`: {error}")),
        RunError::Talk(error) => ("OSError", format!("cannot read the output of `{program}`: {error}")),
        RunError::TooMuch => {
            ("CommandError", format!("`{program}` printed more than {MAX_OUTPUT_BYTES} bytes"))
        }
        RunError::Timeout(said) => {
            let text = format!("`{program}` timed out after {}s{}", timeout.as_secs_f64(), said.as_suffix());
            ("TimeoutError", text)
        }
        RunError::Failed(status, said) => {
            ("CommandError", format!("`{program}` failed: {status}{}", said.as_suffix()))
        }
    };
    Cause::new(name, text)
}

/// Fills the placeholders of a prompt in one pass, so that inserted text is not searched for placeholders.
fn filled(prompt: &str, state: &State) -> Result<String, Cause> {
    let mut text = String::with_capacity(prompt.len());
    let mut rest = prompt;
    while let Some(at) = rest.find('{') {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let place = rest.split_once('}').map(|(place, _)| place);
        match place.filter(|place| ["question", "answer"].contains(place) || place.starts_with("info.")) {
            Some(place) => {
                let value = match place {
                    "question" => state.input.prompt.last().map(|message| message.text().into_owned().into()),
                    place => state.find(place),
                };
                match value {
                    Some(Value::String(value)) => text.push_str(&value),
                    Some(value) => text.push_str(&value.to_string()),
                    None => {
                        let message = format!("the example has no `{place}`, which the prompt uses");
                        return Err(Cause::new("KeyError", message));
                    }
                }
                rest = &rest[place.len() + 1..];
            }
            None => text.push('{'),
        }
    }
    Ok(text + rest)
}
