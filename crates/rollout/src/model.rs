//! Model rollouts: a model attempts an example turn by turn, and a rubric scores the result.
//!
//! A rollout is one conversation from a prompt to a score. It has four parts:
//!
//! | | | |
//! | --- | --- | --- |
//! | [`Model`] | who | a [`Client`], the name of the model on its server, its sampling arguments |
//! | [`RolloutInput`] | what | the first messages, the correct answer, other data: a row of a [`dataset`] |
//! | [`Interaction`] | how | what happens between two turns; [`SingleTurn`], [`MultiTurn`] and [`ToolUse`] are built in |
//! | [`Rubric`] | how good | functions of the finished [`State`], each with a weight |
//!
//! [`Rollouts`] combines the last three. The examples below go from one question to tools.
//!
//! # A question
//!
//! ```
//! use rollout::model::{
//!     Client, Model, Rollouts, Rubric, SamplingArgs, SingleTurn,
//!     client::ClientConfig,
//!     dataset::{Format, rows},
//! };
//!
//! # use rollout_testkit::{ModelServer, Script};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = ModelServer::start(Script::arithmetic());
//! # let base_url = server.url();
//! let client = Client::new(ClientConfig { api_key: Some("sk-…".into()), ..ClientConfig::new(base_url) })?;
//! let sampling = SamplingArgs::from_iter([("temperature".to_owned(), 0.7.into())]);
//! let model = Model { sampling, ..Model::new(client, "gpt-4.1-mini") };
//!
//! let rows = rows(r#"{"question": "What is 2+2?", "answer": "4"}"#)?;
//! let system_prompt = Some(r"Put your final answer into \boxed{}.".to_owned());
//! let examples = Format { system_prompt, ..Format::default() }.inputs(rows)?;
//! let math = Rollouts::new(SingleTurn, Rubric::math()).dataset(examples);
//!
//! let state = math.rollout(math.examples()[0].clone(), model).await?;
//! assert_eq!(state.completion.unwrap()[0].text(), r"The answer is \boxed{4}.");
//! assert_eq!(state.reward, Some(1.0));
//! assert_eq!(state.stop_condition.as_deref(), Some("max_turns_reached"));
//! # Ok(())
//! # }
//! ```
//!
//! If a model or a tool fails, the rollout still has a state: [`State::error`] has the error, and the rollout is scored
//! like any other. Only a rejected key is an error of the call.
//!
//! # Many questions
//!
//! [`Rollouts::evaluate`] runs several rollouts of each example, and [`Rollouts::generate`] those of the given inputs.
//! Both run as a [job](crate::job). With a directory, results are saved when they are finished, and a second call does
//! only what is missing.
//!
//! ```
//! use rollout::model::{Rollouts, Rubric, RunOptions, Examples, SingleTurn, dataset};
//!
//! # use rollout::model::{Client, Model, client::ClientConfig};
//! # use rollout_testkit::{ModelServer, Script};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = ModelServer::start(Script::arithmetic());
//! # let model = Model::new(Client::new(ClientConfig::new(server.url()))?, "m");
//! # let temporary = tempfile::tempdir()?;
//! # let directory = temporary.path().join("sums");
//! let rows = dataset::rows(
//!     r#"[{"question": "What is 1+1?", "answer": 2}, {"question": "What is love?", "answer": "?"}]"#,
//! )?;
//! let rubric = Rubric::new()
//!     .reward("right", 1.0, |scene| scene.parsed() == scene.answer)
//!     .metric("letters", |scene| scene.parsed().len());
//! let sums = Rollouts::new(SingleTurn, rubric)
//!     .dataset(dataset::Format::default().inputs(rows)?)
//!     .env_id("sums");
//!
//! let options = RunOptions::new(model)
//!     .max_concurrent(64)
//!     .save_to(&directory)
//!     .on_progress(async |all, new, so_far| println!("{} (+{}): {}", all.len(), new.len(), so_far.avg_reward));
//! let results = sums.evaluate(Examples::all().rollouts(4), options).await?;
//!
//! assert_eq!(results.outputs.len(), 8);
//! assert_eq!(results.metadata.avg_reward, 0.5);
//! assert_eq!(results.metadata.pass_at_k["1"], 0.5);
//! assert!(directory.join("outputs.jsonl").exists());
//! # Ok(())
//! # }
//! ```
//!
//! The rollouts of one example are a group. They are scored together, so that a rubric can compare them
//! ([`Rubric::group_reward`]) and each gets an advantage over the others ([`State::advantage`]).
//!
//! # A conversation
//!
//! In [`MultiTurn`] a function replies to the model. It stores data in the state, because it serves many rollouts at
//! once.
//!
//! ```
//! use rollout::model::{Message, MultiTurn, RolloutInput, Rollouts, Rubric};
//!
//! # use rollout::model::{Client, Model, client::ClientConfig};
//! # use rollout_testkit::{ModelServer, Script};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = ModelServer::start(Script::guess());
//! # let model = Model::new(Client::new(ClientConfig::new(server.url()))?, "m");
//! let game = MultiTurn::new(async |messages, state| {
//!     let guess: Option<i64> = messages.last().and_then(|last| last.text().parse().ok());
//!     let number: Option<i64> = state.input.answer.as_ref().and_then(|answer| answer.parse().ok());
//!     if guess == number {
//!         state.set("won", true)?;
//!         // The final reply: the rollout ends without another turn.
//!         state.final_env_response = Some(Message::user("Right!").into());
//!     }
//!     Ok(Message::user(if guess < number { "Higher." } else { "Lower." }).into())
//! })
//! .max_turns(8);
//! let rubric = Rubric::new().reward("won", 1.0, |scene| scene.state.flag("won"));
//!
//! let input = RolloutInput {
//!     prompt: Message::user("Guess my number, from 1 to 100.").into(),
//!     answer: Some("75".to_owned()),
//!     ..RolloutInput::default()
//! };
//! let state = Rollouts::new(game, rubric).rollout(input, model).await?;
//! let said: Vec<_> = state.completion.iter().flatten().map(|message| message.text()).collect();
//! assert_eq!(said, ["50", "Higher.", "75", "Right!"]);
//! assert_eq!(state.reward, Some(1.0));
//! # Ok(())
//! # }
//! ```
//!
//! For more than a reply, implement an [`Interaction`]: setup and cleanup, stop conditions, prompts, rewards and notes
//! for single turns. It can extend an existing one, such as [`ToolUse`], and then has only the hooks that differ.
//! `docs/environments.md` is its tutorial.
//!
//! # Tools
//!
//! [`ToolUse`] lets the model call functions until it answers without a call. The arguments of a function are a struct:
//! the tool definition for the model is derived from it.
//!
//! ```
//! use rollout::model::{
//!     Rollouts, Rubric, RunOptions, Examples, ToolUse, dataset, parser::Xml, rubric::Match, tool,
//! };
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct City {
//!     /// The name of the city, in English.
//!     name: String,
//! }
//!
//! # use rollout::model::{Client, Model, client::ClientConfig};
//! # use rollout_testkit::{ModelServer, ModelReply};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = ModelServer::turns([
//! #     ModelReply::tool_call("population", &serde_json::json!({"name": "Atlantis"})),
//! #     ModelReply::tool_call("population", &serde_json::json!({"name": "Bern"})),
//! #     ModelReply::text("<answer>137000</answer>"),
//! # ]);
//! # let model = Model::new(Client::new(ClientConfig::new(server.url()))?, "m");
//! let population = tool::function("population", "Returns how many people live in a city.", async |city: City| {
//!     match city.name.as_str() {
//!         "Bern" => Ok(137_000),
//!         // The model gets the message, and can react in its next turn.
//!         other => Err(tool::ToolFailure::new("KeyError", format!("unknown city: {other}"))),
//!     }
//! });
//! let rubric = Rubric::new()
//!     .parser(Xml::new(["answer".into()], "answer")?)
//!     .matching("right", 1.0, Match::Numeric)
//!     .reward("thrifty", 0.1, |scene| rollout::model::total_tool_calls(scene.state) <= 1);
//! let rows = dataset::rows(r#"{"question": "How many people live in Bern?", "answer": "137000"}"#)?;
//! let cities = Rollouts::new(ToolUse::new([population])?.max_turns(5), rubric)
//!     .dataset(dataset::Format::default().inputs(rows)?);
//!
//! let results = cities.evaluate(Examples::all(), RunOptions::new(model)).await?;
//! let row = &results.outputs[0];
//! assert_eq!(row.completion.as_ref().unwrap()[1].text(), "unknown city: Atlantis");
//! assert_eq!((row.metrics["right"], row.metrics["thrifty"]), (1.0, 0.0));
//! assert_eq!(row.metrics["population_calls"], 2.0);
//! assert_eq!(row.stop_condition.as_deref(), Some("no_tools_called"));
//! # Ok(())
//! # }
//! ```
//!
//! # From here
//!
//! - [`tool::container`] has tools inside a container, which [`Sandboxed`] creates for each rollout; `tool::mcp` has those
//!   of MCP servers.
//! - [`rubric::Judge`] grades with a model, [`rubric::Command`] with a program in any language; [`parser`] finds answers in text.
//! - [`Limits`] ends a rollout by turns, tokens, cost or time.
//! - [`samples`] turns finished rollouts into token sequences for training.
//! - [`build`] creates all of this from a job file.

pub use rollout_core::{
    advantage::{self, Advantage, AdvantageEstimator},
    message::{Content, Message, MessageList, Messages, Role, ToolCall, ToolDef},
    response::{FinishReason, Response, ResponseTokens, RoutedExperts, TokenUsage},
    row::{OutputError, OutputUsage, RolloutOutput, Timing},
};
pub use rollout_model::{
    AsyncHook, BoxFuture, Cause, Cleanup, Client, DuplicateTool, Error, ErrorKind, FairLimiter, FairPermit,
    FieldError, Halt, Interaction, InteractionGroup, InvalidPattern, Limits, Model, MultiTurn, PythonError,
    PythonFunction, PythonWorker, PythonWorkers, Resources, RolloutInput, Rubric, RubricError, SamplingArgs,
    Sandboxed, Share, SimulatedUser, SingleTurn, State, StepTokens, Stop, StopError, ToolUse, TrajectoryStep,
    Usage, client, dataset, metric, next_prompt, num_turns, output, parser, rollout, rollout_observed,
    rubric, state_to_output, tool, tool_calls, total_tool_calls,
};
pub use rollout_record::{
    metadata::{self, GenerateMetadata},
    samples,
};

pub use crate::{
    attempts::{TaskAttempts, TaskOutputs, TaskRollouts},
    build,
    generate::{Examples, GenerateError, GenerateOutputs, RunOptions},
    rollouts::{RolloutError, Rollouts, Unusable},
};
