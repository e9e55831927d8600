//! Interactions: examples, how the conversation about one goes, and how it is scored. They are written in their own
//! file, or in a job.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Map, Value as Json, json};
use sha2::{Digest as _, Sha256};

use super::{
    ColumnsConfig, HubAddress, ParserConfig, RubricEntry, ScoreConfig, StopConfig, ToolConfig, UserConfig,
    columns, is_hub_address,
    model::LimitKeys,
    rubric::{self, parser},
    stop,
    task::MEMORY,
    tools, user,
};
use rollout_core::advantage::Advantage;
use rollout_core::message::{Message, Messages, Role};
use rollout_core::quantity::{Bytes, Cpus};
use rollout_model::Limits;
use rollout_settings::{
    Code, Form, Node, Section, Settings as _, Value,
    declare::{described, one_of},
    diagnostic::quoted,
    forms::{
        bytes, cpus, filled, filled_list, finite, flag, hash, list, path, section, some_count, some_section,
        text, texts, whole, word,
    },
    record::hexadecimal,
};

rollout_settings::settings! {
    /// An interaction: examples, how the conversation about one goes, and how it is scored.
    ///
    /// Its files existed when it was read.
    #[derive(Debug, Clone, PartialEq)]
    pub struct InteractionConfig {
        /// The base of relative paths, and the working directory of commands.
        pub directory: PathBuf = Form::written("path", || json!({ "type": "string" }), |section, key| {
            section.string(key);
            // An empty path is not a valid working directory.
            Some(directory(section)).map(|path| if path.as_os_str().is_empty() { ".".into() } else { path })
        })
        .unset("the directory of the file")
        .always(),
        /// The Python interpreter that calls `python:` functions.
        pub python: String = filled().default("python3".to_owned()).recorded_where_written(),
        /// The examples: the path of a file, the address of a dataset on a hub, or the list itself.
        ///
        /// A file has JSON lines, a JSON list, comma-separated values (`.csv`) or is a Parquet file (`.parquet`). An
        /// address is written as `hf:owner/name[/config][:split][@revision]`; see
        /// [datasets](datasets.md#hugging-face-datasets). See also [examples](#examples).
        pub dataset: ExamplesConfig = examples()
            .required("write the path of a file of JSON lines under `dataset:`, or a list of examples")
            .or_with(|| ExamplesConfig::Inline(Vec::new()))
            .beside_recorded(
                "dataset_sha256",
                "The hash that the file of examples must have, as config.json records it.",
                hash(),
                |examples, _| match examples {
                    ExamplesConfig::File { sha256, .. } => json!(sha256),
                    ExamplesConfig::Inline(_) | ExamplesConfig::Hub(_) => Json::Null,
                },
            ),
        /// How the columns of the dataset become the `question`, the `answer` and other columns of examples; when
        /// absent, all columns keep their names.
        ///
        /// See [columns](datasets.md#columns).
        pub columns: ColumnsConfig = columns::form().recorded_where_written(),
        /// How many examples are attempted.
        pub num_examples: Option<usize> = some_count().optional().unset("all"),
        /// Shuffles the examples before `num_examples` is applied.
        pub shuffle: bool = flag(false),
        /// The seed of the shuffle.
        pub shuffle_seed: u64 = whole(0..=u64::MAX).default(0),
        /// The first message of every example without a system message.
        pub system_prompt: Option<String> = text().optional(),
        /// Messages between the system prompt and the question.
        pub few_shot: Messages = Form::written("list of messages", messages_schema, |section, key| {
            Some(few_shot(section, key))
        })
        .recorded(|_, written| written.node.map_or_else(|| json!([]), |_| written.plain()))
        .or_empty(),
        /// The kind of conversation. By default, `tool_use` with tools, `multi_turn` with a user, else `single_turn`.
        pub kind as "type": InteractionKind = word(&KINDS)
            .or(InteractionKind::SingleTurn)
            .unset("`tool_use` with tools, `multi_turn` with a user, else `single_turn`")
            .beside(
                "max_turns",
                "The maximum number of turns.\n\nIf neither this nor `max_turns` in `limits` is set, the maximum is 1, or 10 with tools, or 50 with a user.",
                some_count::<u32>(),
            ),
        /// The tools that the model may call.
        ///
        /// See [tools](#tools).
        pub tools: Vec<ToolConfig> = list(tools::schema, |section, key| Some(tools::read(section, key)))
            .recorded(|_, written| written.items().map(tools::record).collect()),
        /// Errors of tools that end the rollout instead of being reported to the model.
        ///
        /// See [stop conditions](#stop-conditions).
        pub stop_errors: Vec<String> = texts().kind("list of names").recorded_where_written(),
        /// Conditions that end a rollout.
        ///
        /// See [stop conditions](#stop-conditions).
        pub stop: Vec<StopConfig> = list(stop::schema, |section, key| Some(stop::read(section, key)))
            .recorded_where_written(),
        /// A simulated user: a command, a Python function, or a second model.
        ///
        /// See [the user's side](#the-users-side).
        pub user: Option<UserConfig> = user::form().optional().recorded_where_written(),
        /// The container of each rollout, for tools inside a container.
        ///
        /// See [tools](#tools).
        pub environment: Option<ContainerConfig> = container().optional(),
        /// The functions that score a rollout: the reward is the weighted sum of their scores.
        ///
        /// See [rubric](#rubric).
        pub rubric: Vec<RubricEntry> = filled_list(rubric::schema, |section, key| Some(rubric::read(section, key)))
            .recorded(|rubric, written| {
                rubric.iter().zip(written.items()).map(|(entry, written)| rubric::record(entry, written)).collect()
            })
            .required(rubric::EXAMPLE),
        /// How the answer is found in the model's messages.
        ///
        /// See [parsers](#parsers).
        pub parser: Option<ParserConfig> = parser().optional().as_written().unset("`plain`"),
        /// Limits that end a rollout.
        ///
        /// See [limits](#limits).
        pub limits: Limits = section::<LimitKeys>().unset("none"),
        /// Fields of the state to save with each rollout.
        pub state_columns: Vec<String> = texts(),
        /// Scores each rollout separately, not together with the other rollouts of its example.
        ///
        /// It is scored as soon as it ends.
        pub independent_scoring: bool = flag(false),
        /// The lowest reward that counts as solved.
        pub pass_threshold: f64 = finite().default(0.5),
        /// How advantages are computed from the rewards of an example's rollouts.
        ///
        /// `group_mean`: the reward minus the mean of the group. `leave_one_out`: the reward minus the mean of the
        /// other rollouts. `normalised`: `group_mean` divided by the standard deviation of the group.
        pub advantage: Advantage = word(&ADVANTAGES).default(Advantage::GroupMean).recorded_where_written(),
        /// Whether rollouts that failed or timed out count in the baseline of the advantages, and become training samples.
        pub include_errors: bool = flag(false).recorded_where_written(),
    }
}

const ADVANTAGES: [(&str, Advantage); 3] = [
    ("group_mean", Advantage::GroupMean),
    ("leave_one_out", Advantage::LeaveOneOut),
    ("normalised", Advantage::Normalised),
];

const KINDS: [(&str, InteractionKind); 3] = [
    ("single_turn", InteractionKind::SingleTurn),
    ("multi_turn", InteractionKind::MultiTurn),
    ("tool_use", InteractionKind::ToolUse),
];

/// The source of the examples.
#[derive(Debug, Clone, PartialEq)]
pub enum ExamplesConfig {
    /// From a file of JSON lines, or of one JSON list.
    File {
        /// The file.
        path: PathBuf,
        /// The hash of its content, starting with `sha256:`.
        sha256: String,
    },
    /// From a dataset on a hub.
    Hub(HubAddress),
    /// From the interaction itself.
    Inline(Vec<Map<String, Json>>),
}

/// The kind of conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InteractionKind {
    /// The model replies once.
    SingleTurn,
    /// The model and a user take turns until one of them or a limit ends the conversation.
    MultiTurn,
    /// The model calls tools until it answers without a call.
    ToolUse,
}

/// The container of each rollout.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerConfig {
    /// Its image.
    pub image: ContainerImage,
    /// Its CPUs.
    pub cpus: Cpus,
    /// Its memory.
    pub memory: Bytes,
}

/// The image of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerImage {
    /// An existing image.
    Name(String),
    /// A directory with a Dockerfile.
    Build(PathBuf),
}

rollout_settings::settings! {
    /// The container of each rollout, for tools inside a container.
    pub(super) struct ContainerKeys {
        /// A prebuilt image.
        docker_image: Option<String> = path().kind("string").optional().as_written(),
        /// A directory with a Dockerfile, relative to this file.
        path: Option<String> = path().optional().as_written(),
        /// Its CPUs.
        cpus: Cpus = cpus().default(Cpus { millis: 1000 }),
        /// Its memory.
        memory: Bytes = bytes().default(MEMORY),
    }
}

impl InteractionConfig {
    /// The interaction with its examples in a file of JSON lines, which was fetched or converted.
    #[must_use]
    pub fn with_rows(self, path: PathBuf) -> Self {
        Self { dataset: ExamplesConfig::File { path, sha256: String::new() }, ..self }
    }
}

/// The JSON Schema of interaction files.
pub fn interaction_schema() -> Json {
    rollout_settings::titled::<InteractionConfig>("Rollout interaction")
}

/// Reads an interaction, and reports settings that contradict each other.
pub(super) fn read(section: &Section<'_>) -> Option<InteractionConfig> {
    let mut config = InteractionConfig::read(section)?;
    let turns = section.integer("max_turns", 1..=u32::MAX.into()).and_then(|turns| u32::try_from(turns).ok());
    if turns.is_some() && config.limits.max_turns.is_some() {
        let message = "`max_turns` is set here and in `limits`";
        section.invalid_with_hint("max_turns", message, "keep one of them");
    }
    config.limits.max_turns = turns.or(config.limits.max_turns);
    if section.node("type").is_none() {
        config.kind = match (no_tools(section), section.node("user")) {
            (false, _) => InteractionKind::ToolUse,
            (true, Some(_)) => InteractionKind::MultiTurn,
            (true, None) => config.kind,
        };
    }
    check_kind(section, &config);
    check_conversation(section, config.kind);
    stop::check(section, &config.tools);
    check_container(section, &config);
    Some(config)
}

/// The base of relative paths.
fn directory(section: &Section<'_>) -> PathBuf {
    match section.node("directory").map(|node| &node.value) {
        Some(Value::String(own)) => section.reader.dir.join(own),
        _ => section.reader.dir.clone(),
    }
}

fn examples() -> Form<ExamplesConfig> {
    let schema = || {
        let example = described(
            "An example: a `question` or a `prompt`, an `answer`, and any other data.",
            json!({ "type": "object", "anyOf": [{ "required": ["question"] }, { "required": ["prompt"] }] }),
        );
        json!({ "anyOf": [{ "type": "string" }, { "type": "array", "minItems": 1, "items": example }] })
    };
    Form::written("path, or list", schema, |section, key| {
        let node = section.node(key)?;
        match &node.value {
            Value::String(text) if is_hub_address(text) => match text.parse() {
                Ok(address) => Some(ExamplesConfig::Hub(address)),
                Err(error) => {
                    let message = format!("`{}`: {error}", section.at(key));
                    section.invalid_with_hint(key, message, "such as `hf:openai/gsm8k/main:test`");
                    None
                }
            },
            Value::String(_) => examples_file(section, key),
            Value::List(nodes) => {
                if nodes.is_empty() {
                    let message = format!("`{}` has no examples", section.at(key));
                    section.invalid_with_hint(key, message, "such as `- {question: 1 + 1?, answer: \"2\"}`");
                }
                let rows = nodes.iter().enumerate();
                let rows = rows.filter_map(|(index, node)| {
                    example(section, node, &format!("{}.{index}", section.at(key)))
                });
                Some(ExamplesConfig::Inline(rows.collect()))
            }
            _ => {
                section.reader.wrong_type(node, &section.at(key), "a path or a list of examples");
                None
            }
        }
    })
}

fn example(section: &Section<'_>, node: &Node, path: &str) -> Option<Map<String, Json>> {
    let example = section.reader.mapping(node, path)?;
    let is_mapped = section.entry("columns").is_some();
    if !is_mapped && example.entry("prompt").is_none() && example.entry("question").is_none() {
        example.missing("question", "an example needs a `question:`, or a `prompt:` of messages");
    }
    Some(example.json_map())
}

fn examples_file(section: &Section<'_>, key: &str) -> Option<ExamplesConfig> {
    let path = directory(section).join(section.filled_string(key)?);
    let sha256 = sha256_of_file(&path).map_err(|error| {
        let message = match error.kind() {
            std::io::ErrorKind::NotFound => format!("`{}`: this file does not exist", section.at(key)),
            _ => format!("`{}`: cannot read this file: {error}", section.at(key)),
        };
        let hint = "write the path of a file of JSON lines, relative to the file that names it";
        section.invalid_with_hint(key, message, hint);
    });
    let sha256 = sha256.ok()?;
    if section.string("dataset_sha256").is_some_and(|expected| expected != sha256) {
        section
            .invalid("dataset_sha256", format!("`{}` has changed: its hash is different", section.at(key)));
    }
    Some(ExamplesConfig::File { path, sha256 })
}

fn messages_schema() -> Json {
    json!({ "type": "array", "items": {
        "description": "A message.",
        "type": "object",
        "properties": {
            "role": { "description": "The role of the sender.", "enum": ["system", "user", "assistant", "tool", "text"] },
        },
        "required": ["role"],
    } })
}

fn few_shot(section: &Section<'_>, key: &str) -> Messages {
    let mut messages = Messages::new();
    for (index, node) in section.list(key).unwrap_or_default().iter().enumerate() {
        let path = format!("{}.{index}", section.at(key));
        let Some(entry) = section.reader.mapping(node, &path) else { continue };
        match entry.string("role").map(Role::from) {
            Some(Role::Other(role)) => {
                let message = format!("`{}`: unknown role {}", entry.at("role"), quoted(&role));
                let hint = "known roles: `system`, `user`, `assistant`, `tool`";
                entry.invalid_with_hint("role", message, hint);
            }
            Some(_) => match serde_json::from_value::<Message>(section.json(node, &path)) {
                Ok(message) => messages.push(Arc::new(message)),
                Err(error) => {
                    let message = format!("invalid message in `{path}`: {error}");
                    section.reader.error(node.span, Code::InvalidValue, message);
                }
            },
            None if entry.entry("role").is_none() => {
                entry.missing("role", "a message needs a `role:` and a `content:`");
            }
            None => {}
        }
    }
    messages
}

fn check_kind(section: &Section<'_>, config: &InteractionConfig) {
    let has_tools = !config.tools.is_empty();
    let refuse = |message: &str, hint: &str| section.invalid_with_hint("type", message, hint);
    match config.kind {
        // The invalid word was reported.
        _ if section.node("type").is_some_and(|node| section.reader.reported(node.span)) => {}
        InteractionKind::SingleTurn if has_tools => {
            refuse("`single_turn` does not support tools", "write `type: tool_use`, or remove `tools`");
        }
        InteractionKind::SingleTurn if config.limits.max_turns.is_some_and(|turns| turns > 1) => {
            let hint = "write `type: multi_turn`, or `tools:`, or remove `max_turns`";
            section.invalid_with_hint("max_turns", "`single_turn` has only one turn", hint);
        }
        InteractionKind::MultiTurn if has_tools => {
            refuse("only `tool_use` supports tools", "write `type: tool_use`, or remove `tools`");
        }
        // A server may report neither tokens nor costs, so only these limits always end it.
        InteractionKind::MultiTurn
            if config.limits.max_turns.is_none()
                && config.limits.timeout.is_none()
                && section.node("user").is_none() =>
        {
            let hint = "write `max_turns:`, `timeout_sec:` under `limits:`, or a `user:`";
            refuse("this conversation might never end", hint);
        }
        InteractionKind::ToolUse if !has_tools && no_tools(section) => {
            refuse("`tool_use` needs tools", "list the tools of the model under `tools:`");
        }
        _ => {}
    }
}

/// Reports settings that this kind of conversation does not support.
fn check_conversation(section: &Section<'_>, kind: InteractionKind) {
    use InteractionKind::{MultiTurn, SingleTurn, ToolUse};
    if section.node("type").is_some_and(|node| section.reader.reported(node.span)) {
        return;
    }
    let refuse = |key: &str, message: &str, hint: &str| {
        if let Some(entry) = section.entry(key) {
            section.reader.error_with_hint(entry.key_span, Code::Conflict, message, hint);
        }
    };
    match kind {
        SingleTurn => {
            let hint = "write `type: multi_turn`, or remove `user`";
            refuse("user", "`single_turn` does not support a user", hint);
            let hint = "write `type: multi_turn`, or `tools:`, or remove `stop`";
            refuse("stop", "`single_turn` does not support stop conditions", hint);
        }
        ToolUse => {
            let hint = "write `type: multi_turn` and remove `tools`, or remove `user`";
            refuse("user", "only `multi_turn` supports a user", hint);
        }
        MultiTurn => {}
    }
    if kind != ToolUse {
        refuse("stop_errors", "`stop_errors` needs tools", "write `tools:`, or remove `stop_errors`");
    }
}

fn no_tools(section: &Section<'_>) -> bool {
    section.node("tools").is_none_or(|node| node.items().is_empty())
}

fn check_container(section: &Section<'_>, config: &InteractionConfig) {
    let checks = config.rubric.iter().any(|entry| matches!(entry.score, ScoreConfig::Sandbox { .. }));
    let wanted = checks || config.tools.iter().any(|tool| matches!(tool, ToolConfig::Container(_)));
    if section.node("environment").is_none() {
        if wanted {
            let hint = match checks {
                true => "`sandbox` needs a container: write its `docker_image:` or `path:`",
                false => "tools inside a container need an environment: write its `docker_image:` or `path:`",
            };
            section.missing("environment", hint);
        }
    } else if !wanted && no_tools(section) {
        let message = "nothing uses this environment";
        let hint = "write `tools: [{container: [bash]}]`, or remove `environment`";
        section.reader.error_with_hint(section.value_span("environment"), Code::Conflict, message, hint);
    }
}

fn container() -> Form<ContainerConfig> {
    let record = |config: &ContainerConfig| ContainerKeys {
        docker_image: None,
        path: None,
        cpus: config.cpus,
        memory: config.memory,
    };
    some_section::<ContainerKeys>().refine(|schema| one_of(&["docker_image", "path"], schema)).read_into(
        |section, key| {
            let environment = section.inside(key);
            let keys = section.settings::<ContainerKeys>(key)?;
            let hint = "write an image, or the `path:` of a directory with a Dockerfile";
            let image = match environment.one_of(&["docker_image", "path"], hint)? {
                "path" => {
                    ContainerImage::Build(build_directory(&environment, &directory(section), &keys.path?)?)
                }
                _ => ContainerImage::Name(keys.docker_image?),
            };
            Some(ContainerConfig { image, cpus: keys.cpus, memory: keys.memory })
        },
        move |config, written| ContainerKeys::record(&record(config), written).into(),
    )
}

fn build_directory(environment: &Section<'_>, directory: &Path, path: &str) -> Option<PathBuf> {
    let path = directory.join(path);
    if !path.join("Dockerfile").is_file() {
        let message = format!("no Dockerfile in {}", quoted(&path.display().to_string()));
        let hint = "write a directory that has one, relative to the file that names it";
        environment.invalid_with_hint("path", message, hint);
        return None;
    }
    Some(path)
}

/// The hash of a file's content. The file may be large.
fn sha256_of_file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hexadecimal(&hash.finalize())),
            Ok(count) => hash.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
