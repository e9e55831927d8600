//! A model at work on a task: it calls tools in the trial's environment until it is done.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::trajectory::TurnLog;
use crate::config::ModelAgentConfig;
use rollout_core::{
    message::{Message, MessageList, Messages},
    response::Response,
};
use rollout_env::Environment;
use rollout_model::{
    Error, Halt, Interaction, Limits, Model, RolloutInput, State, ToolUse, TrajectoryStep, rollout,
    tool::container,
};

/// The default system prompt.
const SYSTEM_PROMPT: &str = "\
You work on a task in a Linux environment, by yourself: the tools are your only way to look at it and to change it, \
and you cannot ask questions. Find out what is there, do what the task asks for, and check that it works. \
The result is graded by tests that you cannot see, on the state in which you leave the environment. \
When the task is done, say so in a short message without calling a tool: that ends your work.";

/// How long one command may take. Builds and test suites need minutes.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);

/// The default limit of turns.
const MAX_TURNS: u32 = 200;

/// Everything that a model needs to work on a task.
pub(crate) struct Conversation<'a> {
    pub(crate) model: Arc<Model>,
    pub(crate) config: &'a ModelAgentConfig,
    /// What is to be done.
    pub(crate) instruction: String,
    pub(crate) environment: &'a dyn Environment,
    /// Variables of the commands that it runs.
    pub(crate) env: &'a [(String, String)],
    /// The time that it has.
    pub(crate) time: Duration,
    pub(crate) log: &'a TurnLog,
}

impl Conversation<'_> {
    /// Lets the model work until it is done or has to stop. The error is one that no other trial of the model gets
    /// around.
    pub(crate) async fn lead(self) -> Result<State, Error> {
        let Self { model, config, instruction, environment, env, time, log } = self;
        let system = config.system_prompt.as_deref().unwrap_or(SYSTEM_PROMPT);
        let system = Some(system).filter(|prompt| !prompt.is_empty()).map(Message::system);
        let prompt = system.into_iter().chain([Message::user(instruction)]).map(Arc::new).collect();
        let input = RolloutInput { prompt, task: "container".to_owned(), ..RolloutInput::default() };
        let tools = container::tools_in(environment, &container::ALL, COMMAND_TIMEOUT.min(time), env);
        let tools = ToolUse::new(tools).expect("each of the tools has a name of its own");
        let interaction = Logged { tools: tools.max_turns(MAX_TURNS), log };
        let own = config.limits.timeout;
        let limits = Limits { timeout: Some(own.map_or(time, |own| own.min(time))), ..config.limits };
        // A cancelled trial drops this future.
        let cancel = CancellationToken::new();
        match rollout(&interaction, &limits, input, model, &cancel).await {
            Ok(state) => {
                log.stop(&state);
                Ok(state)
            }
            Err(Halt::Unauthorized(error)) => {
                log.refuse(&error);
                Err(error)
            }
            Err(Halt::Cancelled) => unreachable!("the token is never cancelled"),
        }
    }
}

/// Tool use of which every turn is noted.
struct Logged<'a> {
    tools: ToolUse<'a>,
    log: &'a TurnLog,
}

#[async_trait]
impl Interaction for Logged<'_> {
    fn base(&self) -> Option<&dyn Interaction> {
        Some(&self.tools)
    }

    async fn setup_state(&self, state: &mut State) -> Result<(), Error> {
        self.log.begin(state);
        Ok(())
    }

    async fn env_response(&self, messages: &MessageList, state: &mut State) -> Result<Messages, Error> {
        self.log.execute();
        let started = Instant::now();
        let answers = self.tools.env_response(messages, state).await?;
        self.log.answer(&answers, started.elapsed());
        Ok(answers)
    }

    async fn get_model_response(&self, state: &mut State, prompt: &MessageList) -> Result<Response, Error> {
        self.log.ask();
        self.tools.get_model_response(state, prompt).await
    }

    async fn add_trajectory_step(&self, state: &mut State, step: TrajectoryStep) -> Result<(), Error> {
        self.log.respond(&step.response);
        self.tools.add_trajectory_step(state, step).await
    }
}
