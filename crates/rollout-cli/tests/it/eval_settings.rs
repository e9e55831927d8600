//! What settings of a benchmark mean, by the command.

use std::fs;

use rollout_testkit::{Hold, ModelReply, ModelServer, files_holding};
use serde_json::{Value, json};

use crate::{
    eval::benchmark,
    tools_server::server::{Server, place},
};

fn questions(count: usize) -> Vec<Value> {
    (0..count).map(|n| json!({"id": format!("q{n}"), "question": "Which letter?", "answer": "x"})).collect()
}

#[test]
fn four_questions_are_asked_at_a_time_where_parallel_stands_alone() {
    let hold = Hold::new();
    let held = hold.clone();
    let server = ModelServer::scripted(move |_| ModelReply::text("x").held(&held));
    let job = benchmark(&server, &questions(6), json!({"parallel": true}));
    let mut running = job.start_with(&["eval", "config.json", "--output", "json"]);
    running.until("four requests", |_| server.served() == 4);
    let started = |events: &[Value]| events.iter().filter(|event| event["event"] == "trial_started").count();
    assert_eq!(started(&running.events()), 4);
    hold.open();
    assert_eq!(running.finish().expect(0).events()[0]["concurrency"], 4);
}

#[test]
fn a_tool_is_chosen_by_any_of_its_names() {
    let server = ModelServer::always(ModelReply::text("x"));
    let config = json!({"available_tools": ["web_visit"], "sandbox_auto_start": true});
    let job = benchmark(&server, &questions(1), config);
    job.rollout(&["eval", "config.json"]).expect(0);
    let request = server.requests().remove(0);
    let tools = request.body["tools"].as_array().unwrap();
    assert_eq!((tools.len(), &tools[0]["function"]["name"]), (1, &json!("web-browse")), "{tools:?}");
}

#[test]
fn a_tool_server_with_a_token_is_asked_with_it() {
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    let tools = Server::in_place(place(&json!({})).file("token", TOKEN), &["--token-file", "token"]);
    let url = format!("http://{}", tools.address);
    let script = || {
        let call = ModelReply::tool_call("code-shell", &json!({"command": "echo x"}));
        ModelServer::turns([call, ModelReply::text("Final answer: x")])
    };

    let server = script();
    let config = json!({
        "available_tools": ["code:shell"], "sandbox_server_url": url, "sandbox_token": "${THE_TOKEN}",
    });
    let job = benchmark(&server, &questions(1), config)
        .env("THE_TOKEN", TOKEN)
        .file("token", &format!("{TOKEN}\n"));
    let evaluated = job.rollout(&["eval", "config.json"]).expect(0);
    let row: Value = evaluated.file("results.jsonl").parse().unwrap();
    let call = &row["trajectory"]["tool_calls"][0];
    assert_eq!((&call["success"], &row["score"]), (&json!(true), &json!(1.0)), "{row:#}");
    assert_eq!(files_holding(&job.dir(), TOKEN), Vec::<String>::new());

    let server = script();
    let base = server.url();
    let ask = ["ask", "Which letter?", "--base-url", &base, "--tools", "code:shell", "--sandbox-url", &url];
    let answered = job.rollout(&[&ask[..], &["--sandbox-token-file", "token"]].concat()).expect(0);
    assert_eq!(answered.stdout(), "x\n");
    assert_eq!(server.requests()[1].last_text(), "x\n");
    let refused = job.rollout(&ask).expect(2);
    assert!(refused.stderr().contains("--sandbox-token-file"), "{}", refused.stderr());
    tools.stop();
}

#[test]
fn a_file_named_json_is_read_as_json() {
    let server = ModelServer::always(ModelReply::text("x"));
    let job = benchmark(&server, &questions(1), json!({}));
    let job = job.file("yaml.json", "{data_path: questions.jsonl, output_dir: jobs/job}\n");
    let refused = job.rollout(&["eval", "yaml.json"]).expect(2);
    assert!(refused.stderr().contains("this is not JSON"), "{}", refused.stderr());
    // A tab is no indentation of YAML.
    let tabs =
        format!("{{\n\t\"base_url\": \"{}\",\n\t\"data_path\": \"questions.jsonl\"\n}}\n", server.url());
    job.file("tabs.json", &tabs).rollout(&["eval", "tabs.json", "--output-dir", "jobs/job"]).expect(0);
}

#[test]
fn an_answer_is_cut_out_of_its_sentence_and_the_details_say_what_was_compared() {
    let server = ModelServer::always(ModelReply::text("The answer is: X ."));
    let job = benchmark(&server, &questions(1), json!({}));
    let finished = job.rollout(&["eval", "config.json"]).expect(0);
    let evaluation: Value = finished.file("evaluation.json").parse().unwrap();
    let evaluated = &evaluation["evaluations"][0];
    assert_eq!((&evaluated["predicted"], &evaluated["score"]), (&json!("X"), &json!(1.0)), "{evaluation:#}");
    assert_eq!(evaluated["details"], json!({"compared_prediction": "x", "compared_ground_truth": "x"}));
}

#[test]
fn a_judge_may_give_a_part_of_the_score() {
    let server = ModelServer::always(ModelReply::text("y"));
    let said = r#"{"correct": false, "score": 0.25, "reasoning": "one letter further"}"#;
    let judge = ModelServer::always(ModelReply::text(said));
    let config = json!({"evaluation_metric": "llm_judgement", "evaluator_base_url": judge.url()});
    let finished = benchmark(&server, &questions(1), config).rollout(&["eval", "config.json"]).expect(0);
    let evaluation: Value = finished.file("evaluation.json").parse().unwrap();
    let evaluated = &evaluation["evaluations"][0];
    assert_eq!((&evaluated["score"], &evaluation["average_score"]), (&json!(0.25), &json!(0.25)));
    assert_eq!(evaluated["details"]["reasoning"], "one letter further");
}

#[test]
fn two_models_behind_one_variable_are_two_agents_and_no_run_goes_on_with_the_other() {
    let server = ModelServer::always(ModelReply::text("x"));
    let mut ids = Vec::new();
    let mut job = benchmark(&server, &questions(2), json!({"model_name": "${MODEL}"}));
    for model in ["small", "large"] {
        job = job.env("MODEL", model);
        let (results, log) = (format!("jobs/{model}"), format!("log-{model}"));
        job.rollout(&["eval", "config.json", "--output-dir", &results]).expect(0);
        job.rollout(&["export", "eval-log", &results, "-o", &log]).expect(0);
        let path = job.root().join(log).join(model).join("questions/experiment_record.json");
        let record: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert_eq!(record["agent"]["llm_model"], model);
        ids.push(record["agent"]["agent_id"].clone());
    }
    assert_ne!(ids[0], ids[1]);
    let refused = job.rollout(&["resume", "jobs/small"]).expect(2);
    let said = refused.stderr();
    assert!(said.contains("model_name: was \"small\", is \"large\""), "{said}");
    assert_eq!(server.served(), 4);
}
