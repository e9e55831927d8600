//! When each hook of an interaction is called, and what it can do.

use std::sync::Arc;

use async_trait::async_trait;
use rollout::model::{
    Error, ErrorKind, Interaction, Message, MessageList, Messages, Response, SingleTurn, State,
    TrajectoryStep, next_prompt,
};
use rollout_testkit::{ModelReply, ModelServer, TokenCounts};
use serde_json::json;

use super::{Notes, chain, run, said, stop_condition};

#[tokio::test]
async fn a_single_turn_asks_once_and_completes() {
    let server = ModelServer::arithmetic();
    let state = run(&SingleTurn, &server).await;
    assert_eq!(said(state.completion.as_deref().unwrap()), ["assistant: 4"]);
    assert_eq!((state.trajectory.len(), stop_condition(&state)), (1, "max_turns_reached"));
    assert!(state.is_completed && !state.is_truncated && !state.timed_out && state.error.is_none());
    assert_eq!(said(&state.trajectory[0].prompt), ["user: What is 2+2?"]);
    assert_eq!(said(&state.trajectory[0].completion), ["assistant: 4"]);
    assert_eq!(state.trajectory[0].trajectory_id, state.trajectory_id);
    assert_eq!(server.served(), 1);
}

/// Writes down each call of a hook, and ends after the second answer.
struct Witness(Notes);

#[async_trait]
impl Interaction for Witness {
    async fn setup_state(&self, state: &mut State) -> Result<(), Error> {
        assert!(!state.is_completed && !state.is_truncated && state.trajectory.is_empty());
        assert!(state.completion.is_none() && state.reward.is_none() && state.advantage.is_none());
        assert!(state.metrics.is_none() && state.error.is_none() && state.final_env_response.is_none());
        assert!(state.tool_defs.is_empty());
        assert_eq!((state.usage.input_tokens, state.usage.output_tokens), (0.0, 0.0));
        assert!(state.timing.start_time > 0.0 && state.timing.generation_ms == 0.0);
        assert_eq!(state.trajectory_id.len(), 32);
        assert!(state.trajectory_id.chars().all(|c| c.is_ascii_hexdigit()));
        self.0.add("setup");
        Ok(())
    }

    async fn get_prompt_messages(
        &self,
        leader: &dyn Interaction,
        state: &mut State,
    ) -> Result<Messages, Error> {
        self.0.add("prompt");
        next_prompt(leader, state).await
    }

    async fn env_response(&self, messages: &MessageList, state: &mut State) -> Result<Messages, Error> {
        self.0.add(format!("answer to {}", messages.last().unwrap().text()));
        let answer = Message::user("and now?").into();
        if state.trajectory.len() == 2 {
            state.final_env_response = Some(Message::user("enough").into());
        }
        Ok(answer)
    }

    async fn get_model_response(&self, state: &mut State, prompt: &MessageList) -> Result<Response, Error> {
        self.0.add("ask");
        let model = Arc::clone(&state.model);
        model.client.respond(&model, prompt, &state.tool_defs, &state.trajectory_id).await
    }

    async fn add_trajectory_step(&self, state: &mut State, mut step: TrajectoryStep) -> Result<(), Error> {
        self.0.add("add");
        step.reward = Some(state.trajectory.len() as f64);
        step.extras.insert("turn".to_owned(), json!(state.trajectory.len()));
        state.trajectory.push(step);
        Ok(())
    }

    async fn render_completion(&self, state: &mut State) -> Result<(), Error> {
        self.0.add(format!("render after {}", stop_condition(state)));
        state.completion = Some(state.conversation_after_prompt());
        Ok(())
    }
}

#[tokio::test]
async fn hooks_are_called_in_their_order_and_the_last_word_needs_no_turn() {
    let server =
        ModelServer::turns([ModelReply::text("one"), ModelReply::text("two"), ModelReply::text("three")]);
    let notes = Notes::default();
    let state = run(&Witness(notes.clone()), &server).await;
    let turn = ["prompt", "ask", "add"];
    let expected = [
        &["setup"][..],
        &turn,
        &["prompt", "answer to one", "ask", "add"],
        &["prompt", "answer to two", "render after has_final_env_response"],
    ];
    assert_eq!(notes.all(), expected.concat());
    assert_eq!(server.served(), 2);
    assert_eq!(
        said(state.completion.as_deref().unwrap()),
        ["assistant: one", "user: and now?", "assistant: two", "user: enough"]
    );
}

#[tokio::test]
async fn each_turn_sends_all_messages_to_the_model() {
    let server = ModelServer::turns([ModelReply::text("one"), ModelReply::text("two")]);
    let state = run(&Witness(Notes::default()), &server).await;
    let prompts: Vec<_> = state.trajectory.iter().map(|step| said(&step.prompt)).collect();
    assert_eq!(prompts[0], ["user: What is 2+2?"]);
    assert_eq!(prompts[1], ["user: What is 2+2?", "assistant: one", "user: and now?"]);
    assert_eq!(server.requests()[1].messages().len(), 3);
}

#[tokio::test]
async fn a_step_carries_the_rewards_and_extras_that_its_hook_set() {
    let server = ModelServer::turns([ModelReply::text("one"), ModelReply::text("two")]);
    let state = run(&Witness(Notes::default()), &server).await;
    let rewards: Vec<_> = state.trajectory.iter().map(|step| step.reward).collect();
    let extras: Vec<_> = state.trajectory.iter().map(|step| step.extras["turn"].clone()).collect();
    assert_eq!((rewards, extras), (vec![Some(0.0), Some(1.0)], vec![json!(0), json!(1)]));
}

#[tokio::test]
async fn usage_is_summed_over_all_turns() {
    let counts = TokenCounts {
        prompt: 10,
        cached: 4,
        completion: 5,
        reasoning: 2,
        cost: Some(0.25),
        ..TokenCounts::default()
    };
    let replies = [
        ModelReply::text("one").usage(counts),
        ModelReply::text("two").usage(TokenCounts { prompt: 20, ..counts }),
    ];
    let server = ModelServer::turns(replies);
    let usage = run(&Witness(Notes::default()), &server).await.usage;
    assert_eq!((usage.input_tokens, usage.output_tokens), (30.0, 10.0));
    assert_eq!((usage.cached_tokens, usage.reasoning_tokens), (8.0, 4.0));
    assert_eq!((usage.cost, usage.responses), (Some(0.5), 2));
}

#[tokio::test]
async fn a_response_without_usage_adds_none() {
    let server = ModelServer::always(ModelReply::text("4").no_usage());
    let usage = run(&SingleTurn, &server).await.usage;
    assert_eq!((usage.input_tokens, usage.cost, usage.responses), (0.0, None, 0));
}

#[tokio::test]
async fn the_time_to_the_stop_is_that_of_generation_and_so_far_all_of_it() {
    let timing = run(&SingleTurn, &ModelServer::arithmetic()).await.timing;
    assert!(timing.generation_ms > 0.0);
    assert_eq!((timing.total_ms, timing.scoring_ms), (timing.generation_ms, 0.0));
}

/// Shows the model something else, and keeps only its last words.
struct Sidetrack;

#[async_trait]
impl Interaction for Sidetrack {
    fn max_turns(&self) -> Option<u32> {
        Some(1)
    }

    async fn setup_state(&self, state: &mut State) -> Result<(), Error> {
        state.set("special_mode", true).unwrap();
        Ok(())
    }

    async fn get_prompt_messages(
        &self,
        leader: &dyn Interaction,
        state: &mut State,
    ) -> Result<Messages, Error> {
        if state.flag("special_mode") {
            return Ok(Message::user("What is 3+3?").into());
        }
        next_prompt(leader, state).await
    }

    async fn render_completion(&self, state: &mut State) -> Result<(), Error> {
        let last = state.trajectory.last().map(|turn| turn.completion.clone());
        state.completion = Some(last.unwrap_or_default());
        Ok(())
    }
}

#[tokio::test]
async fn prompts_and_completions_can_be_made_in_another_way() {
    let state = run(&Sidetrack, &ModelServer::arithmetic()).await;
    assert_eq!(said(state.completion.as_deref().unwrap()), ["assistant: 6"]);
    assert_eq!(said(&state.trajectory[0].prompt), ["user: What is 3+3?"]);
    assert_eq!(state.get("special_mode"), Some(json!(true)));
}

/// Cannot be set up.
struct Unready(ErrorKind);

#[async_trait]
impl Interaction for Unready {
    async fn setup_state(&self, _state: &mut State) -> Result<(), Error> {
        Err(Error::new(self.0.clone(), "not today"))
    }
}

#[tokio::test]
async fn an_error_of_the_setup_ends_the_rollout_before_the_model_is_asked() {
    let server = ModelServer::arithmetic();
    let state = run(&Unready(ErrorKind::Sandbox), &server).await;
    assert_eq!((stop_condition(&state), chain(&state.error).as_str()), ("has_error", "SandboxError"));
    assert_eq!((server.served(), state.completion), (0, Some(Messages::new())));
    let state = run(&Unready(ErrorKind::OverlongPrompt), &server).await;
    assert_eq!((stop_condition(&state), &state.error), ("prompt_too_long", &None));
    assert_eq!(server.served(), 0);
}

/// Fails in this hook after its first turn.
struct FailsIn(&'static str, ErrorKind);

impl FailsIn {
    fn reach(&self, hook: &str, state: &State) -> Result<(), Error> {
        match hook == self.0 && state.trajectory.len() == 1 {
            true => Err(Error::new(self.1.clone(), "not now")),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Interaction for FailsIn {
    fn max_turns(&self) -> Option<u32> {
        Some(3)
    }

    async fn get_prompt_messages(
        &self,
        leader: &dyn Interaction,
        state: &mut State,
    ) -> Result<Messages, Error> {
        self.reach("prompt", state)?;
        next_prompt(leader, state).await
    }

    async fn env_response(&self, _messages: &MessageList, state: &mut State) -> Result<Messages, Error> {
        self.reach("answer", state)?;
        Ok(Message::user("and now?").into())
    }

    async fn get_model_response(&self, state: &mut State, prompt: &MessageList) -> Result<Response, Error> {
        self.reach("ask", state)?;
        let model = Arc::clone(&state.model);
        model.client.respond(&model, prompt, &state.tool_defs, &state.trajectory_id).await
    }

    async fn add_trajectory_step(&self, state: &mut State, step: TrajectoryStep) -> Result<(), Error> {
        self.reach("add", state)?;
        state.trajectory.push(step);
        Ok(())
    }
}

#[tokio::test]
async fn an_error_of_any_hook_ends_the_rollout_and_keeps_the_turns_before_it() {
    let server = ModelServer::always(ModelReply::text("4"));
    for hook in ["prompt", "answer", "ask", "add"] {
        let state = run(&FailsIn(hook, ErrorKind::Tool), &server).await;
        assert_eq!(
            (stop_condition(&state), chain(&state.error).as_str()),
            ("has_error", "ToolError"),
            "{hook}"
        );
        assert!(state.is_completed && !state.is_truncated, "{hook}");
        assert_eq!(said(state.completion.as_deref().unwrap()), ["assistant: 4"], "{hook}");
        let state = run(&FailsIn(hook, ErrorKind::OverlongPrompt), &server).await;
        assert_eq!((stop_condition(&state), &state.error), ("prompt_too_long", &None), "{hook}");
        assert!(state.is_completed && state.is_truncated && state.trajectory.len() == 1, "{hook}");
    }
    assert_eq!(run(&FailsIn("", ErrorKind::Tool), &server).await.trajectory.len(), 3);
}
