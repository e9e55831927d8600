//! `rollout export eval-log`, for jobs with containers, with models and for benchmarks.

use std::fs;

use rollout_testkit::{ModelReply, ModelServer, Python, TestJob, TestTask, TokenCounts};
use serde_json::{Value, json};

use super::{episode, experiment, job, json_file, model, sums, without_times};

fn export(job: &TestJob) {
    job.rollout(&["export", "eval-log", "jobs/job", "-o", "out", "--jsonl"]).expect(0);
}

fn task() -> TestTask {
    TestTask::new("task").config("[metadata]\ndescription = \"Makes a file\"\n")
}

#[test]
fn containers_have_a_record_for_each_agent_and_each_episode() {
    let counts = TokenCounts { prompt: 1000, cached: 600, completion: 50, ..TokenCounts::default() };
    let server = ModelServer::turns([
        ModelReply::tool_call("bash", &json!({"command": "touch /app/done"})).usage(counts),
        ModelReply::text("Done.").usage(counts),
    ]);
    let mut gpt = model(&server);
    gpt["model"]["sampling"] = json!({"seed": 7});
    let job = job().task(task()).oracle().script("exit 3").agent(gpt);
    job.run().expect(1);
    export(&job);
    let out = job.root().join("out");

    insta::assert_json_snapshot!(without_times(episode(&out, "model/set/task__1")), {
        ".experiment_id" => "[id]", ".task_version_hash" => "[hash]", ".verifier.source" => "[test.sh]",
    }, @r#"
    {
      "experiment_id": "[id]",
      "task_id": "task",
      "task_version_hash": "[hash]",
      "seed": 7,
      "split": null,
      "task_description": "Makes a file",
      "tool_names": [
        "bash",
        "read_file",
        "write_file",
        "apply_patch"
      ],
      "success": true,
      "reward": 1.0,
      "error_type": null,
      "n_steps": 5,
      "n_agent_steps": 2,
      "n_env_steps": 3,
      "wall_time_s": "[time]",
      "usage": {
        "prompt_tokens": 2000,
        "completion_tokens": 100,
        "total_tokens": 2100,
        "cached_tokens": 1200,
        "cache_creation_tokens": 0,
        "total_cost_usd": 0.0,
        "n_llm_calls": 2
      },
      "trajectory_id": "task__1",
      "timestamp": "[time]",
      "verifier": {
        "ref": null,
        "source": "[test.sh]"
      },
      "findings": null
    }
    "#);
    let oracle = episode(&out, "oracle/set/task__1");
    assert_eq!(
        (&oracle["n_agent_steps"], &oracle["n_env_steps"], &oracle["n_steps"]),
        (&json!(1), &json!(2), &json!(3))
    );
    assert_eq!(
        (&oracle["success"], &oracle["error_type"], &oracle["seed"]),
        (&json!(true), &Value::Null, &Value::Null)
    );
    let failed = episode(&out, "agent/set/task__1");
    assert_eq!((&failed["success"], &failed["reward"]), (&json!(false), &json!(0.0)));
    assert_eq!(failed["error_type"], "agent_execution_failed");
    let hash = oracle["task_version_hash"].as_str().unwrap();
    assert_eq!((hash.len(), &failed["task_version_hash"]), (64, &oracle["task_version_hash"]));

    let mut shared = without_times(experiment(&out, "model/set"));
    let root = job.root().canonicalize().unwrap();
    assert_eq!(shared["output_dir"], json!(root.join("jobs/job/model/set")));
    assert_eq!(shared["experiment_id"], episode(&out, "model/set/task__1")["experiment_id"]);
    shared["output_dir"] = json!("[dir]");
    insta::assert_json_snapshot!(shared, { ".experiment_id" => "[id]", ".agent.agent_id" => "[id]" }, @r#"
    {
      "experiment_id": "[id]",
      "experiment_name": "job/model/set",
      "timestamp": "[time]",
      "framework_version": "0.1.0",
      "agent": {
        "agent_id": "[id]",
        "config_type": "rollout.ModelAgent",
        "config": {
          "name": "model",
          "model": {
            "name": "scripted",
            "dialect": "chat",
            "sampling": {
              "seed": 7
            }
          }
        },
        "llm_model": "scripted",
        "framework_version": "0.1.0",
        "dependency_versions": {
          "rollout": "0.1.0"
        },
        "git_commit": null,
        "git_remote_url": null,
        "git_is_dirty": null,
        "cube_standard_git_commit": null,
        "cube_standard_git_is_dirty": null,
        "description": null
      },
      "benchmark_name": "set",
      "benchmark_version": null,
      "benchmark_subset": {
        "name": "set",
        "n_tasks": 1,
        "filter": null
      },
      "investigator_llm_config": null,
      "output_dir": "[dir]"
    }
    "#);
}

#[test]
fn rollouts_of_models_have_their_calls_their_split_and_their_errors() {
    let server = ModelServer::scripted(|request| match &*request.last_text() {
        "What is 0+1?" => ModelReply::text("1"),
        _ => ModelReply::error(400, "no such model"),
    });
    let job = job().agent(model(&server)).set("datasets", sums(2));
    job.run().expect(1);
    export(&job);
    let out = job.root().join("out");
    let names: Vec<_> = fs::read_dir(out.join("model/sums/episodes"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
    let episodes = names.iter().map(|name| episode(&out, &format!("model/sums/{}", name.to_str().unwrap())));
    let (right, wrong): (Vec<_>, Vec<_>) = episodes.partition(|episode| episode["success"] == true);
    assert_eq!(
        (&right[0]["split"], &right[0]["reward"], &right[0]["usage"]["n_llm_calls"]),
        (&json!("test"), &json!(1.0), &json!(1))
    );
    assert_eq!((&right[0]["n_steps"], &right[0]["verifier"]), (&json!(3), &Value::Null));
    assert_eq!((&wrong[0]["error_type"], &wrong[0]["n_steps"]), (&json!("ModelError"), &json!(1)));
    assert_ne!(right[0]["task_version_hash"], wrong[0]["task_version_hash"]);
    assert_eq!(wrong[0]["task_version_hash"].as_str().map(str::len), Some(64));
}

#[test]
fn questions_of_a_benchmark_have_its_tools_and_its_model() {
    let server = ModelServer::arithmetic();
    let config = json!({
        "data_path": "questions.jsonl", "output_dir": "jobs/job", "base_url": server.url(), "model_name": "m",
        "max_retries": 0, "system_prompt": "Be short.",
    });
    let job = job()
        .file("questions.jsonl", "{\"id\": \"q1\", \"question\": \"What is 2+2?\", \"answer\": \"4\"}\n")
        .file("config.json", &config.to_string());
    job.rollout(&["eval", "config.json"]).expect(0);
    export(&job);
    let out = job.root().join("out");
    let shared = experiment(&out, "m/questions");
    assert_eq!(
        (&shared["agent"]["llm_model"], &shared["benchmark_subset"]["n_tasks"]),
        (&json!("m"), &json!(1))
    );
    assert_eq!(shared["agent"]["config"]["system_prompt"], "Be short.");
    assert_eq!(shared["agent"]["config"].get("base_url"), None);
    let episode = episode(&out, "m/questions/q1__1");
    assert_eq!(
        (&episode["task_id"], &episode["success"], &episode["n_agent_steps"]),
        (&json!("q1"), &json!(true), &json!(1))
    );
}

#[test]
fn python_finds_the_same_ids_in_what_was_exported() {
    let server = ModelServer::always(ModelReply::text("1"));
    let mut agent = model(&server);
    agent["model"]["sampling"] =
        json!({"temperature": 1e-7, "top_p": 1.0, "seed": 18_446_744_073_709_551_615_u64});
    agent["system_prompt"] = json!("Réponds en 日本語 😀");
    let job = job().agent(agent).set("datasets", sums(1));
    job.run().expect(0);
    export(&job);
    let program = "
import hashlib, json, pathlib, sys
for path in sorted(pathlib.Path(sys.stdin.read()).rglob('experiment_record.json')):
    record = json.loads(path.read_text())
    agent = hashlib.sha256(json.dumps(record['agent']['config'], sort_keys=True).encode()).hexdigest()
    assert agent == record['agent']['agent_id'], (agent, record)
    name = record['experiment_name'] + record['output_dir']
    assert hashlib.sha256(name.encode()).hexdigest()[:16] == record['experiment_id'], record
    lines = (path.parent / 'episodes.jsonl').read_text().splitlines()
    assert all(json.loads(line)['experiment_id'] == record['experiment_id'] for line in lines)
    print(record['experiment_name'], len(lines))
    row = json.loads((path.parents[3] / 'jobs/job/outputs.jsonl').read_text())
    example = {key: row.get(key) for key in ('prompt', 'answer', 'info')}
    version = hashlib.sha256(json.dumps(example, sort_keys=True).encode()).hexdigest()
    assert json.loads(lines[0])['task_version_hash'] == version, (lines[0], example)
";
    let out = job.root().join("out");
    assert_eq!(Python::new().run(program, out.to_str().unwrap()), "job/model/sums 1\n");
}

#[test]
fn an_agent_is_the_same_on_two_machines() {
    let ids = ["one-0123456789abcdef", "two-0123456789abcdef"].map(|key| {
        let server = ModelServer::always(ModelReply::text("1"));
        let mut gpt = model(&server);
        gpt["model"]["api_key"] = json!("${THE_KEY}");
        gpt["description"] = json!(format!("of {}", server.url()));
        let job = job().file("go.sh", "true").env("THE_KEY", key);
        let script =
            json!({"name": "script", "execute_file": job.root().join("go.sh"), "env": {"KEY": "${THE_KEY}"}});
        let job =
            job.task(task()).agent(script).agent(gpt).set("datasets", json!([{"path": "set"}, sums(1)[0]]));
        job.run();
        export(&job);
        let out = job.root().join("out");
        let shared = ["script/set", "model/set", "model/sums"].map(|pair| experiment(&out, pair));
        for record in &shared {
            assert_eq!(record["agent"]["description"], Value::Null, "{record:#}");
            assert!(!record["agent"].to_string().contains(key), "{record:#}");
        }
        (
            shared.clone().map(|record| record["agent"]["agent_id"].clone()),
            shared.map(|record| record["experiment_id"].clone()),
        )
    });
    assert_eq!(ids[0].0, ids[1].0);
    assert_ne!(ids[0].1, ids[1].1);
}

#[test]
fn what_people_added_stays_and_other_experiments_are_not_overwritten() {
    let job = job().task(task()).oracle();
    job.run().expect(0);
    export(&job);
    let path = job.root().join("out/oracle/set/experiment_record.json");
    let mut record = json_file(&path);
    record["agent"]["description"] = json!("Knows the solution.");
    record["agent"]["x_mine"] = json!("mine");
    record["agent"]["cube_standard_git_commit"] = json!("abc");
    record["agent"]["dependency_versions"]["docker"] = json!("28");
    record["benchmark_subset"]["filter"] = json!("level=1");
    record["benchmark_subset"]["x_mine"] = json!("mine");
    record["leaderboard"] = json!(1);
    fs::write(&path, record.to_string()).unwrap();
    let of_episode = job.root().join("out/oracle/set/episodes/task__1/episode_record.json");
    let mut episode = json_file(&of_episode);
    episode["split"] = json!("test");
    episode["usage"]["x_mine"] = json!(1);
    episode["x_mine"] = json!("mine");
    fs::write(&of_episode, episode.to_string()).unwrap();
    export(&job);
    assert_eq!(json_file(&path), record);
    assert_eq!(json_file(&of_episode), episode);

    record["experiment_id"] = json!("0123456789abcdef");
    fs::write(&path, record.to_string()).unwrap();
    let refused = job.rollout(&["export", "eval-log", "jobs/job", "-o", "out"]).expect(2);
    insta::assert_snapshot!(refused.stderr(), @"
    error: out/oracle/set already exists, and results are never overwritten
    hint: choose another directory, or remove the file
    ");
    assert_eq!(json_file(&path), record);
}

#[test]
fn a_question_is_the_same_wherever_it_stands_in_its_dataset() {
    let server = ModelServer::always(ModelReply::text("1"));
    let question = json!({"question": "What is 0+1?", "answer": "1"});
    let version = |rows: Value, task: &str| {
        let datasets =
            json!([{"name": "sums", "interaction": {"dataset": rows, "rubric": [{"match": "numeric"}]}}]);
        let job = job().agent(model(&server)).set("datasets", datasets);
        job.run().expect(0);
        export(&job);
        episode(&job.root().join("out"), &format!("model/sums/{task}__1"))["task_version_hash"].clone()
    };
    let first = version(json!([question]), "0");
    assert_eq!(version(json!([{"question": "Another?", "answer": "2"}, question]), "1"), first);
    assert_ne!(version(json!([{"question": "What is 0+1?", "answer": "2"}]), "0"), first);
}

#[test]
fn a_part_of_a_benchmark_is_not_called_the_whole() {
    let subset = |more: &[&str]| {
        let job =
            job().task(TestTask::new("hello-a")).task(TestTask::new("hello-b")).task(TestTask::new("other"));
        let job = job.oracle();
        job.rollout(&[&["run", "job.yaml"], more].concat()).expect(0);
        export(&job);
        experiment(&job.root().join("out"), "oracle/set")["benchmark_subset"].clone()
    };
    let whole = json!({"name": "set", "n_tasks": 3, "filter": null});
    assert_eq!(subset(&["--task", "*"]), whole, "nothing is left out");
    assert_eq!(
        subset(&["--task", "hello*"]),
        json!({"name": "set[hello*]", "n_tasks": 2, "filter": "hello*"})
    );
    assert_eq!(
        subset(&["--task", "hello*", "--limit", "1"]),
        json!({"name": "set[hello*,limit=1]", "n_tasks": 1, "filter": "hello*"})
    );
    let part = ["--set", "datasets.0.exclude=[other]", "--set", "datasets.0.limit=1"];
    assert_eq!(subset(&part), json!({"name": "set[!other,limit=1]", "n_tasks": 1, "filter": "!other"}));
}

#[test]
fn a_trial_that_is_being_run_again_is_exported_with_the_files_of_its_last_result() {
    let server = ModelServer::always(ModelReply::text("Done."));
    let job = job().task(task()).agent(model(&server));
    job.run().expect(0);
    export(&job);
    let before = episode(&job.root().join("out"), "model/set/task__1");
    assert_eq!(before["n_agent_steps"], 1);

    // As a trial that is run again lies there until it has a new result.
    let trial = job.dir().join("model/set/task__1");
    let earlier = job.dir().join("model/set/earlier");
    fs::rename(&trial, &earlier).unwrap();
    fs::create_dir(&trial).unwrap();
    fs::rename(&earlier, trial.join("earlier")).unwrap();
    let mut unfinished = json_file(trial.join("earlier/trajectory.json"));
    unfinished["turns"] = json!([]);
    fs::write(trial.join("trajectory.json"), unfinished.to_string()).unwrap();
    job.rollout(&["export", "eval-log", "jobs/job", "-o", "again"]).expect(0);
    assert_eq!(episode(&job.root().join("again"), "model/set/task__1"), before);
}

#[test]
fn conversations_are_read_from_the_files_of_the_job_only() {
    let server = ModelServer::always(ModelReply::text("Done."));
    let job = job().task(task()).agent(model(&server));
    job.run().expect(0);
    let trajectory = job.dir().join("model/set/task__1/trajectory.json");
    let outside = job.root().join("outside.json");
    fs::rename(&trajectory, &outside).unwrap();
    std::os::unix::fs::symlink(&outside, &trajectory).unwrap();
    let refused = job.rollout(&["export", "eval-log", "jobs/job", "-o", "out"]).expect(2);
    assert!(refused.stderr().contains("not a regular file inside the directory"), "{}", refused.stderr());
    fs::remove_file(&trajectory).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&trajectory).status().unwrap().success());
    job.rollout(&["export", "eval-log", "jobs/job", "-o", "pipe"]).expect(2);
}

#[test]
fn records_of_every_kind_of_job_keep_to_their_schema() {
    const PROGRAM: &str = "
import json, pathlib, sys
import jsonschema
asked = json.loads(sys.stdin.read())
seen = {}
for kind, name in (('experiment', 'experiment_record.json'), ('episode', 'episode_record.json')):
    schema = dict(asked['schema'], **{'$ref': '#/$defs/' + kind})
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    for out in asked['logs']:
        for path in pathlib.Path(out).rglob(name):
            check.validate(json.loads(path.read_text()))
            seen[kind] = seen.get(kind, 0) + 1
print(seen['experiment'], seen['episode'])
";
    let server = ModelServer::arithmetic();
    let tasks = job().task(task()).oracle().agent(model(&server));
    let tasks = tasks.set("datasets", json!([{"path": "set"}, sums(2)[0]]));
    tasks.run();
    let config = json!({"data_path": "questions.jsonl", "output_dir": "jobs/job", "base_url": server.url(), "model_name": "m"});
    let benchmark = job()
        .file("questions.jsonl", "{\"id\": \"q1\", \"question\": \"What is 2+2?\", \"answer\": \"4\"}\n")
        .file("config.json", &config.to_string());
    benchmark.rollout(&["eval", "config.json"]).expect(0);
    let logs = [&tasks, &benchmark].map(|job| {
        export(job);
        job.root().join("out")
    });
    let schema: Value = serde_json::from_str(include_str!("schema.json")).unwrap();
    let asked = json!({"schema": schema, "logs": logs}).to_string();
    assert_eq!(Python::new().run(PROGRAM, &asked), "5 7\n");
}
