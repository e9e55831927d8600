//! Trajectories in the Agent Trajectory Interchange Format, validated by its schema.

use std::fs;

use rollout_testkit::{Python, TestJob};
use serde_json::{Value, json};

use super::{answerer, benchmark, containers, hostile, rollouts, solver};

fn export(job: &TestJob) -> String {
    job.rollout(&["export", "atif", "jobs/job", "-o", "out"]).expect(0).stdout()
}

/// The trajectories of a job by their paths, once they were found to be valid.
fn trajectories(job: &TestJob) -> Value {
    let schema: Value = serde_json::from_str(include_str!("atif.schema.json")).unwrap();
    let input = json!({"schema": schema, "directory": job.root().join("out")});
    serde_json::from_str(&Python::new().run(include_str!("atif.py"), &input.to_string())).unwrap()
}

#[test]
fn a_trial_of_a_model_is_a_trajectory_of_its_turns() {
    let server = solver();
    let job = containers(&server);
    let finished = job.run().expect(1);
    insta::assert_snapshot!(export(&job), @r#""#);
    let mut trajectory = trajectories(&job)["model/set/good__1.json"].clone();
    let result = finished.trial("model/set/good__1");
    assert_eq!(trajectory["extra"]["reward"], result["reward"]);
    assert_eq!(trajectory["extra"]["started_at"], result["timestamps"]["started_at"]);
    for step in trajectory["steps"].as_array_mut().unwrap() {
        if step["source"] == "agent" {
            assert!(
                step["timestamp"].take().as_str()
                    >= result["timestamps"]["agent_execution_started_at"].as_str()
            );
        }
    }
    let call = trajectory["steps"][2]["tool_calls"][0]["tool_call_id"].take();
    assert_eq!(trajectory["steps"][2]["observation"]["results"][0]["source_call_id"].take(), call);
    trajectory["steps"][0]["message"] = json!("[system prompt]");
    let tools = trajectory["agent"]["tool_definitions"].take();
    assert_eq!(tools[0]["function"]["name"], "bash");
    trajectory["extra"].take();
    insta::assert_snapshot!(serde_json::to_string_pretty(&trajectory).unwrap(), @r#""#);
}

#[test]
fn rollouts_and_questions_are_trajectories_too() {
    let server = answerer();
    let job = rollouts(&server);
    let result = job.run().expect(0).result();
    export(&job);
    let trajectories = trajectories(&job);
    for row in result["results"].as_array().unwrap() {
        let name = format!("gpt/small_sums/{}__{}.json", row["task_name"].as_str().unwrap(), row["attempt"]);
        let trajectory = &trajectories[&name];
        assert_eq!(trajectory["extra"]["reward"], row["reward"]);
        assert_eq!(trajectory["steps"][0]["source"], "system");
    }
    let job = benchmark(&server);
    job.rollout(&["eval", "config.json"]).expect(1);
    insta::assert_snapshot!(export(&job), @r#""#);
}

#[test]
fn nothing_that_a_model_or_a_tool_says_makes_a_trajectory_invalid() {
    let server = answerer();
    let (job, output) = hostile(&server);
    export(&job);
    let trajectories = trajectories(&job);
    let steps = |(_, trajectory): &(&String, &Value)| trajectory["steps"].as_array().unwrap().len();
    let (path, trajectory) = trajectories.as_object().unwrap().iter().max_by_key(steps).unwrap();
    let mut trajectory = trajectory.clone();
    let huge = trajectory["steps"][3]["observation"]["results"][0]["content"].take();
    assert_eq!(huge.as_str().unwrap(), output);
    insta::assert_snapshot!(serde_json::to_string_pretty(&trajectory["steps"]).unwrap(), @r#""#);
    let image = path.replace(".json", ".images/1.png");
    assert_eq!(fs::read(job.root().join("out").join(image)).unwrap(), b"\x89PNG");
}

#[test]
fn a_job_without_a_model_has_no_trajectories() {
    let job = super::job().task(rollout_testkit::TestTask::new("task")).oracle();
    job.run().expect(0);
    let stderr = job.rollout(&["export", "atif", "jobs/job", "-o", "out"]).expect(2).stderr();
    insta::assert_snapshot!(stderr, @r#""#);
}
