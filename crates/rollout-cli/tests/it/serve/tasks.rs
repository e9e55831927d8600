//! Attempts at container tasks, served.

use std::fs;

use rollout_testkit::{Gate, Hold, ModelReply, ModelServer, TestJob, TestTask};
use serde_json::{Value, json};

use super::{Service, block_on, idle, summary};
use crate::http::{get, post};

/// A job with one model and these tasks, one attempt at a time.
fn job(server: &ModelServer, tasks: impl IntoIterator<Item = TestTask>) -> TestJob {
    let model = json!({
        "name": "policy", "base_url": server.url(), "api_key": "${POLICY_KEY}", "max_retries": 0, "token_ids": true,
    });
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .env("POLICY_KEY", "sk-of-the-policy")
        .agent(json!({"name": "policy", "model": model}))
        .set("retry", json!({"max_attempts": 1}))
        .set("log_level", json!("error"))
        .set("n_concurrent_trials", json!(1))
        .file("tmp/here", "");
    let scratch = job.root().join("tmp").display().to_string();
    tasks.into_iter().fold(job.env("TMPDIR", &scratch), |job, task| job.task(task))
}

fn bash(command: &str) -> ModelReply {
    ModelReply::tool_call("bash", &json!({"command": command}))
}

/// What attempts left in the directory for temporary files.
fn left_over(service: &Service) -> Vec<String> {
    let entries = fs::read_dir(service.job.root().join("tmp")).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name != "here").collect()
}

/// One attempt that solves the task, and one that does nothing.
fn two_attempts() -> ModelServer {
    ModelServer::sequence([
        bash("touch /app/done").tokens(&[1, 2], &[(3, -0.5)]).field("policy_version", json!(7)),
        ModelReply::text("Done.").tokens(&[1, 2, 3, 4], &[(5, -0.25)]).field("policy_version", json!(8)),
        ModelReply::text("No.").tokens(&[1, 2], &[(6, -0.125)]),
    ])
}

#[test]
fn attempts_at_a_task_come_back_as_a_group_with_tokens() {
    let server = two_attempts();
    let service = Service::start(job(&server, [TestTask::new("other"), TestTask::new("task")]));
    let mut answer = service.rollouts(
        &json!({"task_ids": ["task"], "rollouts_per_example": 2, "model": "step-1", "return": "samples"}),
    );
    let group = answer.next().unwrap();
    assert_eq!(
        (&group["type"], &group["task"], &group["example_id"]),
        (&json!("group"), &json!("task"), &json!(1))
    );
    assert_eq!((&group["rewards"], &group["advantages"]), (&json!([1.0, 0.0]), &json!([0.5, -0.5])));
    assert_eq!(group["errors"], json!([null, null]));
    let metrics = &group["metrics"][0];
    assert_eq!((&metrics["reward"], &metrics["num_turns"]), (&json!(1.0), &json!(2.0)));
    assert_eq!(metrics["bash_calls"], 1.0);

    let samples = group["samples"].as_array().unwrap();
    let ids: Vec<_> = samples.iter().map(|sample| &sample["trajectory_id"]).collect();
    assert_eq!(json!(ids), group["trajectory_ids"]);
    assert_ne!(ids[0], ids[1]);
    assert!(ids.iter().all(|id| id.as_str().is_some_and(|id| id.len() == 32)), "{ids:?}");
    let right = &samples[0];
    assert_eq!(right["token_ids"], json!([1, 2, 3, 4, 5]));
    assert_eq!(right["loss_mask"], json!([0, 0, 1, 0, 1]));
    assert_eq!(right["advantages"], json!([0.0, 0.0, 0.5, 0.0, 0.5]));
    assert_eq!(right["stop_condition"], "no_tools_called");
    let versions: Vec<_> =
        right["turns"].as_array().unwrap().iter().map(|turn| &turn["policy_version"]).collect();
    assert_eq!(versions, ["7", "8"]);
    assert_eq!(samples[1]["logprobs"], json!([0.0, 0.0, -0.125]));

    let summary = summary(answer.next());
    assert_eq!(
        (&summary["groups"], &summary["samples"], &summary["errors"]),
        (&json!(1), &json!(2), &json!(0))
    );
    assert_eq!(server.requests()[0].model(), "step-1");
    service.until(&idle());
    assert_eq!(left_over(&service), [""; 0]);
    assert!(!service.job.dir().exists(), "nothing is saved");
}

#[test]
fn rollouts_of_a_task_are_rows_with_all_turns() {
    let server = two_attempts();
    let service = Service::start(job(&server, [TestTask::new("task")]));
    let group = service
        .rollouts(&json!({"task_ids": ["task"], "rollouts_per_example": 2, "advantage": "normalised"}))
        .next()
        .unwrap();
    assert_eq!(group["advantages"], json!([1.0, -1.0]));
    let row = &group["rollouts"][0];
    assert_eq!((&row["task"], &row["attempt"], &row["reward"]), (&json!("task"), &json!(1), &json!(1.0)));
    assert_eq!((&row["advantage"], &row["trajectory_id"]), (&json!(1.0), &group["trajectory_ids"][0]));
    assert_eq!(row["prompt"][1]["content"], "Create the file /app/done.\n");
    assert_eq!(row["completion"][1]["role"], "tool");
    let turn = &row["trajectory"][1];
    assert_eq!(turn["tokens"]["prompt_ids"], json!([1, 2, 3, 4]));
    assert_eq!((&turn["reward"], &turn["advantage"]), (&json!(1.0), &json!(1.0)));
}

#[test]
fn a_request_for_tasks_may_name_an_endpoint_and_its_key() {
    const KEY: &str = "sk-of-the-trainer-0123456789";
    let own = ModelServer::always(ModelReply::text("No."));
    let other =
        ModelServer::turns([bash("touch /app/done"), ModelReply::text(format!("The key is {KEY}"))]).key(KEY);
    let service = Service::start(job(&own, [TestTask::new("task")]));
    let lines = service
        .rollouts(&json!({
            "task_ids": ["task"], "rollouts_per_example": 1, "base_url": other.url(), "api_key": KEY,
            "model": "step-1",
        }))
        .lines();
    let group = &lines[0];
    assert_eq!((&group["rewards"], &group["errors"]), (&json!([1.0]), &json!([null])), "{group}");
    assert_eq!(group["rollouts"][0]["completion"][2]["content"], "The key is [redacted]");
    assert!(!json!(lines).to_string().contains(KEY));
    assert_eq!((own.served(), other.served()), (0, 2));
    for asked in other.requests() {
        assert_eq!(
            (asked.model(), asked.header("authorization")),
            ("step-1", Some(&*format!("Bearer {KEY}")))
        );
    }

    // Another endpoint never gets the key of the job, and the next request uses the job's own endpoint.
    let open = ModelServer::always(ModelReply::text("No."));
    let request = json!({"task_ids": ["task"], "rollouts_per_example": 1, "base_url": open.url()});
    assert_eq!(summary(service.rollouts(&request).lines().pop())["errors"], 0);
    assert_eq!(open.requests()[0].header("authorization"), None);
    service.rollouts(&json!({"task_ids": ["task"], "rollouts_per_example": 1})).lines();
    let asked = &own.requests()[0];
    assert_eq!((asked.model(), asked.header("authorization")), ("policy", Some("Bearer sk-of-the-policy")));
    service.until(&idle());
    assert_eq!(left_over(&service), [""; 0]);
}

#[test]
fn an_attempt_that_fails_is_out_of_the_baseline() {
    let server = ModelServer::sequence([
        bash("touch /app/done"),
        ModelReply::text("Done."),
        bash("touch /app/broken"),
        ModelReply::text("Done."),
        ModelReply::text("No."),
    ]);
    let tests =
        "[ ! -e /app/broken ] || exit 1\n[ -e /app/done ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n";
    let service = Service::start(job(&server, [TestTask::new("task").tests(tests)]));
    let request = json!({"task_ids": ["task"], "rollouts_per_example": 3, "return": "samples"});
    let lines = service.rollouts(&request).lines();
    let group = &lines[0];
    assert_eq!(
        (&group["rewards"], &group["advantages"]),
        (&json!([1.0, 0.0, 0.0]), &json!([0.5, null, -0.5]))
    );
    let error = group["errors"][1].as_str().unwrap();
    assert!(error.contains("verifier"), "{error}");
    assert_eq!(group["errors"][2], Value::Null);
    assert_eq!((group["samples"].as_array().unwrap().len(), &lines[1]["errors"]), (2, &json!(1)));
    assert_eq!(lines[1]["left_out"].as_object().unwrap().values().collect::<Vec<_>>(), [1]);
}

#[test]
fn an_attempt_that_fails_is_included_if_the_request_says_so() {
    let server = ModelServer::sequence([
        bash("touch /app/broken").tokens(&[1, 2], &[(3, -0.5)]),
        ModelReply::text("Done.").tokens(&[1, 2, 3, 4], &[(5, -0.25)]),
        ModelReply::text("No.").tokens(&[1, 2], &[(6, -0.125)]),
    ]);
    let tests = "[ ! -e /app/broken ] || exit 1\necho 1 > /logs/verifier/reward.txt\n";
    let service = Service::start(job(&server, [TestTask::new("task").tests(tests)]));
    let request = json!({
        "task_ids": ["task"], "rollouts_per_example": 2, "return": "samples", "include_errors": true,
    });
    let lines = service.rollouts(&request).lines();
    assert_eq!(lines[0]["advantages"], json!([-0.5, 0.5]));
    let samples = lines[0]["samples"].as_array().unwrap();
    assert_eq!((samples.len(), samples[0]["error"].is_string()), (2, true), "{samples:#?}");
    assert_eq!(lines[1]["left_out"], json!({}));
}

#[test]
fn a_client_that_goes_away_ends_its_attempts_and_their_environments() {
    let gate = Gate::new();
    let server = ModelServer::always(bash(&gate.wait()));
    let service = Service::start(job(&server, [TestTask::new("task")]));
    let answer = service.rollouts(&json!({"task_ids": ["task"], "rollouts_per_example": 3}));
    let tool = gate.arrival();
    assert_eq!(left_over(&service).len(), 1);
    drop(answer);
    tool.ended();
    service.until(&idle());
    assert_eq!(left_over(&service), [""; 0]);
    assert_eq!(server.served(), 1, "what had not begun never begins");
}

#[test]
fn clients_share_the_places_of_attempts_fairly() {
    let hold = Hold::new();
    let held = hold.clone();
    let server = ModelServer::scripted(move |_| ModelReply::text("No.").held(&held));
    let late = TestTask::new("late").file("instruction.md", "late\n");
    let service =
        Service::start(job(&server, [TestTask::new("early"), late]).set("n_concurrent_trials", json!(2)));
    let mut early = service.rollouts(&json!({"task_ids": ["early"], "rollouts_per_example": 4}));
    block_on(hold.waiting(2));
    let mut late = service.rollouts(&json!({"task_ids": ["late"], "rollouts_per_example": 1}));
    service.until(&json!({"requests": 2, "rollouts_running": 2, "rollouts_waiting": 1}));
    hold.pass(1);
    block_on(async {
        while server.served() < 3 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    });
    assert_eq!(server.requests()[2].last_text(), "late\n", "the client with the fewest places is next");
    hold.open();
    assert_eq!((early.lines().len(), late.lines().len()), (2, 2));
    assert_eq!(server.most_at_once(), 2);
}

#[test]
fn an_image_is_prepared_once_for_all_groups() {
    let server = ModelServer::scripted(|request| match request.turns() {
        0 => bash("cat /app/stamp"),
        _ => ModelReply::text("Done."),
    });
    let stamped = "FROM test\nWORKDIR /app\nRUN cat /proc/sys/kernel/random/uuid > /app/stamp\n";
    let job = job(&server, [TestTask::new("task").dockerfile(stamped)]);
    let service = Service::start(job.set("environment/force_build", json!(true)));
    let stamp = || {
        let group = service.rollouts(&json!({"task_ids": ["task"]})).next().unwrap();
        group["rollouts"][0]["completion"][1]["content"].clone()
    };
    let first = stamp();
    assert!(first.as_str().is_some_and(|text| text.len() > 36), "{first}");
    assert_eq!(stamp(), first);
}

#[test]
fn problems_of_a_request_for_tasks_are_reported_at_once() {
    let server = ModelServer::echo();
    let broken = TestTask::new("broken").without("instruction.md");
    let service = Service::start(job(&server, [TestTask::new("hello-world"), broken]));
    let refused = |body: Value| {
        let answer = post(service.address, "/v1/rollouts", &body);
        assert_eq!(answer.status, 400, "{body}");
        let error = answer.json()["error"].take();
        let root = service.job.root().display().to_string();
        format!("{}\nhint: {}", error["message"].as_str().unwrap(), error["hint"].as_str().unwrap())
            .replace(&root, "")
    };
    let ids = json!(["hello-word", "no such thing at all", 3, "hello-world", "hello-world", "broken"]);
    insta::assert_snapshot!(refused(json!({"task_ids": ids, "base_url": "nowhere", "inputs": []})), @r#"
    `inputs` are for an interaction, and the job has container tasks; send `task_ids`
    task_ids[0]: the job has no task "hello-word"; did you mean "hello-world"?
    task_ids[1]: the job has no task "no such thing at all"
    task_ids[2]: the job has no task 3
    task_ids[4]: duplicate of task_ids[3]; to repeat it, set `rollouts_per_example`
    task_ids[5]: task "broken" cannot be run: /set/broken is not a complete task: - instruction.md is missing
    `base_url` must be an http or https URL, such as http://127.0.0.1:8000/v1, without credentials; send a key as `api_key`
    hint: GET /v1/examples lists the available examples and tasks, and docs/training.md describes the request
    "#);
    insta::assert_snapshot!(refused(json!({"inputs": [{"question": "?"}]})), @"
    `inputs` are for an interaction, and the job has container tasks; send `task_ids`
    hint: GET /v1/examples lists the available examples and tasks, and docs/training.md describes the request
    ");
    insta::assert_snapshot!(refused(json!({})), @"
    `task_ids` is missing
    hint: GET /v1/examples lists the available examples and tasks, and docs/training.md describes the request
    ");
    insta::assert_snapshot!(refused(json!({"task_ids": "hello-world"})), @"
    `task_ids` is not a list
    hint: GET /v1/examples lists the available examples and tasks, and docs/training.md describes the request
    ");
    assert_eq!(server.served(), 0);
}

#[test]
fn the_ids_that_may_be_asked_for_are_listed() {
    let server = ModelServer::echo();
    let broken = TestTask::new("broken").without("instruction.md");
    let service = Service::start(job(&server, [TestTask::new("b"), TestTask::new("a"), broken]));
    insta::assert_snapshot!(get(service.address, "/v1/examples").json(), @r#"{"task_ids":["a","b"]}"#);
    let info = get(service.address, "/v1/info").json();
    assert_eq!((&info["env_id"], &info["examples"]), (&json!("set"), &json!(2)));
    let service = Service::start(super::job(&server, 3));
    insta::assert_snapshot!(get(service.address, "/v1/examples").json(), @r#"{"example_ids":[0,1,2]}"#);
}

#[test]
fn an_interrupt_ends_attempts_and_keeps_groups_that_are_done() {
    let gate = Gate::new();
    let wait = gate.wait();
    let server = ModelServer::scripted(move |request| match request.last_text().as_str() {
        "first\n" => ModelReply::text("Done."),
        _ => bash(&wait),
    });
    let first = TestTask::new("first").file("instruction.md", "first\n");
    let service = Service::start(job(&server, [first, TestTask::new("second")]));
    let mut answer = service.rollouts(&json!({"task_ids": ["first", "second"], "rollouts_per_example": 1}));
    assert_eq!(answer.next().unwrap()["task"], "first");
    let tool = gate.arrival();
    service.running.signal("-INT");
    tool.ended();
    let summary = summary(answer.next());
    assert_eq!((&summary["groups"], &summary["cancelled"]), (&json!(1), &json!(true)));
    assert_eq!(left_over(&service), [""; 0]);
    service.finish().expect(0);
}
