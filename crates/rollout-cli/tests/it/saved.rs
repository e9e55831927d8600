//! Job directories, read again by the library, whatever their trials were.

use std::fs;

use rollout::record::saved::{SavedError, SavedJob, SavedTrial};
use rollout_testkit::{ModelReply, ModelServer, TestJob, TestTask};
use serde_json::json;

fn open(job: &TestJob) -> SavedJob {
    SavedJob::open(job.root().join("jobs/job")).unwrap()
}

fn trials(job: &SavedJob) -> Vec<SavedTrial> {
    job.trials().unwrap().map(Result::unwrap).collect()
}

fn reported(job: &SavedJob) -> Vec<String> {
    let line = |trial: &SavedTrial| {
        let said = job.conversation(trial).unwrap();
        let said = said.map(|said| {
            let texts =
                said.messages().map(|message| format!("{}: {}", message.role.as_str(), message.text()));
            texts.collect::<Vec<_>>().join(" | ")
        });
        format!("{} {:?} {}", trial.id, trial.result.reward, said.unwrap_or_default())
    };
    trials(job).iter().map(line).collect()
}

#[test]
fn tasks_in_containers_are_read_in_the_order_of_the_plan_with_what_they_said() {
    let server = ModelServer::turns([
        ModelReply::tool_call("bash", &json!({"command": "touch /app/done"})),
        ModelReply::text("Made it."),
    ]);
    let model = json!({"name": "model", "model": {"name": "scripted", "base_url": server.url()}});
    let about = "[metadata]\ncategory = \"files\"\ndifficulty = \"easy\"\ntags = [\"a\", \"b\"]\n";
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(TestTask::new("b").config(about))
        .task(TestTask::new("a").file("instruction.md", "Make /app/done.\n"))
        .oracle()
        .agent(model)
        .set("n_concurrent_trials", json!(1));
    job.run().expect(0);
    let saved = open(&job);
    let lines = reported(&saved);
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[..2], ["oracle/set/a__1 Some(1.0) ", "oracle/set/b__1 Some(1.0) "]);
    assert!(lines[2].starts_with("model/set/a__1 Some(1.0) "), "{}", lines[2]);
    assert!(
        lines[2]
            .ends_with("user: Make /app/done.\n | assistant:  | tool: [exit code 0] | assistant: Made it."),
        "{}",
        lines[2]
    );
    assert_eq!(saved.groups().collect::<Vec<_>>(), [("oracle", "set"), ("model", "set")]);

    let (a, b) = (saved.about(0).unwrap().unwrap(), saved.about(1).unwrap().unwrap());
    assert_eq!((a.name.as_str(), a.instruction.as_str(), a.category), ("a", "Make /app/done.\n", None));
    assert_eq!((b.category.as_deref(), b.difficulty.as_deref()), (Some("files"), Some("easy")));
    assert_eq!(b.tags, ["a", "b"]);
    assert!(b.test.unwrap().contains("reward.txt"));
    assert_ne!(a.version_hash.unwrap(), b.version_hash.unwrap());
}

#[test]
fn a_task_cannot_add_files_of_this_machine_to_the_record() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "of this machine").unwrap();
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout")).task(TestTask::new("a")).oracle();
    let instruction = job.root().join("set/a/instruction.md");
    fs::remove_file(&instruction).unwrap();
    std::os::unix::fs::symlink(outside.path().join("secret"), &instruction).unwrap();
    job.run();
    let tasks = fs::read_to_string(job.root().join("jobs/job/tasks.jsonl")).unwrap_or_default();
    assert!(!tasks.contains("of this machine"), "{tasks}");
}

#[test]
fn rollouts_are_read_with_their_rows_and_the_last_word_counts() {
    let server =
        ModelServer::sequence([ModelReply::error(500, "down"), ModelReply::text("2"), ModelReply::text("2")]);
    let rows =
        json!([{"question": "What is 1+1?", "answer": "2"}, {"question": "What is 2+0?", "answer": "2"}]);
    let interaction = json!({"dataset": rows, "rubric": [{"match": "numeric"}]});
    let model = json!({"name": "m", "base_url": server.url(), "max_retries": 0});
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "m", "model": model}))
        .set("n_concurrent_trials", json!(1))
        .set("retry", json!({"max_attempts": 1}))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]));
    job.run().expect(1);
    assert_eq!(
        trials(&open(&job))[0].result.error.as_ref().map(|error| error.kind.as_str()),
        Some("model_failed")
    );
    job.rollout(&["resume", "jobs/job", "--rerun", "error"]).expect(0);
    let saved = open(&job);
    assert_eq!(
        reported(&saved),
        [
            "m/sums/0__1 Some(1.0) user: What is 1+1? | assistant: 2",
            "m/sums/1__1 Some(1.0) user: What is 2+0? | assistant: 2"
        ]
    );
    assert_eq!(trials(&saved).iter().map(|trial| trial.run).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(saved.runs().len(), 2);
    assert_eq!(saved.about(0).unwrap(), None);
}

#[test]
fn answers_of_a_benchmark_are_read_with_their_trajectories() {
    let server = ModelServer::always(ModelReply::text("Final answer: 4"));
    let config = json!({
        "data_path": "questions.jsonl", "output_dir": "jobs/job", "base_url": server.url(), "model_name": "m",
        "evaluation_metric": "exact_match",
    });
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .file("questions.jsonl", "{\"id\": \"问题\", \"question\": \"2+2?\", \"answer\": \"4\"}\n")
        .file("config.json", &config.to_string());
    job.rollout(&["eval", "config.json"]).expect(0);
    let saved = open(&job);
    let trial = &trials(&saved)[0];
    assert_eq!(trial.result.reward, Some(1.0));
    let said = saved.conversation(trial).unwrap().unwrap();
    assert_eq!(said.completion.last().unwrap().text(), "Final answer: 4");
    assert_eq!(said.row.unwrap().columns["predicted_answer"], "4");
}

#[test]
fn a_directory_without_a_job_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(SavedJob::open(dir.path()), Err(SavedError::NotAJob(_))));
}
