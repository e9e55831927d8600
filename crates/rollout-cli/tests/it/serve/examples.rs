//! Rollouts of an interaction, served.

use std::time::Duration;

use rollout_testkit::{Gate, Hold, ModelReply, ModelServer};
use serde_json::{Value, json};

use super::{Service, block_on, idle, job, summary};
use crate::http::get;

#[test]
fn a_group_is_sent_as_soon_as_it_is_scored() {
    let hold = Hold::new();
    let held = hold.clone();
    let server = ModelServer::scripted(move |request| match request.last_text().as_str() {
        "What is 0+1?" => ModelReply::text("1").held(&held),
        _ => ModelReply::text("2"),
    });
    let service = Service::start(job(&server, 2).set("n_concurrent_trials", json!(4)));
    let mut answer = service.rollouts(&json!({"example_ids": [0, 1], "rollouts_per_example": 2}));

    let first = answer.next().unwrap();
    assert_eq!((&first["type"], &first["example_id"]), (&json!("group"), &json!(1)));
    assert_eq!((&first["rewards"], &first["advantages"]), (&json!([1.0, 1.0]), &json!([0.0, 0.0])));
    assert_eq!(first["metrics"][1], json!({"numeric": 1.0, "num_turns": 1.0}));
    assert_eq!(first["errors"], json!([null, null]));
    assert_eq!((&first["task"], first["trajectory_ids"].as_array().unwrap().len()), (&json!("sums"), 2));
    service.until(&json!({"requests": 1, "rollouts_running": 2}));

    hold.open();
    assert_eq!(answer.next().unwrap()["example_id"], 0);
    insta::assert_snapshot!(summary(answer.next()), @r#"{"type":"summary","groups":2,"rollouts":4,"errors":0,"left_out":{},"avg_reward":1.0,"samples":0,"rollouts_without_tokens":0,"cancelled":false}"#);
    assert_eq!(answer.next(), None);
    service.until(&idle());
}

#[test]
fn a_client_gets_its_own_inputs_sampled_its_own_way() {
    let server = ModelServer::echo();
    let service = Service::start(job(&server, 1));
    let mut answer = service.rollouts(&json!({
        "inputs": [
            {"question": "5", "answer": "5", "info": {"level": 3}},
            {"prompt": [{"role": "system", "content": "Count."}, {"role": "user", "content": "7"}], "answer": 8},
        ],
        "model": "policy-step-12",
        "sampling": {"temperature": 0.2, "top_k": 5},
        "rollouts_per_example": 1,
    }));
    let mut lines = answer.lines();
    assert_eq!(summary(lines.pop())["avg_reward"], 0.5);
    lines.sort_by_key(|line| line["example_id"].as_u64());
    let row = &lines[0]["rollouts"][0];
    assert_eq!(
        (&row["info"]["level"], &row["reward"], &row["task"]),
        (&json!(3), &json!(1.0), &json!("sums"))
    );
    assert_eq!(row["completion"], json!([{"role": "assistant", "content": "5"}]));
    let turn = &row["trajectory"][0];
    let tokens = &turn["tokens"];
    assert!(tokens["completion_ids"].as_array().is_some_and(|ids| !ids.is_empty()), "{tokens}");
    assert_eq!((&turn["advantage"], &row["trajectory_id"]), (&row["advantage"], &turn["trajectory_id"]));
    assert_eq!(lines[1]["rewards"], json!([0.0]));

    for request in server.requests() {
        let body = &request.body;
        assert_eq!(body["model"], "policy-step-12");
        assert_eq!((&body["temperature"], &body["top_k"]), (&json!(0.2), &json!(5)));
        assert_eq!(body["max_completion_tokens"], 64);
    }
    assert_eq!(get(service.address, "/v1/info").json()["model"], "policy");
}

#[test]
fn samples_are_tokens_with_masks_and_advantages() {
    let server = ModelServer::sequence([
        ModelReply::text("1").tokens(&[10, 11], &[(12, -0.5)]),
        ModelReply::text("9").tokens(&[10, 11], &[(13, -0.25), (14, -0.125)]),
    ]);
    let service = Service::start(job(&server, 1).set("n_concurrent_trials", json!(1)));
    let mut answer =
        service.rollouts(&json!({"example_ids": [0], "rollouts_per_example": 2, "return": "samples"}));
    let group = answer.next().unwrap();
    assert_eq!(group["rollouts"], Value::Null);
    let samples = group["samples"].as_array().unwrap();
    let rewards: Vec<&Value> = samples.iter().map(|sample| &sample["reward"]).collect();
    assert_eq!(json!(rewards), group["rewards"], "they are in the order of the rollouts");
    let ids: Vec<&Value> = samples.iter().map(|sample| &sample["trajectory_id"]).collect();
    assert_eq!(json!(ids), group["trajectory_ids"], "and so are their ids");
    let of_reward = |reward: f64| samples.iter().find(|sample| sample["reward"] == reward).unwrap();
    let (right, wrong) = (of_reward(1.0), of_reward(0.0));
    assert_eq!(right["token_ids"], json!([10, 11, 12]));
    assert_eq!(right["loss_mask"], json!([0, 0, 1]));
    assert_eq!(right["advantages"], json!([0.0, 0.0, 0.5]));
    assert_eq!(wrong["token_ids"], json!([10, 11, 13, 14]));
    assert_eq!(wrong["logprobs"], json!([0.0, 0.0, -0.25, -0.125]));
    assert_eq!(wrong["advantages"], json!([0.0, 0.0, -0.5, -0.5]));
    let summary = summary(answer.next());
    assert_eq!((&summary["samples"], &summary["rollouts_without_tokens"]), (&json!(2), &json!(0)));
}

#[test]
fn a_client_that_goes_away_cancels_its_rollouts() {
    let hold = Hold::new();
    let held = hold.clone();
    let server = ModelServer::scripted(move |_| ModelReply::text("1").held(&held));
    let service = Service::start(job(&server, 8).set("n_concurrent_trials", json!(2)));
    let all = json!([0, 1, 2, 3, 4, 5, 6, 7]);
    let answer = service.rollouts(&json!({"example_ids": all, "rollouts_per_example": 3}));
    block_on(hold.waiting(2));
    service.until(&json!({"rollouts_running": 2, "rollouts_waiting": 2}));
    drop(answer);
    block_on(hold.waiting(0));
    service.until(&idle());
    assert_eq!(server.served(), 2, "what had not begun never begins");

    hold.open();
    assert_eq!(service.rollouts(&json!({"example_ids": [7]})).lines().len(), 2);
}

#[test]
fn what_a_rollout_started_ends_when_its_client_goes_away() {
    let gate = Gate::new();
    let server = ModelServer::always(ModelReply::tool_call("wait", &json!({})));
    let tool = json!({"name": "wait", "description": "Waits.", "command": ["bash", "-c", gate.wait()]});
    let interaction =
        json!({"dataset": [{"question": "?"}], "rubric": [{"match": "exact"}], "tools": [tool]});
    let job = job(&server, 1).set("datasets", json!([{"name": "waits", "interaction": interaction}]));
    let service = Service::start(job);
    let answer = service.rollouts(&json!({"example_ids": [0]}));
    let tool = gate.arrival();
    drop(answer);
    tool.ended();
    service.until(&idle());
}

#[test]
fn a_slow_reader_stops_only_its_own_rollouts() {
    let long = "x".repeat(256 << 10);
    let server = ModelServer::scripted(move |_| ModelReply::text(long.clone()).no_usage());
    let service = Service::start(job(&server, 60).set("n_concurrent_trials", json!(2)));
    let all: Vec<usize> = (0..60).collect();
    let mut slow = service.rollouts(&json!({"example_ids": all, "rollouts_per_example": 1}));
    // One in the channel, one that waits for it, and one more that was under way: nothing moves until it is read.
    service.until(&json!({"requests": 1, "rollouts_running": 0, "rollouts_waiting": 0, "groups_unread": 3}));
    let served = server.served();
    assert!(served < 60, "{served} rollouts for a client that reads none");

    let mut quick = service.rollouts(&json!({"example_ids": [0], "rollouts_per_example": 1}));
    assert_eq!(quick.lines().len(), 2);
    assert_eq!(server.served(), served + 1);

    let lines = slow.lines();
    assert_eq!((lines.len(), &lines[60]["groups"]), (61, &json!(60)));
}

#[test]
fn clients_share_the_places_fairly() {
    let hold = Hold::new();
    let held = hold.clone();
    let server = ModelServer::scripted(move |_| ModelReply::text("1").held(&held));
    let service = Service::start(job(&server, 1).set("n_concurrent_trials", json!(4)));
    let inputs = |who: &str, number: usize| -> Vec<Value> {
        (0..number).map(|_| json!({"question": who, "answer": "1"})).collect()
    };
    let mut greedy = service.rollouts(&json!({"inputs": inputs("greedy", 20), "rollouts_per_example": 1}));
    block_on(hold.waiting(4));
    let mut late = service.rollouts(&json!({"inputs": inputs("late", 4), "rollouts_per_example": 1}));
    service.until(&json!({"requests": 2, "rollouts_running": 4, "rollouts_waiting": 4}));

    for passed in 1..=3 {
        hold.pass(1);
        block_on(async {
            while server.served() < 4 + passed {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        // The place is taken again, and the client that had it has asked for another one.
        service.until(&json!({"rollouts_running": 4, "rollouts_waiting": 4}));
    }
    let asked: Vec<String> = server.requests().iter().map(|request| request.last_text()).collect();
    assert_eq!(asked[4..], ["late", "late", "greedy"], "two of four places each");

    hold.open();
    assert_eq!((greedy.lines().len(), late.lines().len()), (21, 5));
    assert_eq!(server.most_at_once(), 4, "no more than `n_concurrent_trials` over both");
}

#[test]
fn an_error_of_a_rollout_is_reported_in_its_place() {
    let server = ModelServer::sequence([ModelReply::text("1"), ModelReply::error(400, "no such thing")]);
    let service = Service::start(job(&server, 1).set("n_concurrent_trials", json!(1)));
    let lines = service.rollouts(&json!({"example_ids": [0], "rollouts_per_example": 2})).lines();
    let rewards = lines[0]["rewards"].as_array().unwrap();
    for (reward, error) in rewards.iter().zip(lines[0]["errors"].as_array().unwrap()) {
        match error.as_str() {
            None => assert_eq!(reward, 1.0),
            Some(error) => assert!(error.contains("no such thing") && reward == 0.0, "{error}"),
        }
    }
    assert_eq!((&lines[1]["rollouts"], &lines[1]["errors"]), (&json!(2), &json!(1)));
}
