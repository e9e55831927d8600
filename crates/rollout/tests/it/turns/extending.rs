//! Interactions that extend others, and override only what differs.

use async_trait::async_trait;
use rollout::model::{
    Cleanup, Error, ErrorKind, Interaction, Message, MessageList, Messages, State, Stop, ToolUse,
    next_prompt, tool,
};
use rollout_testkit::{ModelReply, ModelServer};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{Notes, chain, run, said, stop_condition};

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

fn tools() -> ToolUse<'static> {
    ToolUse::new([tool::function("ping", "?", async |_: Nothing| "pong")]).unwrap()
}

/// Says something after each answer of a tool.
struct Talkative(ToolUse<'static>);

#[async_trait]
impl Interaction for Talkative {
    fn base(&self) -> Option<&dyn Interaction> {
        Some(&self.0)
    }

    async fn env_response(&self, messages: &MessageList, state: &mut State) -> Result<Messages, Error> {
        let mut answers = self.0.env_response(messages, state).await?;
        answers.push(Message::user("and now?").into());
        Ok(answers)
    }
}

#[tokio::test]
async fn hooks_that_are_not_overridden_are_those_of_the_base() {
    let ping = ModelReply::tool_call("ping", &json!({}));
    let server = ModelServer::turns([ping, ModelReply::text("done")]);
    let state = run(&Talkative(tools()), &server).await;
    assert_eq!(state.tool_defs[0].name, "ping");
    assert_eq!(
        said(state.completion.as_deref().unwrap()),
        ["assistant: ", "tool: pong", "user: and now?", "assistant: done"]
    );
    assert_eq!(stop_condition(&state), "no_tools_called");
    let endless = ModelServer::always(ModelReply::tool_call("ping", &json!({})));
    let state = run(&Talkative(tools().max_turns(2)), &endless).await;
    assert_eq!((stop_condition(&state), state.trajectory.len()), ("max_turns_reached", 2));
}

/// Writes down what it does, and shows the model only what was said last.
struct Layer {
    name: &'static str,
    notes: Notes,
    base: Option<Box<dyn Interaction>>,
    breaks: bool,
}

impl Layer {
    fn new(name: &'static str, notes: &Notes) -> Self {
        Self { name, notes: notes.clone(), base: None, breaks: false }
    }

    fn over(self, base: impl Interaction + 'static) -> Self {
        Self { base: Some(Box::new(base)), ..self }
    }
}

#[async_trait]
impl Interaction for Layer {
    fn base(&self) -> Option<&dyn Interaction> {
        self.base.as_deref()
    }

    fn max_turns(&self) -> Option<u32> {
        Some(2)
    }

    fn cleanups(&self) -> Vec<Cleanup> {
        let (name, notes) = (self.name, self.notes.clone());
        vec![Cleanup::new(name, async move |_| {
            notes.add(format!("clean up {name}"));
            Ok(())
        })]
    }

    async fn setup_state(&self, _: &mut State) -> Result<(), Error> {
        self.notes.add(format!("set up {}", self.name));
        if self.breaks { Err(Error::new(ErrorKind::Sandbox, "no room")) } else { Ok(()) }
    }

    async fn get_prompt_messages(
        &self,
        leader: &dyn Interaction,
        state: &mut State,
    ) -> Result<Messages, Error> {
        let all = next_prompt(leader, state).await?;
        Ok(all.last().into_iter().cloned().collect())
    }
}

#[tokio::test]
async fn setups_and_cleanups_nest() {
    let notes = Notes::default();
    let server = ModelServer::always(ModelReply::text("4"));
    let base = Layer::new("base", &notes).over(tools());
    run(&Layer::new("extension", &notes).over(base), &server).await;
    assert_eq!(notes.all(), ["set up base", "set up extension", "clean up extension", "clean up base"]);
}

#[tokio::test]
async fn if_the_base_cannot_be_set_up_the_extension_is_only_cleaned_up() {
    let notes = Notes::default();
    let server = ModelServer::arithmetic();
    let base = Layer { breaks: true, ..Layer::new("base", &notes) };
    let state = run(&Layer::new("extension", &notes).over(base), &server).await;
    assert_eq!((chain(&state.error).as_str(), server.served()), ("SandboxError", 0));
    assert_eq!(notes.all(), ["set up base", "clean up extension", "clean up base"]);
}

/// Answers, and leaves the prompt to its base.
struct Answering(Layer);

#[async_trait]
impl Interaction for Answering {
    fn base(&self) -> Option<&dyn Interaction> {
        Some(&self.0)
    }

    async fn env_response(&self, _: &MessageList, _: &mut State) -> Result<Messages, Error> {
        Ok(Message::user("What is 3+3?").into())
    }
}

#[tokio::test]
async fn a_hook_of_the_base_calls_the_hooks_of_the_extension() {
    let state = run(&Answering(Layer::new("base", &Notes::default())), &ModelServer::arithmetic()).await;
    let prompts: Vec<_> = state.trajectory.iter().map(|step| said(&step.prompt)).collect();
    assert_eq!(prompts, [["user: What is 2+2?"], ["user: What is 3+3?"]]);
}

/// Has these conditions beside those of tool use.
struct Stopping(ToolUse<'static>, Vec<Stop>);

impl Interaction for Stopping {
    fn base(&self) -> Option<&dyn Interaction> {
        Some(&self.0)
    }

    fn stops(&self) -> Vec<Stop> {
        self.1.clone()
    }
}

#[tokio::test]
async fn conditions_are_added_to_those_of_the_base_and_replace_those_of_the_same_name() {
    let server = ModelServer::always(ModelReply::text("4"));
    for (stops, ended_by, turns) in [
        (vec![], "no_tools_called", 1),
        (vec![Stop::new("at_once", |_| true)], "at_once", 0),
        (vec![Stop::new("no_tools_called", |_| false)], "max_turns_reached", 3),
    ] {
        let state = run(&Stopping(tools().max_turns(3), stops), &server).await;
        assert_eq!((stop_condition(&state), state.trajectory.len()), (ended_by, turns));
    }
}
