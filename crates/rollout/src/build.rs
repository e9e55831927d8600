//! From what a job file says about models and interactions to what runs.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use indexmap::IndexMap;

use super::rollouts::Unusable;
use crate::rollouts::Rollouts;
use crate::{
    config::{
        CommandToolConfig, ContainerConfig, ContainerImage, EnvValue, ExamplesConfig, InteractionConfig,
        InteractionKind, McpConfig, ModelConfig, ParserConfig, PythonToolConfig, RubricEntry, ScoreConfig,
        StopWhen, ToolConfig, UserConfig, UserKind, load_task_config,
    },
    job::{ExampleSet, ExampleWriter, StoredExamples},
};
use rollout_core::message::{Messages, ToolDef};
use rollout_core::name::DatasetName;
use rollout_env::{EnvironmentTemplate, Provider, blocking::blocking};
use rollout_model::{
    DuplicateTool, Interaction, InvalidPattern, Model, MultiTurn, PythonError, PythonWorker, PythonWorkers,
    RolloutInput, Rubric, Sandboxed, SimulatedUser, SingleTurn, Stop, ToolUse,
    client::{Client, ClientConfig, ClientError, Prices, PricesError},
    dataset::{ExamplesError, Format},
    parser::{Boxed, MaybeThink, Parser, Plain, Think, Xml, XmlError, XmlField},
    rubric::{Command, Judge, PythonReward},
    tool::{self, Tool, container},
};

/// Why a model or an interaction of a job file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// There can be no client for a model.
    #[error("the model `{model}` cannot be used")]
    Client {
        /// The server's name for it.
        model: String,
        /// Why.
        source: ClientError,
    },
    /// A price is no price.
    #[error("the prices of `{model}` cannot be used")]
    Prices {
        /// The server's name for it.
        model: String,
        /// Why.
        source: PricesError,
    },
    /// The examples are not as they have to be.
    #[error("the examples {place} cannot be used")]
    Dataset {
        /// Where they are.
        place: String,
        /// What is wrong with them.
        source: ExamplesError,
    },
    /// Two tools are of one name.
    #[error("the tools cannot be used")]
    Tools(#[from] DuplicateTool),
    /// What would come of the rollouts could not be scored or saved.
    #[error("the interaction cannot be used")]
    Unusable(#[from] Unusable),
    /// A parser cannot find anything.
    #[error("the parser cannot be used")]
    Parser(#[from] XmlError),
    /// An MCP server gives no tools.
    #[cfg(feature = "mcp")]
    #[error("the tools cannot be used")]
    Mcp(#[from] tool::mcp::McpError),
    /// A Python function cannot be called.
    #[error("the Python functions cannot be used")]
    Python(#[from] PythonError),
    /// A hidden argument is not one of its tool.
    #[error("the tools cannot be used")]
    Hidden(#[from] tool::UnknownArgument),
    /// A stop condition waits for a call of a tool that is not there.
    #[error("the stop condition `{condition}` waits for a call of `{tool}`, and no tool has that name")]
    UnknownTool {
        /// The condition.
        condition: String,
        /// The tool that is not there.
        tool: String,
    },
    /// A stop condition is no regular expression.
    #[error("a stop condition cannot be used")]
    Pattern(#[from] InvalidPattern),
    /// This build of Rollout cannot reach MCP servers.
    #[cfg(not(feature = "mcp"))]
    #[error("this build of Rollout has no MCP, which the tools need; build it with the feature `mcp`")]
    Mcp,
}

/// What the interactions of a job run in.
#[derive(Clone)]
pub struct Surroundings {
    /// Makes the containers.
    pub provider: Arc<dyn Provider>,
    /// Labels what the provider makes.
    pub job: String,
    /// Call Python functions.
    pub python: PythonWorkers,
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Surroundings({}, {})", self.provider.name(), self.job)
    }
}

/// The model that a job file describes. Nobody is asked yet.
///
/// ```
/// use rollout::{config, model};
///
/// let text = "
/// agents: [{name: gpt, model: {name: gpt-4.1-mini, base_url: 'https://api.openai.com/v1'}}]
/// datasets: [{name: sums, interaction: {dataset: [{question: 1 + 1?, answer: '2'}], rubric: [{match: exact}]}}]
/// ";
/// let job = config::load_job_text("job.yaml".as_ref(), text, &[], &|_| None)?.config;
/// let config::AgentKind::Model(agent) = &job.agents[0].kind else { unreachable!() };
/// assert_eq!(model::build::model(&agent.model)?.name, "gpt-4.1-mini");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn model(config: &ModelConfig) -> Result<Model, BuildError> {
    let prices = config.price.map_or_else(|| Ok(Prices::default()), Prices::all);
    let prices = prices.map_err(|source| BuildError::Prices { model: config.name.clone(), source })?;
    let secret = |value: &EnvValue| value.value.as_str().into();
    let client = Client::new(ClientConfig {
        base_urls: config.base_urls.clone(),
        api_key: config.api_key.as_ref().map(secret),
        dialect: config.dialect,
        headers: config.headers.iter().map(|(name, value)| (name.clone(), secret(value))).collect(),
        extra_body: config.extra_body.clone(),
        stream: config.stream,
        token_ids: config.token_ids,
        token_prompts: config.token_prompts,
        timeout: config.timeout,
        connect_timeout: config.connect_timeout,
        max_retries: config.max_retries,
        rate_limit: config.rate_limit,
        prices,
    });
    let client = client.map_err(|source| BuildError::Client { model: config.name.clone(), source })?;
    Ok(Model {
        client,
        name: config.name.clone(),
        sampling: config.sampling.clone(),
        max_seq_len: config.max_seq_len,
    })
}

/// The interaction that a job file describes, with its examples in the order in which they are attempted.
///
/// Without surroundings it can be looked at, not run: no container is made, and no MCP server is started.
pub async fn examples(
    name: &DatasetName,
    config: &InteractionConfig,
    surroundings: Option<&Surroundings>,
) -> Result<ExampleSet, BuildError> {
    let worker = match surroundings {
        Some(surroundings) => surroundings.python.get(&config.python, &config.directory),
        None => python(config),
    };
    let interaction = interaction(name, config, surroundings, &worker).await?;
    if surroundings.is_some() {
        check_functions(config, &worker).await?;
    }
    let mut rollouts = Rollouts::shared(interaction, rubric_with(config, &worker)?)
        .limits(config.limits)
        .env_id(name.as_str())
        .state_columns(config.state_columns.iter())
        .pass_threshold(config.pass_threshold)
        .independent_scoring(config.independent_scoring)
        .advantage(config.advantage)
        .include_errors(config.include_errors);
    rollouts.check()?;
    rollouts.shuffled = Some(config.shuffle.then_some(config.shuffle_seed));
    let examples = stored(name, config).await.map_err(|source| {
        let place = match &config.dataset {
            ExamplesConfig::File { path, .. } => format!("in {}", path.display()),
            ExamplesConfig::Inline(_) => "of the interaction".to_owned(),
        };
        BuildError::Dataset { place, source }
    })?;
    Ok(ExampleSet { name: name.clone(), rollouts: Arc::new(rollouts), examples: Arc::new(examples) })
}

/// Puts the examples where their number costs no memory.
async fn stored(name: &DatasetName, config: &InteractionConfig) -> Result<StoredExamples, ExamplesError> {
    let format = Format {
        system_prompt: config.system_prompt.clone(),
        few_shot: config.few_shot.clone(),
        task: Some(name.to_string()),
    };
    let (dataset, seed) = (config.dataset.clone(), config.shuffle.then_some(config.shuffle_seed));
    let most = config.num_examples.unwrap_or(usize::MAX);
    let store = move || -> Result<_, ExamplesError> {
        let mut writer = ExampleWriter::default();
        let mut take = |input: RolloutInput| writer.push(&input, None, None);
        match dataset {
            ExamplesConfig::File { path, .. } => format.each_input(&path, take)?,
            ExamplesConfig::Inline(rows) => {
                let inputs = format.inputs(rows)?;
                inputs.into_iter().try_for_each(&mut take).map_err(ExamplesError::Store)?;
            }
        }
        if let Some(seed) = seed {
            writer.shuffle(seed);
        }
        writer.truncate(most);
        writer.finish().map_err(ExamplesError::Store)
    };
    blocking(move || Ok(store())).await.map_err(ExamplesError::Store)?
}

async fn interaction(
    name: &DatasetName,
    config: &InteractionConfig,
    surroundings: Option<&Surroundings>,
    worker: &PythonWorker,
) -> Result<Arc<dyn Interaction>, BuildError> {
    let stops = stops(config, worker)?;
    match config.kind {
        InteractionKind::SingleTurn => Ok(Arc::new(SingleTurn)),
        InteractionKind::MultiTurn => {
            let conversation = match &config.user {
                Some(user) => MultiTurn::with_user(simulated(user, config, worker)?),
                // Nothing but the model speaks; its limits end the conversation.
                None => MultiTurn::new(async |_, _| Ok(Messages::new())),
            };
            Ok(Arc::new(stops.into_iter().fold(conversation, MultiTurn::stop)))
        }
        InteractionKind::ToolUse => {
            let tools = tools(config, surroundings.is_some(), worker).await?;
            if surroundings.is_some() {
                check_called(config, &tools)?;
            }
            let tools = ToolUse::new(tools)?.stop_errors(config.stop_errors.iter().map(String::as_str));
            let tools = stops.into_iter().fold(tools, ToolUse::stop);
            match (&config.environment, surroundings) {
                (Some(container), Some(surroundings)) => {
                    let template = template(name, container);
                    let provider = Arc::clone(&surroundings.provider);
                    Ok(Arc::new(Sandboxed::new(provider, template, surroundings.job.as_str(), tools)))
                }
                _ => Ok(Arc::new(tools)),
            }
        }
    }
}

/// The conditions of an interaction. They are asked in the order in which they are written, after that for errors and
/// before those for limits.
fn stops(config: &InteractionConfig, worker: &PythonWorker) -> Result<Vec<Stop>, BuildError> {
    const AFTER_ERRORS: i32 = 99;
    let parser = shared_parser(config)?;
    let stops = config.stop.iter().zip((1..=AFTER_ERRORS).rev().chain(std::iter::repeat(1)));
    let made = stops.map(|(stop, priority)| {
        let name = stop.name.clone();
        let made = match &stop.when {
            StopWhen::Contains(text) => Stop::contains(name, text),
            StopWhen::Matches(pattern) => Stop::matches(name, pattern)?,
            StopWhen::Called(tool) => Stop::called(name, tool),
            StopWhen::Python { function, timeout } => {
                Stop::python(name, worker, function.clone(), *timeout, Arc::clone(&parser))
            }
        };
        Ok(made.priority(priority))
    });
    made.collect()
}

/// Finds out whether there are the tools whose calls end a rollout.
fn check_called(config: &InteractionConfig, tools: &[Arc<dyn Tool>]) -> Result<(), BuildError> {
    for stop in &config.stop {
        if let StopWhen::Called(tool) = &stop.when
            && !tools.iter().any(|known| known.def().name == *tool)
        {
            return Err(BuildError::UnknownTool { condition: stop.name.clone(), tool: tool.clone() });
        }
    }
    Ok(())
}

/// The other side of a conversation.
fn simulated(
    user: &UserConfig,
    config: &InteractionConfig,
    worker: &PythonWorker,
) -> Result<SimulatedUser, BuildError> {
    let made = match &user.played_by {
        UserKind::Command { command, timeout } => {
            SimulatedUser::command(command.clone(), config.directory.clone(), *timeout)
        }
        UserKind::Python { function, timeout } => SimulatedUser::python(worker, function.clone(), *timeout),
        UserKind::Model { model: own, prompt } => {
            SimulatedUser::model(Arc::new(model(own)?), prompt.as_str())
        }
    };
    Ok(made.end(user.end.as_str()))
}

/// What calls the Python functions of an interaction that is in no job. Nothing is started before the first call.
fn python(config: &InteractionConfig) -> PythonWorker {
    PythonWorkers::new(config.directory.as_path()).get(&config.python, &config.directory)
}

/// Finds out before the first rollout whether there are the functions that are called.
async fn check_functions(config: &InteractionConfig, worker: &PythonWorker) -> Result<(), BuildError> {
    let scores = config.rubric.iter().filter_map(|entry| match &entry.score {
        ScoreConfig::Python { function, .. } => Some(function),
        _ => None,
    });
    let stops = config.stop.iter().filter_map(|stop| match &stop.when {
        StopWhen::Python { function, .. } => Some(function),
        _ => None,
    });
    let user = config.user.iter().filter_map(|user| match &user.played_by {
        UserKind::Python { function, .. } => Some(function),
        _ => None,
    });
    for function in scores.chain(stops).chain(user) {
        worker.check(function).await?;
    }
    Ok(())
}

async fn tools(
    config: &InteractionConfig,
    connect: bool,
    worker: &PythonWorker,
) -> Result<Vec<Arc<dyn Tool>>, BuildError> {
    let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
    for tool in &config.tools {
        match tool {
            ToolConfig::Command(tool) => tools.push(hidden(command_tool(tool, config), &tool.hidden)?),
            ToolConfig::Python(tool) if connect => {
                tools.push(hidden(python_tool(tool, worker).await?, &tool.hidden)?);
            }
            // Only Python can say what it takes.
            ToolConfig::Python(_) => {}
            ToolConfig::Container(kinds) => {
                tools.extend(container::tools(kinds, container::COMMAND_TIMEOUT));
            }
            ToolConfig::Mcp(_) => {}
        }
    }
    // These come last because their names give way to those of the author's own tools.
    for tool in config.tools.iter().filter(|_| connect) {
        if let ToolConfig::Mcp(server) = tool {
            let found = mcp_tools(server, config, &tools).await?;
            tools.extend(found);
        }
    }
    Ok(tools)
}

fn command_tool(tool: &CommandToolConfig, config: &InteractionConfig) -> Arc<dyn Tool> {
    let def = ToolDef {
        name: tool.name.clone(),
        description: tool.description.clone(),
        parameters: tool.parameters.clone().into(),
        strict: None,
    };
    tool::command(def, tool.command.clone(), config.directory.clone(), tool.timeout)
}

async fn python_tool(tool: &PythonToolConfig, worker: &PythonWorker) -> Result<Arc<dyn Tool>, BuildError> {
    let described = tool::python(worker, tool.function.clone(), tool.timeout).await?;
    let mut def = described.def().clone();
    def.name = tool.name.clone().unwrap_or(def.name);
    def.description = tool.description.clone().unwrap_or(def.description);
    Ok(tool::python_as(worker, tool.function.clone(), tool.timeout, def))
}

/// A tool without the arguments that the rollout gives it.
fn hidden(
    tool: Arc<dyn Tool>,
    places: &IndexMap<String, String>,
) -> Result<Arc<dyn Tool>, tool::UnknownArgument> {
    if places.is_empty() {
        return Ok(tool);
    }
    let names: Vec<&str> = places.keys().map(String::as_str).collect();
    let places = places.clone();
    tool::hide(tool, &names, move |arguments, state| {
        for (name, place) in &places {
            let value = state.find(place).ok_or_else(|| {
                let message = format!("the rollout has no `{place}`, which is the argument `{name}`");
                tool::ToolFailure::new("KeyError", message)
            })?;
            arguments.insert(name.clone(), value);
        }
        Ok(())
    })
}

#[cfg(feature = "mcp")]
async fn mcp_tools(
    server: &McpConfig,
    config: &InteractionConfig,
    others: &[Arc<dyn Tool>],
) -> Result<Vec<Arc<dyn Tool>>, BuildError> {
    let pair = |(name, value): (&String, &EnvValue)| (name.clone(), value.value.clone());
    let transport = match server {
        McpConfig::Command { command, env } => tool::mcp::McpTransport::Command {
            argv: command.clone(),
            env: env.iter().map(pair).collect(),
            directory: Some(config.directory.clone()),
        },
        McpConfig::Url { url, headers } => tool::mcp::McpTransport::Http {
            url: url.value.clone(),
            headers: headers.iter().map(pair).collect(),
        },
    };
    let taken: Vec<&str> = others.iter().map(|tool| tool.def().name.as_str()).collect();
    Ok(tool::mcp::McpServer::connect(&transport).await?.tools(&taken))
}

#[cfg(not(feature = "mcp"))]
#[expect(clippy::unused_async, reason = "with the feature it connects")]
async fn mcp_tools(
    _: &McpConfig,
    _: &InteractionConfig,
    _: &[Arc<dyn Tool>],
) -> Result<Vec<Arc<dyn Tool>>, BuildError> {
    Err(BuildError::Mcp)
}

/// The container of an interaction as providers know it: a task without tests.
fn template(name: &DatasetName, container: &ContainerConfig) -> EnvironmentTemplate {
    let (defaults, _) = load_task_config("task.toml".as_ref(), "").expect("every setting has a default");
    let (context, docker_image) = match &container.image {
        ContainerImage::Name(image) => (PathBuf::new(), Some(image.clone())),
        ContainerImage::Build(path) => (path.clone(), None),
    };
    EnvironmentTemplate {
        name: name.to_string(),
        context,
        docker_image,
        build_timeout: Duration::try_from_secs_f64(defaults.build_timeout_sec).unwrap_or(Duration::MAX),
        cpus: container.cpus,
        memory: container.memory,
        storage: defaults.storage,
    }
}

/// The rubric that an interaction describes.
pub(crate) fn rubric(config: &InteractionConfig) -> Result<Rubric, BuildError> {
    rubric_with(config, &python(config))
}

fn rubric_with(config: &InteractionConfig, worker: &PythonWorker) -> Result<Rubric, BuildError> {
    let mut rubric = Rubric::new().shared_parser(shared_parser(config)?);
    for RubricEntry { name, weight, score } in &config.rubric {
        let (own, entry): (_, Box<dyn FnOnce(Rubric) -> Rubric>) = match score {
            ScoreConfig::Match { how, parser } => {
                (parser, Box::new(|rubric: Rubric| rubric.matching(name, *weight, *how)))
            }
            ScoreConfig::Judge { model: judge, prompt, parser } => {
                let judge = Judge::new(Arc::new(model(judge)?));
                let judge = match prompt {
                    Some(prompt) => judge.template(prompt.as_str()),
                    None => judge,
                };
                (parser, Box::new(|rubric: Rubric| rubric.judge(name, *weight, judge)))
            }
            ScoreConfig::Command { command, group, timeout } => {
                let (program, arguments) =
                    command.split_first().expect("a command that was read is not empty");
                let command = Command::new(program, arguments).dir(&config.directory).timeout(*timeout);
                let entry = move |rubric: Rubric| match group {
                    true => rubric.group_command(name, *weight, command),
                    false => rubric.command(name, *weight, command),
                };
                (&None, Box::new(entry))
            }
            ScoreConfig::Python { function, group, timeout } => {
                let reward = PythonReward::new(worker, function.clone()).timeout(*timeout);
                let entry = move |rubric: Rubric| match group {
                    true => rubric.group_python(name, *weight, reward),
                    false => rubric.python(name, *weight, reward),
                };
                (&None, Box::new(entry))
            }
        };
        rubric = match own {
            Some(own) => rubric.and(entry(Rubric::new().shared_parser(parser(own)?))),
            None => entry(rubric),
        };
    }
    Ok(rubric)
}

/// Finds the answer, where nothing else does so.
fn shared_parser(config: &InteractionConfig) -> Result<Arc<dyn Parser>, XmlError> {
    Ok(config.parser.as_ref().map(parser).transpose()?.unwrap_or_else(|| Arc::new(Plain)))
}

fn parser(config: &ParserConfig) -> Result<Arc<dyn Parser>, XmlError> {
    Ok(match config {
        ParserConfig::Plain => Arc::new(Plain),
        ParserConfig::Think => Arc::new(Think::new()),
        ParserConfig::MaybeThink => Arc::new(MaybeThink::new()),
        ParserConfig::Boxed => Arc::new(Boxed),
        ParserConfig::Xml { fields, answer_field } => {
            let fields = fields.iter().map(|names| XmlField::from(names.clone()));
            Arc::new(Xml::new(fields, answer_field)?)
        }
    })
}
