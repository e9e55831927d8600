//! Limits that end a rollout whatever its interaction thinks.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use rollout::model::{
    Error, Interaction, Limits, Message, MessageList, MultiTurn, Response, SingleTurn, State,
};
use rollout_testkit::{ModelReply, ModelServer, TokenCounts};

use super::{said, stop_condition, try_run};

/// The condition that ends a rollout of turns that take 10 tokens, 4 of them written, and 0.5 dollars; and its turns.
async fn ended_by(limits: Limits) -> (String, usize) {
    let counts = TokenCounts { prompt: 6, completion: 4, cost: Some(0.5), ..TokenCounts::default() };
    let server = ModelServer::always(ModelReply::text("4").usage(counts));
    let endless = MultiTurn::new(async |_, _| Ok(Message::user("go on").into()));
    let state = try_run(&endless.max_turns(6), &limits, &server).await.unwrap();
    (stop_condition(&state).to_owned(), state.trajectory.len())
}

#[tokio::test]
async fn a_limit_ends_the_rollout_before_the_turn_after_it_was_reached() {
    let none = Limits::default();
    for (limits, stop, turns) in [
        (none, "max_turns_reached", 6),
        (Limits { max_turns: Some(3), ..none }, "max_turns_reached", 3),
        (Limits { max_completion_tokens: Some(8), ..none }, "max_total_completion_tokens_reached", 2),
        (Limits { max_completion_tokens: Some(9), ..none }, "max_total_completion_tokens_reached", 3),
        (Limits { max_total_tokens: Some(40), ..none }, "max_total_tokens_reached", 4),
        (Limits { max_cost: Some(0.75), ..none }, "max_cost_reached", 2),
        (Limits { timeout: Some(Duration::ZERO), ..none }, "timeout_reached", 0),
        (
            Limits { max_turns: Some(2), max_completion_tokens: Some(8), ..none },
            "max_total_completion_tokens_reached",
            2,
        ),
        (Limits { max_turns: Some(2), max_cost: Some(1.0), ..none }, "max_cost_reached", 2),
    ] {
        assert_eq!(ended_by(limits).await, (stop.to_owned(), turns), "{limits:?}");
    }
}

#[tokio::test]
async fn none_and_zero_turns_mean_no_limit() {
    let three = |turns: u32| {
        MultiTurn::new(async |_, state| {
            if state.trajectory.len() == 3 {
                state.final_env_response = Some(Vec::new());
            }
            Ok(Message::user("go on").into())
        })
        .max_turns(turns)
    };
    let server = ModelServer::always(ModelReply::text("4"));
    let state = try_run(&three(0), &Limits::default(), &server).await.unwrap();
    assert_eq!((stop_condition(&state), state.trajectory.len()), ("has_final_env_response", 3));
    // The limit of the rollout takes the place of the interaction's.
    let limits = Limits { max_turns: Some(0), ..Limits::default() };
    let state = try_run(&three(2), &limits, &server).await.unwrap();
    assert_eq!(state.trajectory.len(), 3);
}

#[tokio::test]
async fn an_unknown_cost_reaches_no_limit() {
    let limits = Limits { max_cost: Some(0.0), ..Limits::default() };
    let state = try_run(&SingleTurn, &limits, &ModelServer::arithmetic()).await.unwrap();
    assert_eq!(stop_condition(&state), "max_turns_reached");
}

/// Answers at once in the first turn, and never in the second.
struct Stuck(ModelServer);

#[async_trait]
impl Interaction for Stuck {
    async fn get_model_response(&self, state: &mut State, prompt: &MessageList) -> Result<Response, Error> {
        if state.trajectory.len() == 1 {
            std::future::pending::<()>().await;
        }
        // The clock stands still in these tests, but not while the runtime has nothing else to do.
        let model = Arc::clone(&state.model);
        let (prompt, tools, id) =
            (prompt.to_vec(), Arc::clone(&state.tool_defs), Arc::clone(&state.trajectory_id));
        let asked = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(model.client.respond(&model, &prompt, &tools, &id))
        });
        asked.join().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_interrupts_a_turn_and_keeps_those_before_it() {
    let stuck = Stuck(ModelServer::arithmetic());
    let limits = Limits { timeout: Some(Duration::from_secs(60)), ..Limits::default() };
    let state = try_run(&stuck, &limits, &stuck.0).await.unwrap();
    assert_eq!((stop_condition(&state), state.trajectory.len()), ("timeout_reached", 1));
    assert!(state.timed_out && state.is_completed && state.error.is_none());
    assert_eq!(said(state.completion.as_deref().unwrap()), ["assistant: 4"]);
    assert_eq!(state.timing.generation_ms, 60_000.0);
}
