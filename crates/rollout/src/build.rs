//! Builds models and interactions from the configuration of a job.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use indexmap::IndexMap;

use super::rollouts::Unusable;
use crate::rollouts::Rollouts;
use crate::{
    config::{
        CommandToolConfig, ContainerConfig, ContainerImage, EnvValue, ExamplesConfig, HubAddress,
        InteractionConfig, InteractionKind, McpConfig, ModelConfig, ParserConfig, PythonToolConfig,
        RubricEntry, ScoreConfig, StopWhen, ToolConfig, UserConfig, UserKind, dialect_name, load_task_config,
    },
    job::{ExampleSet, ExampleWriter, StoredExamples},
    task::Pins,
};
use rollout_core::message::{Messages, ToolDef};
use rollout_core::name::DatasetName;
use rollout_env::{DEFAULT_STORAGE, EnvironmentTemplate, Provider, blocking::blocking};
use rollout_gateway::Dialect;
use rollout_model::{
    DuplicateTool, EnvironmentMaker, Interaction, InvalidPattern, Model, MultiTurn, PythonError,
    PythonWorker, PythonWorkers, RolloutInput, Rubric, Sandboxed, SimulatedUser, SingleTurn, Stop, ToolUse,
    client::{Client, ClientConfig, ClientDialect, ClientError, Prices, PricesError},
    dataset::{ExamplesError, Format},
    parser::{Boxed, CodeBlock, MaybeThink, Parser, Plain, Think, Xml, XmlError, XmlField},
    rubric::{Command, IntoScore, Judge, PythonReward, SandboxCheck, Scene},
    tool::{self, Tool, container},
};

/// Why a model or an interaction cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The client of a model cannot be created.
    #[error("cannot set up the model `{model}`")]
    Client {
        /// The name of the model.
        model: String,
        /// The cause.
        source: ClientError,
    },
    /// A price is invalid.
    #[error("invalid prices of `{model}`")]
    Prices {
        /// The name of the model.
        model: String,
        /// The cause.
        source: PricesError,
    },
    /// Only agents with a preset support the model's API.
    #[error(
        "the model `{model}` has `dialect: {dialect}`, which only agents with a preset can use; write `chat` or `messages`"
    )]
    Dialect {
        /// The name of the model.
        model: String,
        /// The API.
        dialect: &'static str,
    },
    /// The examples are invalid.
    #[error("invalid examples {place}")]
    Dataset {
        /// Their file.
        place: String,
        /// The problems.
        source: ExamplesError,
    },
    /// The examples are on a hub, and were not fetched.
    #[error("the dataset {0} was not fetched; `task::Sources::load` fetches it")]
    NotFetched(Box<HubAddress>),
    /// Two tools have the same name.
    #[error("cannot set up the tools")]
    Tools(#[from] DuplicateTool),
    /// Its rollouts could not be scored or saved.
    #[error("invalid interaction")]
    Unusable(#[from] Unusable),
    /// A parser is invalid.
    #[error("invalid parser")]
    Parser(#[from] XmlError),
    /// The tools of an MCP server are not available.
    #[cfg(feature = "mcp")]
    #[error("cannot set up the tools")]
    Mcp(#[from] tool::mcp::McpError),
    /// A Python function cannot be called.
    #[error("cannot set up the Python functions")]
    Python(#[from] PythonError),
    /// A tool does not have a hidden argument.
    #[error("cannot set up the tools")]
    Hidden(#[from] tool::UnknownArgument),
    /// A stop condition names an unknown tool.
    #[error("the stop condition `{condition}` names the unknown tool `{tool}`")]
    UnknownTool {
        /// The condition.
        condition: String,
        /// The unknown tool.
        tool: String,
    },
    /// A stop condition has an invalid regular expression.
    #[error("invalid stop condition")]
    Pattern(#[from] InvalidPattern),
    /// This build of Rollout does not support MCP servers.
    #[cfg(not(feature = "mcp"))]
    #[error(
        "this build of Rollout does not support MCP, which the tools need; build it with the feature `mcp`"
    )]
    Mcp,
}

/// The resources that the interactions of a job share.
#[derive(Clone)]
pub struct InteractionContext {
    /// Creates the containers.
    pub provider: Arc<dyn Provider>,
    /// A label for the provider's resources.
    pub job: String,
    /// The workers that call Python functions.
    pub python: PythonWorkers,
}

impl fmt::Debug for InteractionContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InteractionContext({}, {})", self.provider.name(), self.job)
    }
}

/// The API for a conversation with the model itself.
fn own_dialect(config: &ModelConfig) -> Result<ClientDialect, BuildError> {
    match config.dialect {
        Dialect::Chat => Ok(ClientDialect::Chat),
        Dialect::Messages => Ok(ClientDialect::Messages),
        other => Err(BuildError::Dialect { model: config.name.clone(), dialect: dialect_name(other) }),
    }
}

/// The model of a job file. Sends no requests.
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
        dialect: own_dialect(config)?,
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

/// The interaction of a job file, with its examples in the order of their attempts.
///
/// Without a context it can be inspected but not run: no container is created, and no MCP server is started.
pub async fn examples(
    name: &DatasetName,
    config: &InteractionConfig,
    context: Option<&InteractionContext>,
) -> Result<ExampleSet, BuildError> {
    if let ExamplesConfig::Hub(address) = &config.dataset {
        return Err(BuildError::NotFetched(Box::new(address.clone())));
    }
    let worker = match context {
        Some(context) => context.python.get(&config.python, &config.directory),
        None => python(config),
    };
    let interaction = interaction(name, config, context, &worker).await?;
    if context.is_some() {
        check_functions(config, &worker).await?;
    }
    let mut rollouts = Rollouts::shared(interaction, rubric_with(name, config, context, &worker)?)
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
            ExamplesConfig::Hub(_) | ExamplesConfig::Inline(_) => "of the interaction".to_owned(),
        };
        BuildError::Dataset { place, source }
    })?;
    let (name, rollouts, examples) = (name.clone(), Arc::new(rollouts), Arc::new(examples));
    Ok(ExampleSet { name, rollouts, examples, resolved: Pins::new() })
}

/// Stores the examples in a file, so that they need no memory.
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
            ExamplesConfig::Hub(_) => unreachable!("the examples were fetched"),
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
    context: Option<&InteractionContext>,
    worker: &PythonWorker,
) -> Result<Arc<dyn Interaction>, BuildError> {
    let stops = stops(config, worker)?;
    match config.kind {
        InteractionKind::SingleTurn => Ok(Arc::new(SingleTurn)),
        InteractionKind::MultiTurn => {
            let conversation = match &config.user {
                Some(user) => MultiTurn::with_user(simulated(user, config, worker)?),
                // Only the model replies; its limits end the conversation.
                None => MultiTurn::new(async |_, _| Ok(Messages::new())),
            };
            Ok(Arc::new(stops.into_iter().fold(conversation, MultiTurn::stop)))
        }
        InteractionKind::ToolUse => {
            let tools = tools(config, context.is_some(), worker).await?;
            if context.is_some() {
                check_called(config, &tools)?;
            }
            let tools = ToolUse::new(tools)?.stop_errors(config.stop_errors.iter().map(String::as_str));
            let tools = stops.into_iter().fold(tools, ToolUse::stop);
            match (&config.environment, context) {
                (Some(container), Some(context)) => {
                    let template = template(name, container);
                    let provider = Arc::clone(&context.provider);
                    Ok(Arc::new(Sandboxed::new(provider, template, context.job.as_str(), tools)))
                }
                _ => Ok(Arc::new(tools)),
            }
        }
    }
}

/// The conditions of an interaction. They are checked in the order of the configuration, after the condition for errors
/// and before those for limits.
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

/// Checks that the tools in stop conditions exist.
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

/// The simulated user of a conversation.
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

/// The Python worker of an interaction outside of a job. It starts with the first call.
fn python(config: &InteractionConfig) -> PythonWorker {
    PythonWorkers::new(config.directory.as_path()).get(&config.python, &config.directory)
}

/// Checks before the first rollout that the Python functions exist.
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
            // Python tools are described by Python itself.
            ToolConfig::Python(_) => {}
            ToolConfig::Container(kinds) => {
                tools.extend(container::tools(kinds, container::COMMAND_TIMEOUT));
            }
            ToolConfig::Mcp(_) => {}
        }
    }
    // These come last, because names of the author's own tools take precedence.
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

/// A tool without the arguments that the rollout fills in.
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
                let message =
                    format!("the rollout has no `{place}`, which is needed for the argument `{name}`");
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

/// The container of an interaction in the form of providers: a task without tests.
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
        cpus: Some(container.cpus),
        memory: Some(container.memory),
        storage: Some(DEFAULT_STORAGE),
    }
}

/// The rubric of an interaction.
pub(crate) fn rubric(config: &InteractionConfig) -> Result<Rubric, BuildError> {
    let name = DatasetName::new("saved").expect("a word is a name");
    rubric_with(&name, config, None, &python(config))
}

fn rubric_with(
    dataset: &DatasetName,
    config: &InteractionConfig,
    context: Option<&InteractionContext>,
    worker: &PythonWorker,
) -> Result<Rubric, BuildError> {
    let mut rubric = Rubric::new().shared_parser(shared_parser(config)?);
    for RubricEntry { name, weight, score } in &config.rubric {
        let (own, entry): (_, Box<dyn FnOnce(Rubric) -> Rubric>) = match score {
            ScoreConfig::Match { how, parser } => {
                (parser, Box::new(|rubric: Rubric| rubric.matching(name, *weight, *how)))
            }
            ScoreConfig::Metric { metric, parser } => {
                let metric = *metric;
                let score = move |scene: &Scene<'_>| {
                    // Only a judge has no score of its own, and no entry has that metric.
                    metric.score(&scene.parsed(), scene.answer).unwrap_or_default()
                };
                (parser, Box::new(move |rubric: Rubric| rubric.reward(name, *weight, score)))
            }
            ScoreConfig::Sandbox { file, content, command, timeout, parser } => {
                let check = match (&config.environment, context) {
                    (Some(container), Some(context)) => {
                        let provider = Arc::clone(&context.provider);
                        let maker = EnvironmentMaker::new(
                            provider,
                            template(dataset, container),
                            context.job.as_str(),
                        );
                        let check = SandboxCheck::new(maker, file.clone(), content.clone(), command.clone());
                        Some(check.timeout(*timeout))
                    }
                    _ => None,
                };
                let entry = move |rubric: Rubric| match check {
                    Some(check) => rubric.sandbox(name, *weight, check),
                    None => rubric.reward(name, *weight, |_: &Scene<'_>| NoContainer),
                };
                (parser, Box::new(entry))
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

/// The score of a check without a container: an error.
struct NoContainer;

impl IntoScore for NoContainer {
    fn into_score(self) -> Result<f64, Box<dyn std::error::Error + Send + Sync>> {
        Err("answers are checked in a container only while a job runs".into())
    }
}

/// The default parser of answers.
fn shared_parser(config: &InteractionConfig) -> Result<Arc<dyn Parser>, XmlError> {
    Ok(config.parser.as_ref().map(parser).transpose()?.unwrap_or_else(|| Arc::new(Plain)))
}

fn parser(config: &ParserConfig) -> Result<Arc<dyn Parser>, XmlError> {
    Ok(match config {
        ParserConfig::Plain => Arc::new(Plain),
        ParserConfig::Think => Arc::new(Think::new()),
        ParserConfig::MaybeThink => Arc::new(MaybeThink::new()),
        ParserConfig::Boxed => Arc::new(Boxed),
        ParserConfig::Code => Arc::new(CodeBlock),
        ParserConfig::Xml { fields, answer_field } => {
            let fields = fields.iter().map(|names| XmlField::from(names.clone()));
            Arc::new(Xml::new(fields, answer_field)?)
        }
    })
}
