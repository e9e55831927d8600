//! How trials are counted: the headline, thresholds, costs, and what a job records of them.

use rollout_testkit::{ModelReply, ModelServer, TestJob, TestTask};
use serde_json::{Value, json};

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout")).set("retry", json!({"max_attempts": 1}))
}

/// The row of an agent in the table at the end, word by word.
fn row(stdout: &str, agent: &str) -> String {
    // The head of the table starts with the word agent, too.
    let is_row = |line: &&str| line.starts_with(&format!("{agent} ")) && !line.contains("dataset");
    let row = stdout.lines().find(is_row).unwrap();
    // The time, which is never the same, comes last.
    row.split_whitespace().take(10).collect::<Vec<_>>().join(" ")
}

#[test]
fn an_agent_that_crashes_in_nine_of_ten_attempts_solves_ten_percent() {
    let job = job()
        .task(TestTask::new("task"))
        .script("test \"$ROLLOUT_ATTEMPT\" = 1 || exit 3; touch /app/done")
        .set("n_attempts", json!(10));
    let run = ["run", "job.yaml", "--fail-under", "pass_rate=0.9"];
    let finished = job.rollout(&run).expect(1);
    assert!(finished.stderr().contains("fail-under: pass_rate is 0.1, below 0.9"), "{}", finished.stderr());
    insta::assert_snapshot!(row(&finished.stdout(), "agent"), @"agent set 10 1 9 0 1 10.0% 0.1 —");
    let result = finished.result();
    assert_eq!(result["pass_rate"], 1.0, "the document's own rate is over completed trials");
    insta::assert_json_snapshot!(result["headline"], @r#"
    {
      "pass_rate": 0.1,
      "mean_reward": 0.1,
      "solved_trials": 1,
      "counted_trials": 10,
      "counted": {
        "scored": 1,
        "failed_by_agent": 9,
        "failed_by_verifier": 0
      },
      "excluded": {
        "failed_by_infrastructure": 0,
        "failed_by_task": 0,
        "unscored": 0,
        "skipped": 0
      },
      "pass_thresholds": {
        "set": 1.0
      }
    }
    "#);
    assert_eq!(result["agents"]["agent"]["headline"]["pass_rate"], 0.1);
    let figures = &result["statistics"]["agents"]["agent"]["headline"];
    assert_eq!((&figures["trials"], &figures["pass_rate"]["rate"]), (&json!(10), &json!(0.1)));
}

#[test]
fn failures_of_the_infrastructure_and_the_task_are_excluded_from_the_rate_and_reported() {
    let job = job()
        .task(TestTask::new("good"))
        .task(TestTask::new("no-image").dockerfile("FROM scratch\nRUN false\n"))
        .task(TestTask::new("no-tests").without("tests/test.sh"))
        .oracle();
    let finished = job.run().expect(1);
    insta::assert_snapshot!(row(&finished.stdout(), "oracle"), @"oracle set 3 1 2 2 1 100.0% 1 —");
    assert!(
        finished.stdout().contains("excluded from the pass rate: 1 infrastructure failure, 1 task failure"),
        "{}",
        finished.stdout()
    );
    let headline = &finished.result()["headline"];
    assert_eq!(
        headline["excluded"],
        json!({"failed_by_infrastructure": 1, "failed_by_task": 1, "unscored": 0, "skipped": 0})
    );
    assert_eq!((&headline["pass_rate"], &headline["counted_trials"]), (&json!(1.0), &json!(1)));
}

#[test]
fn trials_without_a_verifier_have_a_dash_and_no_rate() {
    let job = job().task(TestTask::new("task")).oracle().set("verifier", json!({"disable": true}));
    let finished = job.run().expect(0);
    insta::assert_snapshot!(row(&finished.stdout(), "oracle"), @"oracle set 1 1 0 0 — — — —");
    let headline = &finished.result()["headline"];
    assert_eq!((&headline["pass_rate"], &headline["excluded"]["unscored"]), (&Value::Null, &json!(1)));
}

#[test]
fn a_cost_that_is_not_known_is_null_and_a_dash_and_an_absurd_one_is_refused() {
    let job = job()
        .task(TestTask::new("task"))
        .oracle()
        .agent(json!({"name": "priced", "execute": "echo '{\"cost_usd\": 0.5}' > /logs/agent/usage.json"}))
        .agent(
            json!({"name": "absurd", "execute": "echo '{\"cost_usd\": 1.7e308}' > /logs/agent/usage.json"}),
        );
    let finished = job.run().expect(0);
    let cost = |agent: &str| row(&finished.stdout(), agent).split(' ').next_back().unwrap().to_owned();
    assert_eq!([cost("oracle"), cost("priced"), cost("absurd")], ["—", "$0.50", "—"]);
    let result = finished.result();
    assert_eq!((&result["total_cost"], &result["model_cost"]), (&json!(0.5), &json!(0.5)));
    assert_eq!(result["agents"]["oracle"]["model_cost"], Value::Null);
    assert_eq!(result["agents"]["oracle"]["environment_cost"], 0.0);
    let note = &finished.trial("absurd/set/task__1")["notes"][0];
    assert_eq!(
        note,
        "/logs/agent/usage.json was ignored: cost_usd is 1.7e308, but must be from 0 to 1000000"
    );
}

#[test]
fn the_threshold_of_a_dataset_decides_everywhere_what_is_solved() {
    let partial = TestTask::new("task").tests("echo 0.7 > /logs/verifier/reward.txt\n");
    let job = job().task(partial).oracle().set("datasets", json!([{"path": "set", "pass_threshold": 0.6}]));
    let finished = job.rollout(&["run", "job.yaml", "--junit", "report.xml"]).expect(0);
    let result = finished.result();
    assert_eq!((&result["pass_rate"], &result["headline"]["pass_rate"]), (&json!(0.0), &json!(1.0)));
    assert_eq!(result["headline"]["pass_thresholds"], json!({"set": 0.6}));
    assert_eq!(finished.trial("oracle/set/task__1")["pass_threshold"], 0.6);
    let report = std::fs::read_to_string(job.root().join("report.xml")).unwrap();
    assert!(report.contains(r#"failures="0""#), "{report}");
    job.rollout(&["export", "csv", "jobs/job", "-o", "out"]).expect(0);
    let table = std::fs::read_to_string(job.root().join("out/trials.csv")).unwrap();
    let mut lines = table.lines();
    let place = lines.next().unwrap().split(',').position(|name| name == "solved").unwrap();
    assert_eq!(lines.next().unwrap().split(',').nth(place), Some("true"));
    let again = job.rollout(&["resume", "jobs/job", "--rerun", "unsolved"]).expect(0);
    assert!(!again.stdout().contains("[1/1]"), "a solved trial is not run again:\n{}", again.stdout());

    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let compared = job.rollout(&["compare", "jobs/job", "jobs/job", "--output", "json"]).expect(0);
    assert_eq!(json(&compared.stdout())["sides"][0]["headline"]["solved"], 1);
    let flakes = job.rollout(&["flakes", "jobs/job", "--output", "json"]).expect(0);
    assert_eq!(json(&flakes.stdout())["oracle_unsolved"], json!([]));
    job.rollout(&["export", "eval-log", "jobs/job", "-o", "log"]).expect(0);
    let episode = job.root().join("log/oracle/set/episodes/task__1/episode_record.json");
    assert_eq!(json(&std::fs::read_to_string(episode).unwrap())["success"], true);
    job.rollout(&["export", "eee", "jobs/job", "-o", "eee"]).expect(0);
    let samples = std::fs::read_dir(job.root().join("eee/data/set/unknown/oracle")).unwrap();
    let mut samples = samples.map(|file| file.unwrap().path());
    let samples = samples.find(|path| path.to_string_lossy().ends_with("_samples.jsonl")).unwrap();
    assert_eq!(json(&std::fs::read_to_string(samples).unwrap())["evaluation"]["is_correct"], true);
    job.rollout(&["view", "jobs/job", "--export", "report"]).expect(0);
    let solved = std::fs::read_to_string(job.root().join("report/jobs/job/trials-solved-1.html")).unwrap();
    assert!(solved.contains("task__1"), "{solved}");
}

#[test]
fn an_interaction_is_solved_from_one_half_on_in_the_table_and_in_metadata_json() {
    let server = ModelServer::scripted(|_| ModelReply::text("2"));
    let model = json!({"name": "policy", "base_url": server.url(), "max_retries": 0});
    let rubric = json!([{"match": "numeric", "weight": 0.7}]);
    let examples = json!([{"question": "What is 1+1?", "answer": "2"}]);
    let interaction = json!({"dataset": examples, "rubric": rubric});
    let job = job()
        .agent(json!({"name": "policy", "model": model}))
        .set("n_attempts", json!(2))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]));
    let finished = job.run().expect(0);
    insta::assert_snapshot!(row(&finished.stdout(), "policy"), @"policy sums 2 2 0 0 2 100.0% 0.7 —");
    let metadata: Value = serde_json::from_str(&finished.file("metadata.json")).unwrap();
    assert_eq!((&metadata["pass_threshold"], &metadata["pass_at_k"]["2"]), (&json!(0.5), &json!(1.0)));
    let points = &finished.result()["statistics"]["agents"]["policy"]["headline"]["pass_k"];
    assert_eq!(points[1]["at_k"], 1.0);
}

#[test]
fn an_agent_without_an_install_script_has_an_empty_setup_phase_and_times_have_one_width() {
    let finished = job().task(TestTask::new("task")).oracle().run().expect(0);
    let trial = finished.trial("oracle/set/task__1");
    assert_eq!(trial["durations"]["agent_setup_sec"], 0.0);
    let times = trial["timestamps"].as_object().unwrap();
    assert_eq!(times["agent_setup_started_at"], times["agent_setup_ended_at"]);
    assert!(times["agent_setup_started_at"].is_string());
    let result = finished.result();
    let of_job = [&result["started_at"], &result["ended_at"]];
    for time in times.values().chain(of_job).filter_map(Value::as_str) {
        assert_eq!(time.len(), "2026-01-15T10:30:00.000000Z".len(), "{time}");
    }
    assert_eq!(trial["agent_starts"], 1);
}

#[test]
fn the_source_and_all_metadata_of_a_task_are_recorded_and_exported() {
    let config = "version = \"1.0\"\nsource = \"https://example.org/tasks\"\n\
        [metadata]\nauthor = \"Ada\"\ncategory = \"files\"\n[metadata.review]\nlevel = 2\n";
    let job = job().task(TestTask::new("task").config(config)).oracle();
    let finished = job.run().expect(0);
    let metadata = json!({"author": "Ada", "category": "files", "review": {"level": 2}});
    let trial = finished.trial("oracle/set/task__1");
    assert_eq!(
        (&trial["task_source"], &trial["task_metadata"]),
        (&json!("https://example.org/tasks"), &metadata)
    );
    let about: Value = serde_json::from_str(finished.file("tasks.jsonl").lines().next().unwrap()).unwrap();
    assert_eq!((&about["source"], &about["metadata"]), (&json!("https://example.org/tasks"), &metadata));
    job.rollout(&["export", "csv", "jobs/job", "-o", "out"]).expect(0);
    let table = std::fs::read_to_string(job.root().join("out/trials.csv")).unwrap();
    assert!(table.contains("https://example.org/tasks") && table.contains("Ada"), "{table}");
}
