//! Training samples from the state of a rollout, and from its saved row.

use std::sync::Arc;

use rollout::model::{
    Client, Message, Model, Response, ResponseTokens, RolloutInput, Rubric, State, TrajectoryStep,
    client::ClientConfig,
    samples::{Sample, SampleReader},
};
use serde_json::{Map, json};

fn step(state: &State, prompt_ids: Vec<u32>, completion_ids: Vec<u32>) -> TrajectoryStep {
    let response = Response {
        id: String::new(),
        created: 0,
        model: String::new(),
        usage: None,
        message: Message::assistant("so"),
        finish_reason: None,
        tokens: Some(ResponseTokens {
            completion_logprobs: completion_ids.iter().map(|&id| -f64::from(id)).collect(),
            prompt_ids,
            completion_ids,
            routed_experts: None,
        }),
        extra: Map::new(),
    };
    TrajectoryStep::new(state, Message::user("and?").into(), response)
}

fn new_state(max_seq_len: Option<usize>) -> State {
    let client = Client::new(ClientConfig::new("http://127.0.0.1:9/v1")).unwrap();
    let model = Model { client, name: "m".to_owned(), sampling: Map::new(), max_seq_len };
    let input = RolloutInput { example_id: 7, task: "sums".to_owned(), ..RolloutInput::default() };
    State::new(input, Arc::new(model), Arc::new([]))
}

async fn scored(state: State) -> State {
    let mut states = [state, new_state(None)];
    let rubric = Rubric::new().reward("turns", 1.0, |scene| scene.state.trajectory.len());
    rubric.score_group(&mut states).await;
    let [state, _] = states;
    state
}

#[tokio::test]
async fn a_state_gives_the_same_samples_as_its_saved_row() {
    let mut state = new_state(None);
    state.trajectory = vec![step(&state, vec![1], vec![2, 3]), step(&state, vec![1, 2, 3, 4], vec![5])];
    state.trajectory[1].advantage = Some(9.0);
    let state = scored(state).await;
    let samples = state.samples().unwrap();
    assert_eq!(samples.len(), 1);
    assert_eq!((samples[0].reward, samples[0].advantage), (2.0, Some(1.0)));
    assert_eq!(samples[0].advantages, [0.0, 1.0, 1.0, 0.0, 9.0]);
    let row = json!({
        "example_id": 7, "task": "sums", "reward": state.reward, "trajectory": state.trajectory,
    });
    let read: Vec<_> = SampleReader::new(row.to_string().as_bytes()).map(Result::unwrap).collect();
    assert_eq!(read, samples);
}

#[tokio::test]
async fn a_line_of_json_is_the_whole_sample() {
    let mut state = new_state(None);
    state.trajectory = vec![step(&state, vec![1], vec![2])];
    state.trajectory[0].trajectory_id = "a3f9".into();
    let sample = scored(state).await.samples().unwrap().remove(0);
    let mut line = Vec::new();
    sample.write_jsonl(&mut line).unwrap();
    let line = String::from_utf8(line).unwrap();
    insta::assert_snapshot!(line, @r#"{"example_id":7,"task":"sums","trajectory_id":"a3f9","first_turn":0,"last_turn":0,"reward":1.0,"advantage":0.5,"is_truncated":false,"error":null,"stop_condition":null,"turns":[{"turn":0,"first_token":1,"tokens":1,"reward":1.0,"policy_version":null}],"token_ids":[1,2],"loss_mask":[0,1],"logprobs":[0.0,-2.0],"advantages":[0.0,0.5]}"#);
    assert_eq!(serde_json::from_str::<Sample>(&line).unwrap(), sample);
}

#[tokio::test]
async fn truncated_turns_are_marked_and_those_without_a_completion_are_left_out() {
    let mut state = new_state(Some(3));
    state.trajectory = vec![step(&state, vec![1], vec![2, 3, 4]), step(&state, vec![1, 2, 3, 4, 5], vec![6])];
    let samples = scored(state).await.samples().unwrap();
    assert_eq!(samples.len(), 1);
    assert_eq!(
        (&samples[0].token_ids[..], samples[0].last_turn, samples[0].is_truncated),
        (&[1, 2, 3][..], 0, true)
    );
}
