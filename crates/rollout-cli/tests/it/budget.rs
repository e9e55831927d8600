//! Jobs with a budget: they stop before it is passed, keep what ran, and continue with a larger one.

use rollout_testkit::{ModelReply, ModelServer, TestJob, TestTask, TokenCounts};
use serde_json::json;

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

/// A script agent whose attempts cost a dollar each.
fn dollar_a_trial() -> TestJob {
    let execute = "echo '{\"cost_usd\": 1}' > /logs/agent/usage.json; touch /app/done";
    job().task(TestTask::new("task")).script(execute).set("n_attempts", json!(10))
}

#[test]
fn a_job_stops_within_its_budget_and_continues_with_a_larger_one() {
    let job = dollar_a_trial().set("budget", json!({"usd": 4.5})).set("n_concurrent_trials", json!(3));
    let stopped = job.run().expect(1);
    let result = stopped.result();
    assert_eq!((&result["completed_trials"], &result["skipped_trials"]), (&json!(4), &json!(6)));
    assert_eq!(result["stopped"], json!({"budget_usd": 4.5, "spent_usd": 4.0}));
    let screen = stopped.stdout();
    let line =
        "$4.00 of the budget of $4.50 is spent, and another trial would exceed it, so 6 trials were not run";
    assert!(screen.contains(line), "{screen}");
    assert!(screen.contains("rollout resume jobs/job --budget USD"), "{screen}");

    let unchanged = job.rollout(&["resume", "jobs/job"]).expect(1);
    assert_eq!(unchanged.result()["completed_trials"], 4, "the costs of earlier runs count");
    let again = job.rollout(&["resume", "jobs/job", "--budget", "6"]).expect(1);
    assert_eq!(again.result()["completed_trials"], 6);
    let whole = job.rollout(&["resume", "jobs/job", "--budget", "100"]).expect(0);
    assert_eq!(
        (&whole.result()["completed_trials"], &whole.result()["total_cost"]),
        (&json!(10), &json!(10.0))
    );
    assert!(whole.result().get("stopped").is_none());
}

#[test]
fn the_budget_of_the_job_file_can_be_raised() {
    let job = dollar_a_trial().set("budget", json!({"usd": 2}));
    job.run().expect(1);
    let job = job.set("budget", json!({"usd": 50}));
    let whole = job.rollout(&["resume", "jobs/job"]).expect(0);
    assert_eq!(whole.result()["completed_trials"], 10);
}

#[test]
fn groups_of_rollouts_that_a_budget_cuts_off_are_scored() {
    let counts = TokenCounts { prompt: 1_000_000, ..TokenCounts::default() };
    let server = ModelServer::always(ModelReply::text("4").usage(counts));
    let prices = json!({"input": 1.0, "output": 1.0});
    let model =
        json!({"name": "m", "base_url": server.url(), "api_key": "a-key-of-some-length", "prices": prices});
    let interaction =
        json!({"dataset": [{"question": "2+2?", "answer": "4"}], "rubric": [{"match": "numeric"}]});
    let job = job()
        .agent(json!({"name": "model", "model": model}))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]))
        .set("n_attempts", json!(8))
        .set("budget", json!({"usd": 3}));
    let stopped = job.run().expect(1);
    let result = stopped.result();
    assert_eq!(
        (&result["completed_trials"], &result["skipped_trials"]),
        (&json!(3), &json!(5)),
        "{result:#}"
    );
    let whole = job.rollout(&["resume", "jobs/job", "--budget", "20"]).expect(0);
    assert_eq!(whole.result()["completed_trials"], 8);
}

#[test]
fn a_model_without_a_price_is_reported_once() {
    let execute = "echo '{\"input_tokens\": 5}' > /logs/agent/usage.json; touch /app/done";
    let job = job()
        .task(TestTask::new("task"))
        .script(execute)
        .set("n_attempts", json!(3))
        .set("budget", json!({"usd": 1}));
    let finished = job.run().expect(0);
    let shown = finished.stdout() + &finished.stderr();
    assert_eq!(shown.matches("the budget does not limit agent agent").count(), 1, "{shown}");
}

#[test]
fn a_budget_of_nothing_is_invalid() {
    let job = dollar_a_trial().set("budget", json!({"usd": 0}));
    let refused = job.run().expect(2);
    assert!(refused.stderr().contains("usd"), "{}", refused.stderr());
}
