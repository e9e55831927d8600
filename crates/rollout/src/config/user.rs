//! The `user` of an interaction: a simulated user that replies to the model.

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

/// A simulated user.
#[derive(Debug, Clone, PartialEq)]
pub struct UserConfig {
    /// What simulates it.
    pub played_by: UserKind,
    /// A text that ends the conversation if a message of the user contains it.
    pub end: String,
}

/// What simulates the user.
#[derive(Debug, Clone, PartialEq)]
pub enum UserKind {
    /// A command on this machine.
    Command {
        /// The program and its arguments; never empty.
        command: Vec<String>,
        /// The timeout of a message.
        timeout: Duration,
    },
    /// A Python function.
    Python {
        /// The function, in a file below the directory of the interaction.
        function: PythonFunction,
        /// The timeout of a message.
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
    /// A simulated user of a conversation.
    pub(super) struct UserKeys {
        /// A program and its arguments. It gets the rollout as JSON on its standard input, and prints the next message.
        ///
        /// The JSON is the same as for commands of a [rubric](#rubric), and `messages` contains all messages so far. The
        /// program is started without a shell.
        command: Option<Vec<String>> = command().optional(),
        /// A Python function that returns the next message, as `file.py:function`.
        ///
        /// It gets the arguments that its parameters name: `messages`, all messages so far, and those of functions of a
        /// [rubric](scoring.md#python-functions). `None` ends the conversation.
        python: Option<String> = function_name().optional(),
        /// A model that simulates the user, written like the `model` of an agent.
        ///
        /// It sees the conversation with exchanged roles, and not the system prompt.
        model: Option<ModelConfig> = some_section::<ModelConfig>().optional(),
        /// The prompt of that model. `{question}`, `{answer}` and `{info.KEY}` are replaced.
        ///
        /// A sentence that names the `end` mark is added.
        prompt: Option<String> = filled().optional(),
        /// A text in a message of the user that ends the conversation.
        ///
        /// The text before it is the last message. An empty message also ends the conversation.
        end: String = filled().default(SimulatedUser::END.to_owned()),
        /// The timeout of the command or of a call of the function, in seconds.
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
    let hint = "a user needs a `command:`, a `python:` function, or a `model:` with a `prompt:`";
    let kind = section.one_of(&KINDS, hint)?;
    let UserKeys { command, python, model, prompt, end, timeout } = keys;
    let foreign = if kind == "model" { "timeout_sec" } else { "prompt" };
    section.refuse(&[foreign], kind, |key| match key {
        "prompt" => "only a `model:` has a prompt".to_owned(),
        _ => "write it inside `model:`".to_owned(),
    });
    let played_by = match kind {
        "command" => UserKind::Command { command: command?, timeout },
        "python" => UserKind::Python { function: function(section, python.as_deref()?)?, timeout },
        _ => {
            if section.entry("prompt").is_none() {
                section.missing("prompt", "describe the user and its goal for the model that simulates it");
            }
            UserKind::Model { model: Box::new(model?), prompt: prompt? }
        }
    };
    Some(UserConfig { played_by, end })
}

/// The user in the form of config.json.
fn record(user: &UserConfig, written: Written<'_>) -> Json {
    let mut record = written.plain();
    if let UserKind::Model { model, .. } = &user.played_by {
        record["model"] = ModelConfig::record(model, written.key("model")).into();
    }
    record
}
