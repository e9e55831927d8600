//! Which stop condition ends a rollout.

use async_trait::async_trait;
use rollout::model::{
    Error, ErrorKind, Interaction, Limits, Message, MessageList, Messages, MultiTurn, State, Stop,
    TrajectoryStep,
};
use rollout_testkit::{ModelReply, ModelServer};

use super::{chain, run, stop_condition, try_run};

fn endless() -> MultiTurn {
    MultiTurn::new(async |_, _| Ok(Message::user("go on").into()))
}

/// The condition that ends a rollout whose model says "4" for ever.
async fn ended_by(interaction: MultiTurn) -> String {
    let server = ModelServer::always(ModelReply::text("4"));
    stop_condition(&run(&interaction, &server).await).to_owned()
}

fn always(name: &'static str) -> Stop {
    Stop::new(name, |_| true)
}

fn after_a_turn(name: &'static str) -> Stop {
    Stop::new(name, |state| !state.trajectory.is_empty())
}

#[tokio::test]
async fn conditions_are_checked_by_priority_and_then_by_name() {
    let many = || endless().stop(always("b")).stop(always("a")).stop(always("c"));
    assert_eq!(ended_by(many()).await, "a");
    assert_eq!(ended_by(many().stop(always("z").priority(10))).await, "z");
    assert_eq!(ended_by(endless().stop(always("a").priority(-10)).stop(always("b"))).await, "b");
}

#[tokio::test]
async fn conditions_that_every_rollout_has_are_among_the_others_by_name() {
    let one_turn = || endless().max_turns(1);
    assert_eq!(ended_by(one_turn().stop(after_a_turn("a"))).await, "a");
    assert_eq!(ended_by(one_turn().stop(after_a_turn("no_tools_called"))).await, "max_turns_reached");
    assert_eq!(ended_by(one_turn().stop(after_a_turn("z").priority(1))).await, "z");
    assert_eq!(ended_by(one_turn().stop(after_a_turn("a").priority(-1))).await, "max_turns_reached");
}

#[tokio::test]
async fn a_condition_that_is_met_at_the_start_needs_no_turn() {
    let server = ModelServer::arithmetic();
    let state = run(&endless().stop(always("at_once")), &server).await;
    assert_eq!((stop_condition(&state), server.served()), ("at_once", 0));
    assert_eq!(state.completion, Some(Vec::new()));
}

#[tokio::test]
async fn a_condition_sees_the_state_after_each_response() {
    let third = Stop::new("third", |state| state.trajectory.len() == 3);
    let server = ModelServer::always(ModelReply::text("4"));
    let state = run(&endless().stop(third), &server).await;
    assert_eq!((stop_condition(&state), server.served()), ("third", 3));
}

#[tokio::test]
async fn a_condition_may_take_time_and_fail() {
    let slow = Stop::later("slow", async |state| {
        tokio::task::yield_now().await;
        Ok(state.trajectory.len() == 2)
    });
    assert_eq!(ended_by(endless().stop(slow)).await, "slow");
    // With the highest priority, and at every time it is asked.
    let broken = Stop::later("broken", async |_| Err(Error::new(ErrorKind::Infra, "the scoreboard is down")));
    let server = ModelServer::arithmetic();
    let state = run(&endless().stop(broken.priority(1000)), &server).await;
    assert_eq!((stop_condition(&state), chain(&state.error).as_str()), ("has_error", "InfraError"));
    assert_eq!(server.served(), 0);
}

/// Fails in its first answer and sets its last word at the same time.
struct Failing;

#[async_trait]
impl Interaction for Failing {
    fn stops(&self) -> Vec<Stop> {
        vec![Stop::new("failed", |state| state.error.is_some()).priority(99)]
    }

    async fn env_response(&self, _messages: &MessageList, state: &mut State) -> Result<Messages, Error> {
        state.final_env_response = Some(Vec::new());
        Err(Error::new(ErrorKind::Any, "no answer"))
    }
}

#[tokio::test]
async fn an_error_comes_before_all_conditions_below_its_priority() {
    let state = run(&Failing, &ModelServer::arithmetic()).await;
    assert_eq!((stop_condition(&state), chain(&state.error).as_str()), ("has_error", "Error"));
    assert_eq!(state.trajectory.len(), 1);
}

#[tokio::test]
async fn a_rollout_is_truncated_if_any_of_its_turns_is() {
    let cut = ModelReply::text("4").finish_reason("length");
    let server = ModelServer::turns([cut, ModelReply::text("5")]);
    let state = run(&endless().max_turns(2), &server).await;
    assert!(state.is_truncated && state.trajectory[0].is_truncated && !state.trajectory[1].is_truncated);
}

#[tokio::test]
async fn a_prompt_that_is_too_long_truncates_and_is_not_an_error() {
    let server = ModelServer::turns([ModelReply::text("4"), ModelReply::overlong()]);
    let state = run(&endless().max_turns(5), &server).await;
    assert_eq!((stop_condition(&state), &state.error), ("prompt_too_long", &None));
    assert!(state.prompt_too_long && state.is_truncated && state.is_completed);
    assert_eq!(state.trajectory.len(), 1);
}

#[tokio::test]
async fn failures_of_the_model_are_in_the_state() {
    for (reply, expected) in [
        (ModelReply::empty(), "EmptyModelResponseError"),
        (ModelReply::error(400, "no such model"), "ModelError"),
    ] {
        let state = run(&endless(), &ModelServer::always(reply)).await;
        assert_eq!(stop_condition(&state), "has_error");
        assert!(chain(&state.error).starts_with(expected), "{:?}", state.error);
    }
}

/// Does this with its only turn.
struct Once(fn(&mut State) -> Result<(), Error>);

#[async_trait]
impl Interaction for Once {
    fn max_turns(&self) -> Option<u32> {
        Some(1)
    }

    async fn add_trajectory_step(&self, state: &mut State, step: TrajectoryStep) -> Result<(), Error> {
        state.trajectory.push(step);
        (self.0)(state)
    }
}

#[tokio::test]
async fn of_conditions_that_are_met_together_an_error_counts_and_then_the_first_by_name() {
    let last_word: fn(&mut State) -> Result<(), Error> = |state| {
        state.final_env_response = Some(Vec::new());
        Ok(())
    };
    let tokens = Limits { max_completion_tokens: Some(1), ..Limits::default() };
    for (limits, once, expected) in [
        (Limits::default(), last_word, "has_final_env_response"),
        (tokens, last_word, "has_final_env_response"),
        (Limits::default(), |_| Err(Error::new(ErrorKind::OverlongPrompt, "too long")), "max_turns_reached"),
        (tokens, |_| Ok(()), "max_total_completion_tokens_reached"),
        (tokens, |_| Err(Error::new(ErrorKind::Tool, "broke")), "has_error"),
    ] {
        let state = try_run(&Once(once), &limits, &ModelServer::arithmetic()).await.unwrap();
        assert_eq!(stop_condition(&state), expected);
    }
}
