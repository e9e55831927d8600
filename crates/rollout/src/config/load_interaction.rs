//! Reads an interaction: the content of its file, or the same mapping in a job.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Map, Value as Json};
use sha2::{Digest as _, Sha256};

use super::{
    AgentKind, ContainerConfig, ContainerImage, DatasetSource, ExamplesConfig, InteractionConfig,
    InteractionKind, JobConfig, ToolConfig,
    diagnostic::{Code, Diagnostic, quoted},
    load_job::Loader,
    load_task::MEMORY,
    reader::Section,
    record::hexadecimal,
    tree::{Node, Value},
};
use rollout_core::message::{Message, Messages, Role};
use rollout_core::quantity::Cpus;
use rollout_model::Limits;

pub(super) const KEYS: [&str; 18] = [
    "directory",
    "dataset",
    "dataset_sha256",
    "num_examples",
    "shuffle",
    "shuffle_seed",
    "system_prompt",
    "few_shot",
    "type",
    "max_turns",
    "tools",
    "environment",
    "rubric",
    "parser",
    "limits",
    "state_columns",
    "independent_scoring",
    "pass_threshold",
];
pub(super) const ENVIRONMENT_KEYS: [&str; 4] = ["docker_image", "path", "cpus", "memory"];
pub(super) const KINDS: [(&str, InteractionKind); 3] = [
    ("single_turn", InteractionKind::SingleTurn),
    ("multi_turn", InteractionKind::MultiTurn),
    ("tool_use", InteractionKind::ToolUse),
];

pub(super) const PASS_THRESHOLD: f64 = 0.5;

impl Loader<'_> {
    /// Reads the mapping under `interaction`. One that could not be read from its file has been noted.
    pub(super) fn interaction(&self, dataset: &Section<'_>) -> Option<InteractionConfig> {
        let node = dataset.node("interaction")?;
        if matches!(node.value, Value::String(_)) {
            return None;
        }
        let section = self.reader.section(node, &dataset.at("interaction"), &KEYS)?;
        let directory = self.dir.join(section.string("directory").unwrap_or_default());
        let examples = self.examples(&section, &directory);
        let num_examples = section.integer("num_examples", 1..=u32::MAX.into());
        let tools = self.tools(&section);
        let limits = self.turn_limits(&section);
        let kind = self.kind(&section, &tools, &limits);
        let environment = self.container(&section, &directory, &tools);
        let independent_scoring = section.bool("independent_scoring").unwrap_or_default();
        let rubric = self.rubric(&section, independent_scoring);
        let shuffle_seed = section.integer("shuffle_seed", 0..=u64::MAX).unwrap_or_default();
        let threshold = section.finite("pass_threshold");
        let config = InteractionConfig {
            num_examples: num_examples.and_then(|number| usize::try_from(number).ok()),
            shuffle: section.bool("shuffle").unwrap_or_default(),
            shuffle_seed,
            system_prompt: section.string("system_prompt").map(str::to_owned),
            few_shot: self.few_shot(&section),
            kind,
            tools,
            environment,
            parser: self.parser(&section),
            limits,
            state_columns: self.strings(&section, "state_columns").unwrap_or_default(),
            independent_scoring,
            pass_threshold: threshold.unwrap_or(PASS_THRESHOLD),
            dataset: examples?,
            rubric: rubric?,
            // No process runs in a directory without a name.
            directory: if directory.as_os_str().is_empty() { ".".into() } else { directory },
        };
        Some(config)
    }

    fn examples(&self, section: &Section<'_>, directory: &Path) -> Option<ExamplesConfig> {
        let hint = "write the path of a file of JSON lines under `dataset:`, or a list of examples";
        let Some(node) = section.node("dataset") else {
            section.missing("dataset", hint);
            return None;
        };
        match &node.value {
            Value::String(_) => self.examples_file(section, directory),
            Value::List(nodes) => {
                if nodes.is_empty() {
                    let message = format!("`{}` has no examples", section.at("dataset"));
                    section.invalid_with_hint(
                        "dataset",
                        message,
                        "such as `- {question: 1 + 1?, answer: \"2\"}`",
                    );
                }
                let path = section.at("dataset");
                let rows = nodes.iter().enumerate();
                let rows = rows.map(|(index, node)| self.example(node, &format!("{path}.{index}")));
                rows.collect::<Option<Vec<_>>>().map(ExamplesConfig::Inline)
            }
            _ => {
                self.reader.wrong_type(node, &section.at("dataset"), "a path or a list of examples");
                None
            }
        }
    }

    fn example(&self, node: &Node, path: &str) -> Option<Map<String, Json>> {
        let section = self.reader.mapping(node, path)?;
        if section.entry("prompt").is_none() && section.entry("question").is_none() {
            section.missing("question", "an example has a `question:`, or a `prompt:` of messages");
        }
        Some(self.json_map(&section))
    }

    fn examples_file(&self, section: &Section<'_>, directory: &Path) -> Option<ExamplesConfig> {
        let path = directory.join(section.filled_string("dataset")?);
        let sha256 = match sha256_of_file(&path) {
            Ok(hash) => hash,
            Err(error) => {
                let message = format!("`{}`: cannot read this file: {error}", section.at("dataset"));
                let hint =
                    "write the path of a file of JSON lines, relative to the file that it is written in";
                section.invalid_with_hint("dataset", message, hint);
                return None;
            }
        };
        if section.string("dataset_sha256").is_some_and(|expected| expected != sha256) {
            let message = format!("`{}` has changed: its hash is another", section.at("dataset"));
            section.invalid("dataset_sha256", message);
        }
        Some(ExamplesConfig::File { path, sha256 })
    }

    fn few_shot(&self, section: &Section<'_>) -> Messages {
        let mut messages = Messages::new();
        for (index, node) in section.list("few_shot").unwrap_or_default().iter().enumerate() {
            let path = format!("{}.{index}", section.at("few_shot"));
            let Some(entry) = self.reader.mapping(node, &path) else { continue };
            match entry.string("role").map(Role::from) {
                Some(Role::Other(role)) => {
                    let message = format!("`{}` cannot be {}", entry.at("role"), quoted(&role));
                    let hint = "it can be one of `system`, `user`, `assistant`, `tool`";
                    entry.invalid_with_hint("role", message, hint);
                }
                Some(_) => match serde_json::from_value::<Message>(self.json(node, &path)) {
                    Ok(message) => messages.push(Arc::new(message)),
                    Err(error) => {
                        let message = format!("`{path}` is not a message: {error}");
                        self.reader.error(node.span, Code::InvalidValue, message);
                    }
                },
                None if entry.entry("role").is_none() => {
                    entry.missing("role", "a message has a `role:` and a `content:`");
                }
                None => {}
            }
        }
        messages
    }

    /// The limits, with `max_turns` in either place.
    fn turn_limits(&self, section: &Section<'_>) -> Limits {
        let mut limits = self.limits(section);
        let turns = self.max_turns(section);
        if turns.is_some() && limits.max_turns.is_some() {
            let message = "`max_turns` is given here and in `limits`";
            section.invalid_with_hint("max_turns", message, "keep one of them");
        }
        limits.max_turns = turns.or(limits.max_turns);
        limits
    }

    fn kind(&self, section: &Section<'_>, tools: &[ToolConfig], limits: &Limits) -> InteractionKind {
        let has_tools = !tools.is_empty();
        let default = if has_tools { InteractionKind::ToolUse } else { InteractionKind::SingleTurn };
        let given = section.word("type", &KINDS);
        if given.is_none() && section.node("type").is_some() {
            return default;
        }
        let kind = given.unwrap_or(default);
        let refuse = |message: &str, hint: &str| section.invalid_with_hint("type", message, hint);
        match kind {
            InteractionKind::SingleTurn if has_tools => {
                refuse(
                    "a single turn leaves no room for tools",
                    "write `type: tool_use`, or leave `tools` out",
                );
            }
            InteractionKind::SingleTurn if limits.max_turns.is_some_and(|turns| turns > 1) => {
                let hint = "write `type: multi_turn`, or `tools:`, or leave `max_turns` out";
                section.invalid_with_hint("max_turns", "a single turn is never more than one", hint);
            }
            InteractionKind::MultiTurn if has_tools => {
                refuse("only `tool_use` calls tools", "write `type: tool_use`, or leave `tools` out");
            }
            // A server may tell neither tokens nor costs, so only these are sure to end it.
            InteractionKind::MultiTurn if limits.max_turns.is_none() && limits.timeout.is_none() => {
                let hint = "write `max_turns:`, or `timeout_sec:` under `limits:`";
                refuse("nothing would surely end this conversation", hint);
            }
            InteractionKind::ToolUse if !has_tools && section.list("tools").is_none_or(<[_]>::is_empty) => {
                refuse("there are no tools to use", "write what the model may call under `tools:`");
            }
            _ => {}
        }
        kind
    }

    fn container(
        &self,
        section: &Section<'_>,
        directory: &Path,
        tools: &[ToolConfig],
    ) -> Option<ContainerConfig> {
        let wanted = tools.iter().any(|tool| matches!(tool, ToolConfig::Container(_)));
        let Some(environment) = section.section("environment", &ENVIRONMENT_KEYS) else {
            if wanted && section.node("environment").is_none() {
                section.missing(
                    "environment",
                    "tools of a container need one: write its `docker_image:` or `path:`",
                );
            }
            return None;
        };
        if !wanted && section.list("tools").is_none_or(<[_]>::is_empty) {
            let message = "nothing works in this environment";
            let hint = "write `tools: [{container: [bash]}]`, or leave `environment` out";
            self.reader.error_with_hint(environment.span, Code::Conflict, message, hint);
        }
        self.exclude(&environment, "docker_image", "path");
        let (cpus, memory) = (environment.cpus("cpus"), environment.bytes("memory"));
        let image = if environment.entry("docker_image").is_some() {
            ContainerImage::Name(environment.filled_string("docker_image")?.to_owned())
        } else if environment.entry("path").is_some() {
            ContainerImage::Build(self.build_directory(&environment, directory)?)
        } else {
            environment
                .missing("docker_image", "write an image, or the `path:` of a directory with a Dockerfile");
            return None;
        };
        Some(ContainerConfig {
            image,
            cpus: cpus.unwrap_or(Cpus { millis: 1000 }),
            memory: memory.unwrap_or(MEMORY),
        })
    }

    fn build_directory(&self, environment: &Section<'_>, directory: &Path) -> Option<PathBuf> {
        let path = directory.join(environment.filled_string("path")?);
        if !path.join("Dockerfile").is_file() {
            let message = format!("there is no Dockerfile in {}", quoted(&path.display().to_string()));
            let hint = "write a directory that has one, relative to the file that it is written in";
            environment.invalid_with_hint("path", message, hint);
            return None;
        }
        Some(path)
    }

    /// A list of strings that are not blank.
    pub(super) fn strings(&self, section: &Section<'_>, key: &str) -> Option<Vec<String>> {
        let mut strings = Vec::new();
        for (index, node) in section.list(key)?.iter().enumerate() {
            let path = format!("{}.{index}", section.at(key));
            match &node.value {
                Value::String(text) if text.is_empty() || text.contains('\0') => {
                    let message = format!("`{path}` must have text in it, and no NUL character");
                    self.reader.error(node.span, Code::InvalidValue, message);
                }
                Value::String(text) => strings.push(text.clone()),
                _ => self.reader.wrong_type(node, &path, "a string"),
            }
        }
        Some(strings)
    }

    /// The program and the arguments of a command.
    pub(super) fn command(&self, section: &Section<'_>) -> Option<Vec<String>> {
        let hint = "write the program and its arguments as a list, such as `[python3, tool.py]`";
        if let Some(node @ Node { value: Value::String(_), .. }) = section.node("command") {
            let message = format!("`{}` must be a list, not a string", section.at("command"));
            self.reader.error_with_hint(node.span, Code::WrongType, message, hint);
            return None;
        }
        let command = self.strings(section, "command")?;
        if section.list("command").is_some_and(<[_]>::is_empty) {
            section.invalid_with_hint("command", format!("`{}` is empty", section.at("command")), hint);
        }
        Some(command).filter(|command| !command.is_empty())
    }

    /// Notes every agent that can attempt none of the datasets.
    pub(super) fn refuse_idle_agents(&self, root: &Section<'_>, config: &JobConfig) {
        let interaction = |source: &DatasetSource| matches!(source, DatasetSource::Interaction(_));
        let listed = root.list("datasets").map_or(0, <[_]>::len);
        let all = config.datasets.len() == listed && listed > 0;
        if !all || !config.datasets.iter().all(|dataset| interaction(&dataset.source)) {
            return;
        }
        let nodes = root.list("agents").unwrap_or_default();
        for agent in config.agents.iter().filter(|agent| !matches!(agent.kind, AgentKind::Model(_))) {
            let named = |node: &&Node| matches!(node.get("name"), Some(Node { value: Value::String(name), .. }) if name == agent.name.as_str());
            let Some(node) = nodes.iter().find(named).and_then(|node| node.get("name")) else { continue };
            let message = format!("the agent `{}` can attempt none of the datasets", agent.name);
            let hint = "interactions are for agents with a `model:`, so leave this one out";
            self.reader.report(
                Diagnostic::error(self.reader.sources, node.span, Code::Conflict, message).hint(hint),
            );
        }
    }
}

/// The hash of a file's content, however large it is.
fn sha256_of_file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("this is not a regular file"));
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
