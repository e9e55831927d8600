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
    insta::assert_snapshot!(export(&job), @"
    out/model/set
    4 trials
    left out: trials without a conversation with a model: 4
    ");
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
    insta::assert_snapshot!(serde_json::to_string_pretty(&trajectory).unwrap(), @r#"
    {
      "schema_version": "ATIF-v1.6",
      "session_id": "job/model/set/good__1",
      "agent": {
        "name": "model",
        "version": "0.1.0",
        "model_name": "scripted",
        "tool_definitions": null
      },
      "steps": [
        {
          "step_id": 1,
          "source": "system",
          "message": "[system prompt]"
        },
        {
          "step_id": 2,
          "source": "user",
          "message": "Create the file /app/done.\n"
        },
        {
          "step_id": 3,
          "timestamp": null,
          "source": "agent",
          "model_name": "scripted",
          "message": "",
          "tool_calls": [
            {
              "tool_call_id": null,
              "function_name": "bash",
              "arguments": {
                "command": "touch /app/done; echo made"
              }
            }
          ],
          "observation": {
            "results": [
              {
                "source_call_id": null,
                "content": "made\n[exit code 0]"
              }
            ]
          },
          "metrics": {
            "prompt_tokens": 1000,
            "completion_tokens": 50,
            "cached_tokens": 600,
            "cost_usd": 0.012
          },
          "extra": {
            "finish_reason": "tool_calls"
          }
        },
        {
          "step_id": 4,
          "timestamp": null,
          "source": "agent",
          "model_name": "scripted",
          "message": "Done.",
          "metrics": {
            "prompt_tokens": 1000,
            "completion_tokens": 50,
            "cached_tokens": 600,
            "cost_usd": 0.012
          },
          "extra": {
            "finish_reason": "stop"
          }
        }
      ],
      "final_metrics": {
        "total_prompt_tokens": 2000,
        "total_completion_tokens": 100,
        "total_cached_tokens": 1200,
        "total_cost_usd": 0.024,
        "total_steps": 4
      },
      "extra": null
    }
    "#);
}

#[test]
fn rollouts_and_questions_are_trajectories_too() {
    let server = answerer();
    let job = rollouts(&server);
    let result = job.run().expect(1).result();
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
    insta::assert_snapshot!(export(&job), @"
    out/m/questions
    4 trials
    ");
}

#[test]
fn no_message_of_a_model_or_a_tool_makes_a_trajectory_invalid() {
    let server = answerer();
    let (job, output) = hostile(&server);
    export(&job);
    let trajectories = trajectories(&job);
    let steps = |(_, trajectory): &(&String, &Value)| trajectory["steps"].as_array().unwrap().len();
    let (path, trajectory) = trajectories.as_object().unwrap().iter().max_by_key(steps).unwrap();
    let mut trajectory = trajectory.clone();
    let huge = trajectory["steps"][3]["observation"]["results"][0]["content"].take();
    assert_eq!(huge.as_str().unwrap(), output);
    insta::assert_snapshot!(serde_json::to_string_pretty(&trajectory["steps"]).unwrap(), @r#"
    [
      {
        "step_id": 1,
        "source": "system",
        "message": "\u0000"
      },
      {
        "step_id": 2,
        "source": "user",
        "message": [
          {
            "type": "text",
            "text": "look"
          },
          {
            "type": "image",
            "source": {
              "media_type": "image/png",
              "path": "0__1.images/1.png"
            }
          },
          {
            "type": "image",
            "source": {
              "media_type": "image/webp",
              "path": "https://host/a.webp?size=1"
            }
          },
          {
            "type": "text",
            "text": "{\"type\":\"image_url\",\"image_url\":{\"url\":\"file:///etc/passwd\"}}"
          },
          {
            "type": "text",
            "text": "{\"type\":\"image_url\",\"image_url\":4}"
          },
          {
            "type": "text",
            "text": "{\"type\":\"input_audio\",\"input_audio\":{\"data\":\"AA==\",\"format\":\"ogg\"}}"
          }
        ],
        "extra": {
          "role": "wizard"
        }
      },
      {
        "step_id": 3,
        "source": "agent",
        "message": "",
        "tool_calls": [
          {
            "tool_call_id": "0",
            "function_name": "old",
            "arguments": {}
          }
        ],
        "extra": {
          "is_example_of_the_prompt": true
        }
      },
      {
        "step_id": 4,
        "source": "agent",
        "message": "",
        "reasoning_content": "hm",
        "tool_calls": [
          {
            "tool_call_id": "../../1",
            "function_name": "a/b",
            "arguments": {
              "arguments": "{\"x\": \"\\ud800\"}"
            }
          },
          {
            "tool_call_id": "2",
            "function_name": "",
            "arguments": {
              "arguments": "[1]"
            }
          }
        ],
        "observation": {
          "results": [
            {
              "source_call_id": "../../1",
              "content": null
            },
            {
              "content": "?"
            },
            {
              "content": ""
            }
          ]
        },
        "extra": {
          "calls_without_json_arguments": [
            "../../1",
            "2"
          ]
        }
      },
      {
        "step_id": 5,
        "source": "user",
        "message": "go on"
      },
      {
        "step_id": 6,
        "source": "system",
        "message": "",
        "observation": {
          "results": [
            {
              "content": "late"
            }
          ]
        }
      },
      {
        "step_id": 7,
        "source": "agent",
        "message": [
          {
            "type": "text",
            "text": "a"
          },
          {
            "type": "text",
            "text": "{\"type\":\"thing\",\"value\":[1]}"
          }
        ]
      }
    ]
    "#);
    let image = path.replace(".json", ".images/1.png");
    assert_eq!(fs::read(job.root().join("out").join(image)).unwrap(), b"\x89PNG");
}

#[test]
fn a_job_without_a_model_has_no_trajectories() {
    let job = super::job().task(rollout_testkit::TestTask::new("task")).oracle();
    job.run().expect(0);
    let stderr = job.rollout(&["export", "atif", "jobs/job", "-o", "out"]).expect(2).stderr();
    insta::assert_snapshot!(stderr, @"error: jobs/job has nothing to export: no trial has a conversation with a model");
    // A tag that no trial has is no reason.
    for (format, reason) in [
        ("atif", "no trial has a conversation with a model\n"),
        ("rl", "1 trial without a recorded conversation\n"),
    ] {
        let tagged = ["export", format, "jobs/job", "-o", "out", "--exclude-tag", "broken"];
        let stderr = job.rollout(&tagged).expect(2).stderr();
        assert!(stderr.lines().next().unwrap().ends_with(reason.trim()), "{format}: {stderr}");
    }
}
