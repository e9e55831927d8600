//! What is known of a rollout before its first turn, and how its fields are found by name.

use std::sync::Arc;

use rollout::model::{
    Client, FieldError, Limits, Message, Model, RolloutInput, SamplingArgs, SingleTurn, State, ToolDef,
    client::ClientConfig,
    dataset::{Format, rows},
    rollout,
};
use rollout_testkit::{ModelReply, ModelServer};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::model;

fn state(input: RolloutInput) -> State {
    let mut model = (*model(&ModelServer::echo())).clone();
    model.sampling = SamplingArgs::from_iter([("temperature".to_owned(), json!(0.7))]);
    State::new(input, Arc::new(model), Arc::new([]))
}

fn sum() -> RolloutInput {
    let row = json!([{"prompt": [{"role": "user", "content": "What is 2+2?"}], "answer": "4", "task": "math-qa", "level": "easy"}]);
    Format::default().inputs(rows(&row.to_string()).unwrap()).unwrap().remove(0)
}

#[test]
fn a_rollout_starts_with_its_input_its_model_and_nothing_done() {
    let state = state(sum());
    let expected = json!({
        "prompt": [{"role": "user", "content": "What is 2+2?"}],
        "answer": "4",
        "example_id": 0,
        "task": "math-qa",
        "info": {},
        "model": "test",
        "sampling_args": {"temperature": 0.7},
        "tool_defs": [],
        "is_completed": false,
        "is_truncated": false,
        "stop_condition": null,
        "trajectory": [],
        "completion": null,
        "reward": null,
        "advantage": null,
        "metrics": null,
        "error": null,
        "final_env_response": null,
        "prompt_too_long": false,
        "timed_out": false,
        "usage": {"input_tokens": 0.0, "output_tokens": 0.0},
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(state.get(name).as_ref(), Some(value), "{name}");
    }
    let timing = state.timing;
    assert!(timing.start_time > 1.7e9, "seconds since 1970: {timing:?}");
    assert_eq!((timing.generation_ms, timing.scoring_ms, timing.total_ms), (0.0, 0.0, 0.0));
    assert_eq!(state.get("timing").unwrap()["start_time"], timing.start_time);
    assert_eq!(state.get("no_such"), None);
}

#[test]
fn each_rollout_has_a_name_of_its_own_of_32_hexadecimal_digits() {
    let (one, other) = (state(sum()).trajectory_id, state(sum()).trajectory_id);
    assert_ne!(one, other);
    assert!(one.len() == 32 && one.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{one}");
}

#[test]
fn fields_of_the_input_are_read_and_changed_in_the_input() {
    let mut state = state(sum());
    assert_eq!(state.get("level"), Some(json!("easy")));
    state.set("level", "hard").unwrap();
    state.set("answer", "5").unwrap();
    state.set("task", "other").unwrap();
    state.set("example_id", 7).unwrap();
    state.set("info", json!({"source": "book"})).unwrap();
    state.set("prompt", json!([{"role": "user", "content": "What is 2+3?"}])).unwrap();
    assert_eq!(state.input.extra["level"], "hard");
    assert_eq!((state.input.answer.as_deref(), &*state.input.task), (Some("5"), "other"));
    assert_eq!((state.input.example_id, state.input.prompt[0].text()), (7, "What is 2+3?".into()));
    assert_eq!(state.input.info.as_ref().unwrap()["source"], "book");
    assert_eq!(state.get("answer"), Some(json!("5")));
    assert!(state.fields.is_empty(), "{:?}", state.fields);
}

#[test]
fn an_answer_that_the_input_has_not_is_absent() {
    let mut state = state(RolloutInput { prompt: Message::user("hello").into(), ..RolloutInput::default() });
    assert_eq!((state.get("answer"), state.get("info")), (None, Some(json!({}))));
    state.set("answer", "found").unwrap();
    assert_eq!(state.get("answer"), Some(json!("found")));
}

#[test]
fn fields_of_an_interaction_are_kept_unchanged() {
    let mut state = state(sum());
    state.set("game_board", json!([[0, 0], [0, 0]])).unwrap();
    state.set("won", true).unwrap();
    state.set("lives", 3).unwrap();
    state.set("lives", 2).unwrap();
    assert_eq!(state.get("game_board").unwrap()[1], json!([0, 0]));
    assert!(state.flag("won") && !state.flag("lost") && !state.flag("lives"));
    assert_eq!(
        state.fields,
        *json!({"game_board": [[0, 0], [0, 0]], "won": true, "lives": 2}).as_object().unwrap()
    );
}

#[test]
fn live_things_are_found_by_their_type() {
    struct Session(u32);
    let mut state = state(sum());
    state.resources.insert(Session(1));
    state.resources.insert(Session(2));
    if let Some(session) = state.resources.get_mut::<Session>() {
        session.0 += 1;
    }
    assert_eq!(state.resources.get::<Session>().map(|session| session.0), Some(3));
    assert_eq!(state.resources.remove::<Session>().map(|session| session.0), Some(3));
    assert!(state.resources.get::<Session>().is_none());
}

#[tokio::test]
async fn tokens_beyond_the_longest_sequence_are_cut_and_truncate_the_rollout() {
    let reply = ModelReply::text("four").tokens(&[1, 2, 3], &[(4, -0.5), (5, -0.25)]);
    let server = ModelServer::always(reply);
    let config = ClientConfig { token_ids: true, ..ClientConfig::new(server.url()) };
    for (longest, completion, cut, overlong) in
        [(None, &[4, 5][..], false, false), (Some(4), &[4], true, false), (Some(2), &[], true, true)]
    {
        let model = Model {
            client: Client::new(config.clone()).unwrap(),
            name: "test".to_owned(),
            sampling: SamplingArgs::new(),
            max_seq_len: longest,
        };
        let never = CancellationToken::new();
        let state = rollout(&SingleTurn, &Limits::default(), sum(), Arc::new(model), &never).await.unwrap();
        let step = &state.trajectory[0];
        let tokens = step.tokens.as_ref().unwrap();
        assert_eq!((tokens.completion_ids.as_slice(), tokens.is_truncated), (completion, cut), "{longest:?}");
        assert_eq!(
            (tokens.completion_mask.len(), tokens.completion_logprobs.len()),
            (completion.len(), completion.len())
        );
        assert_eq!(
            (tokens.prompt_ids.len(), tokens.overlong_prompt),
            (longest.unwrap_or(3).min(3), overlong)
        );
        assert!(
            tokens.prompt_mask.iter().all(|mask| *mask == 0)
                && tokens.completion_mask.iter().all(|mask| *mask == 1)
        );
        assert_eq!((step.is_truncated, state.is_truncated, &state.error), (cut, cut, &None));
    }
}

#[test]
fn the_final_reply_of_the_environment_ends_the_conversation_even_without_turns() {
    let mut state = state(sum());
    state.final_env_response = Some(Message::user("too late").into());
    assert!(state.conversation_after_prompt().is_empty());
    let tool: Result<ToolDef, _> =
        serde_json::from_value::<ToolDef>(json!({"type": "function", "function": {"name": "add"}}));
    assert!(tool.is_err(), "the form of one provider: {:?}", tool.map(|tool| tool.name));
    assert_eq!(state.get("completion"), Some(Value::Null));
}

#[test]
fn names_that_every_rollout_has_cannot_be_set() {
    let mut state = state(sum());
    let error = state.set("reward", 9.0).unwrap_err();
    insta::assert_snapshot!(error, @"`reward` is a reserved field; change `state.reward`, or choose another name");
    assert_eq!((state.reward, state.fields.get("reward")), (None, None));
    for name in ["trajectory", "completion", "error", "advantage", "metrics", "training_samples", "timing"] {
        assert!(matches!(state.set(name, 1), Err(FieldError::Reserved { .. })), "{name}");
    }
}

#[test]
fn a_field_of_the_input_takes_only_values_of_its_type() {
    let mut state = state(sum());
    let error = state.set("answer", 5).unwrap_err();
    insta::assert_snapshot!(error, @"invalid value for `answer`: it must be text or null; change the value, or choose another name");
    assert_eq!(state.get("answer"), Some(json!("4")));
    assert!(state.set("example_id", "seven").is_err() && state.set("prompt", 1).is_err());
}
