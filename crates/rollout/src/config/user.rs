//! The `user` of an interaction: the other side of its conversation.

use std::time::Duration;

use serde_json::Value as Json;

use super::{
    ModelConfig,
    rubric::{function, function_name},
};
use rollout_model::{PythonFunction, PythonWorker, SimulatedUser};
use rollout_settings::{
    Form, Section, Settings as _, Written,
    declare::one_of,
    forms::{command, filled, seconds, some_section},
};

/// The other side of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct UserConfig {
    /// What plays it.
    pub played_by: UserKind,
    /// What ends the conversation where it is in a message of the user.
    pub end: String,
}

/// What plays the user.
#[derive(Debug, Clone, PartialEq)]
pub enum UserKind {
    /// A command of this machine.
    Command {
        /// The program and its arguments; never empty.
        command: Vec<String>,
        /// How long a message may take.
        timeout: Duration,
    },
    /// A Python function.
    Python {
        /// The function, in a file below the directory of the interaction.
        function: PythonFunction,
        /// How long a message may take.
        timeout: Duration,
    },
    /// A second model.
    Model {
        /// The model.
        model: Box<ModelConfig>,
        /// Its instructions.
        prompt: String,
    },
}

rollout_settings::settings! {
    /// What plays the user of a conversation.
    pub(super) struct UserKeys {
        /// A program and its arguments. It gets the rollout as JSON on its standard input, and prints the next message.
        ///
        /// `messages` is all that was said so far; the rest is what commands of a [rubric](#rubric) get. There is no shell
        /// in between.
        command: Option<Vec<String>> = command().optional(),
        /// A Python function that returns the next message, as `file.py:function`.
        ///
        /// It gets what it has parameters for: `messages`, which is all that was said so far, and what functions of a
        /// [rubric](scoring.md#python-functions) get. `None` ends the conversation.
        python: Option<String> = function_name().optional(),
        /// A model that plays the user, as the `model` of an agent is written.
        ///
        /// It sees the conversation with the roles exchanged, and not the system prompt.
        model: Option<ModelConfig> = some_section::<ModelConfig>().optional(),
        /// The instructions of that model. `{question}`, `{answer}` and `{info.KEY}` are filled in.
        ///
        /// A sentence that names the `end` mark is added.
        prompt: Option<String> = filled().optional(),
        /// A text in a message of the user that ends the conversation.
        ///
        /// What comes before it is the last message. An empty message ends the conversation too.
        end: String = filled().default(SimulatedUser::END.to_owned()),
        /// Seconds that the command or a call of the function may take.
        timeout as "timeout_sec": Duration = seconds().default(PythonWorker::TIMEOUT),
    }
}

const KINDS: [&str; 3] = ["command", "python", "model"];

pub(super) fn form() -> Form<UserConfig> {
    some_section::<UserKeys>()
        .refine(|schema| {
            one_of(&KINDS, schema);
            schema["dependentRequired"] = serde_json::json!({ "model": ["prompt"] });
        })
        .read_into(|section, key| user(&section.section::<UserKeys>(key)?), record)
}

fn user(section: &Section<'_>) -> Option<UserConfig> {
    let keys = UserKeys::read(section)?;
    let hint = "a user is a `command:`, a `python:` function, or a `model:` with a `prompt:`";
    let kind = section.one_of(&KINDS, hint)?;
    let UserKeys { command, python, model, prompt, end, timeout } = keys;
    let foreign = if kind == "model" { "timeout_sec" } else { "prompt" };
    section.refuse(&[foreign], kind, |key| match key {
        "prompt" => "only a `model:` has a prompt".to_owned(),
        _ => "write it inside of `model:`".to_owned(),
    });
    let played_by = match kind {
        "command" => UserKind::Command { command: command?, timeout },
        "python" => UserKind::Python { function: function(section, python.as_deref()?)?, timeout },
        _ => {
            if section.entry("prompt").is_none() {
                section.missing(
                    "prompt",
                    "write who the user is and what it wants, for the model that plays it",
                );
            }
            UserKind::Model { model: Box::new(model?), prompt: prompt? }
        }
    };
    Some(UserConfig { played_by, end })
}

/// The user as config.json keeps it.
fn record(user: &UserConfig, written: Written<'_>) -> Json {
    let mut record = written.plain();
    if let UserKind::Model { model, .. } = &user.played_by {
        record["model"] = ModelConfig::record(model, written.key("model")).into();
    }
    record
}
