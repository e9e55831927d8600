//! From the attempts of a real agent to training samples: token ids and masks are exactly those of the model.

use super::*;

/// Attempts at the task, all alike.
const ATTEMPTS: usize = 8;

/// The tokens of the first prompt, of the first answer, of what follows it in the next prompt, and of the second answer.
const PROMPT: [u32; 4] = [11, 12, 13, 14];
const CALL: [(u32, f64); 3] = [(21, -0.1), (22, -0.2), (2, -0.3)];
const RESULT: [u32; 3] = [31, 32, 14];
const LAST: [(u32, f64); 2] = [(41, -0.4), (2, -0.5)];

/// A server that returns token ids as vLLM does, for prompts that begin like this.
fn server(first: &'static [u32]) -> ModelServer {
    let call = CALL.map(|(id, _)| id);
    let next = [first, &call, &RESULT].concat();
    let script = move |request: &ModelRequest| match has_worked(request) {
        false => reply(request).tokens(&PROMPT, &CALL),
        true => reply(request).tokens(&next, &LAST),
    };
    ModelServer::scripted(script).key(KEY)
}

/// The samples of eight attempts of an agent.
fn samples(agent: &str, server: &ModelServer) -> Vec<Value> {
    let mut model = served_by(server, "chat");
    model["token_ids"] = json!(true);
    let job = native(agent, &model).task(HELLO.task("test")).set("n_attempts", json!(ATTEMPTS));
    let ran = job.run().expect(0);
    assert_eq!(ran.result()["headline"]["solved_trials"], ATTEMPTS);
    let dir = job.dir().display().to_string();
    let exported = job.rollout(&["export", "rl", &dir, "-o", "samples"]).expect(0);
    assert!(exported.stdout().contains("samples.jsonl"), "{}", exported.stdout());
    let text = std::fs::read_to_string(job.root().join("samples/samples.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn are_joined(agent: &str) {
    let found = samples(agent, &server(&PROMPT));
    assert_eq!(found.len(), ATTEMPTS);
    for sample in found {
        assert_eq!(sample["token_ids"], json!([11, 12, 13, 14, 21, 22, 2, 31, 32, 14, 41, 2]), "{sample:#}");
        assert_eq!(sample["loss_mask"], json!([0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1]));
        assert_eq!(
            sample["logprobs"],
            json!([0.0, 0.0, 0.0, 0.0, -0.1, -0.2, -0.3, 0.0, 0.0, 0.0, -0.4, -0.5])
        );
        assert_eq!((&sample["first_turn"], &sample["last_turn"]), (&json!(0), &json!(1)));
        assert_eq!((&sample["reward"], &sample["task"]), (&json!(1.0), &json!("hello")));
    }
}

fn are_apart(agent: &str) {
    let found = samples(agent, &server(&[11, 99, 14]));
    assert_eq!(found.len(), 2 * ATTEMPTS);
    for pair in found.chunks(2) {
        assert_eq!(pair[0]["token_ids"], json!([11, 12, 13, 14, 21, 22, 2]), "{:#}", pair[0]);
        assert_eq!(pair[0]["loss_mask"], json!([0, 0, 0, 0, 1, 1, 1]));
        assert_eq!(pair[1]["token_ids"], json!([11, 99, 14, 21, 22, 2, 31, 32, 14, 41, 2]));
        assert_eq!(pair[1]["loss_mask"], json!([0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]));
        assert_eq!(pair[1]["logprobs"].as_array().unwrap()[9..], [json!(-0.4), json!(-0.5)]);
        assert_eq!(pair[0]["trajectory_id"], pair[1]["trajectory_id"]);
    }
}

// The gateway translates for codex. mini-swe-agent speaks the dialect itself, but starts slowly.
#[test]
fn an_attempt_is_one_sample_where_each_prompt_begins_with_the_tokens_before_it() {
    are_joined("codex");
}

#[test]
fn each_turn_is_a_sample_where_the_server_reads_earlier_messages_as_other_tokens() {
    are_apart("codex");
}

#[test]
#[ignore = "part of ./test --full"]
fn an_attempt_of_mini_swe_agent_is_one_sample() {
    are_joined("mini-swe-agent");
}

#[test]
#[ignore = "part of ./test --full"]
fn each_turn_of_mini_swe_agent_is_a_sample_where_earlier_messages_are_other_tokens() {
    are_apart("mini-swe-agent");
}
