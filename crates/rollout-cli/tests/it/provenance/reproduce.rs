//! `rollout reproduce`.

use std::fs;

use rollout_testkit::{ModelReply, ModelServer, TestTask};
use serde_json::{Value, json};

use super::job;

fn answer(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn differing(answer: &Value) -> Vec<&str> {
    answer["differences"].as_array().unwrap().iter().map(|pair| pair["what"].as_str().unwrap()).collect()
}

#[test]
fn a_trial_is_run_again_alone_in_a_job_of_its_own() {
    let job = job().task(TestTask::new("a")).task(TestTask::new("b")).oracle().set("n_attempts", json!(2));
    job.run().expect(0);
    let again = job.rollout(&["reproduce", "jobs/job/oracle/set/b__2"]).expect(0);
    assert!(again.stdout().contains("oracle/set/b__2: same outcome"), "{}", again.stdout());
    let dir = job.root().join("jobs/reproduce-job-b__2");
    let result: Value = answer(&fs::read_to_string(dir.join("result.json")).unwrap());
    assert_eq!((&result["total_trials"], &result["results"][0]["task_name"]), (&json!(1), &json!("b")));
    let twice = job.rollout(&["reproduce", "jobs/job/oracle/set/b__2", "--output", "json"]).expect(0);
    let reported = answer(&twice.stdout());
    assert!(
        reported["reproduced_in"].as_str().unwrap().ends_with("jobs/reproduce-job-b__2-2"),
        "{reported:#}"
    );
    assert_eq!(differing(&reported), Vec::<&str>::new(), "{reported:#}");
    // Neither the agent nor the task has any of these.
    let absent =
        json!(["agent version", "agent install", "commit", "uncommitted changes", "seeds", "tokens"]);
    assert_eq!(reported["not_recorded"], absent);
    assert!(reported["same"].as_array().unwrap().contains(&json!("limits")), "{reported:#}");
}

#[test]
fn another_outcome_is_reported_and_so_is_what_changed() {
    let job = job().task(TestTask::new("task")).oracle();
    job.run().expect(0);
    fs::write(job.root().join("set/task/solution/solve.sh"), "exit 3\n").unwrap();
    let job = job.set("timeout_multiplier", json!(2.0));
    let again =
        job.rollout(&["reproduce", "jobs/job/oracle/set/task__1", "--output", "json", "-o", "elsewhere"]);
    let again = again.expect(1);
    let reported = answer(&again.stdout());
    assert_eq!(differing(&reported), ["reward", "error", "task", "configuration", "limits"], "{reported:#}");
    assert_eq!(reported["differences"][1]["after"], "agent_execution_failed");
    let [before, after] = ["before", "after"].map(|when| &reported["differences"][4][when]);
    assert_eq!(
        before["agent_timeout_sec"].as_f64().unwrap() * 2.0,
        after["agent_timeout_sec"],
        "{reported:#}"
    );
    assert_eq!((&before["cpus"], &before["memory_bytes"]), (&after["cpus"], &after["memory_bytes"]));
    assert!(again.stderr().contains("the task's files have changed"), "{}", again.stderr());
    assert!(again.stderr().contains("timeout_multiplier: was 1.0, is 2.0"), "{}", again.stderr());
    assert!(job.root().join("elsewhere/reproduce-job-task__1/journal.jsonl").exists());
}

#[test]
fn a_job_file_that_is_gone_is_replaced_by_its_copy() {
    let job = job().task(TestTask::new("task")).oracle();
    job.run().expect(0);
    let mut command = job.command(&["reproduce", "jobs/job/oracle/set/task__1"]);
    fs::remove_file(job.root().join("job.yaml")).unwrap();
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("job.yaml is missing; using the copy in the job's directory"), "{stderr}");
}

#[test]
fn a_problem_of_the_copy_is_placed_in_the_copy() {
    let agent =
        json!({"name": "agent", "execute": "touch /app/done", "env": {"API_KEY": "sk-of-some-length"}});
    let job = job().task(TestTask::new("task")).agent(agent);
    job.run().expect(0);
    let mut command = job.command(&["reproduce", "jobs/job/agent/set/task__1"]);
    fs::remove_file(job.root().join("job.yaml")).unwrap();
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("--> config.json:") && !stderr.contains("job.yaml:"), "{stderr}");
}

#[test]
fn what_cannot_be_run_again_is_refused_with_a_reason() {
    let job = job().task(TestTask::new("task")).oracle();
    job.run().expect(0);
    for (path, reason) in [
        ("jobs/job", "jobs/job is not the path of a trial"),
        ("jobs/job/oracle/set/other__1", "has no result for the trial oracle/set/other__1"),
        ("jobs/other/oracle/set/task__1", "jobs/other does not exist"),
    ] {
        let refused = job.rollout(&["reproduce", path]).expect(2);
        assert!(refused.stderr().contains(reason), "{}", refused.stderr());
        assert!(refused.stderr().contains("hint:"), "{}", refused.stderr());
    }
    fs::remove_dir_all(job.root().join("set/task")).unwrap();
    let job = job.task(TestTask::new("left"));
    let refused = job.rollout(&["reproduce", "jobs/job/oracle/set/task__1"]).expect(2);
    assert!(refused.stderr().contains("no task matches \"task\""), "{}", refused.stderr());
}

#[test]
fn a_rollout_is_run_again_although_it_has_no_directory() {
    let server = ModelServer::scripted(|request| match &*request.last_text() {
        "1+1?" => ModelReply::text("2"),
        _ => ModelReply::text("1"),
    });
    let model = json!({"name": "m", "base_url": server.url(), "api_key": "a-key-of-some-length"});
    let sums = json!([{"question": "0+1?", "answer": "1"}, {"question": "1+1?", "answer": "2"}]);
    let interaction = json!({"dataset": sums, "rubric": [{"match": "numeric"}]});
    let job = job()
        .agent(json!({"name": "gpt", "model": model}))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]))
        .set("n_attempts", json!(2));
    job.run().expect(0);
    assert_eq!(server.served(), 4);
    let again = job.rollout(&["reproduce", "jobs/job/gpt/sums/1__2", "--output", "json"]).expect(0);
    assert_eq!(server.served(), 5, "one rollout is asked for");
    assert_eq!(differing(&answer(&again.stdout())), Vec::<&str>::new(), "{}", again.stdout());
}

#[test]
fn a_question_of_a_benchmark_is_asked_again_alone() {
    let server = ModelServer::always(ModelReply::text("2"));
    let job = job()
        .file("data.jsonl", "{\"id\": \"x\", \"question\": \"0+1?\", \"answer\": \"1\"}\n{\"id\": \"y\", \"question\": \"1+1?\", \"answer\": \"2\"}\n")
        .file(
            "eval.json",
            &json!({
                "benchmark_name": "sums", "data_path": "data.jsonl", "output_dir": "results/sums", "model_name": "m",
                "base_url": server.url(), "api_key": "a-key-of-some-length",
            })
            .to_string(),
        );
    job.rollout(&["eval", "eval.json"]).expect(0);
    let agent = fs::read_to_string(job.root().join("results/sums/journal.jsonl")).unwrap();
    let agent = answer(agent.lines().next().unwrap())["agents"][0].as_str().unwrap().to_owned();
    let path = format!("results/sums/{agent}/sums/y__1");
    let again = job.rollout(&["reproduce", &path, "--output", "json"]).expect(0);
    assert_eq!(server.served(), 3, "one question is asked");
    let reported = answer(&again.stdout());
    assert!(
        reported["reproduced_in"].as_str().unwrap().ends_with("results/reproduce-sums-y__1"),
        "{reported:#}"
    );
    assert_eq!(differing(&reported), Vec::<&str>::new(), "{reported:#}");
}
