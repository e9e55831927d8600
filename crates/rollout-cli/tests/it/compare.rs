//! `rollout compare`, and the statistics of jobs of every kind, through the command.

use std::{fs, path::Path};

use rollout_testkit::{ModelReply, ModelServer, Python, TestJob, TestTask};
use serde_json::{Value, json};

/// Tasks `t1` to `t6`; an agent passes those that its script makes `/app/done` for, and fails where it exits non-zero.
fn job(execute: &str) -> TestJob {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "agent", "execute": execute}))
        .set("retry", json!({"max_attempts": 1}));
    (1..=6).fold(job, |job, number| {
        let difficulty = if number % 2 == 0 { "hard" } else { "easy" };
        let metadata =
            format!("version = \"1.0\"\n[metadata]\ncategory = \"files\"\ndifficulty = \"{difficulty}\"\n");
        let task = TestTask::new(&format!("t{number}")).config(&metadata);
        job.task(task.file("instruction.md", &format!("task {number}\n")))
    })
}

/// A script that is done with the tasks of these numbers.
fn solves(numbers: &str) -> String {
    format!("case $(tr -dc 0-9 < \"/tmp/instruction.md\") in {numbers}) touch /app/done ;; esac")
}

/// What was printed, without the ratio of times.
fn shown(text: &str) -> String {
    let line = |line: &str| match line.rfind('×') {
        Some(start) if line.ends_with(|c: char| c.is_ascii_digit()) => {
            format!("{}  [time]", line[..start].trim_end())
        }
        _ => line.strip_suffix(" time").map_or(line.to_owned(), |rest| format!("{}  time", rest.trim_end())),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn parsed(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn agents_of_a_job_are_compared_task_by_task() {
    let job = job(&solves("1|2|3"))
        .agent(json!({"name": "better", "execute": solves("2|3|4|5|6")}))
        .agent(json!({"name": "broken", "execute": format!("{}; grep -q 6 \"/tmp/instruction.md\" && exit 3; true", solves("1|2|3"))}));
    job.run().expect(1);
    let reported = job.rollout(&["compare", "jobs/job"]).expect(0);
    insta::assert_snapshot!(shown(&reported.stdout()), @"
            tasks  trials  failed  excluded  pass rate         95%  mean reward
    agent       6       6       0         0      50.0%  18.8–81.2%          0.5
    better      6       6       0         0      83.3%  43.6–97.0%        0.833
    broken      6       6       1         0      50.0%  18.8–81.2%          0.5

    against agent     tasks               mean reward      p                 pass rate      p  won  lost  McNemar p  cost  time
    better                6  +0.333 (-0.524 to +1.19)  1.000  +33.3% (-52.4 to +100.0)  1.000    3     1      1.000     —  [time]
    broken                6                0 (0 to 0)  1.000      +0.0% (+0.0 to +0.0)  1.000    0     0      1.000     —  [time]
      completed only      5                0 (0 to 0)  1.000      +0.0% (+0.0 to +0.0)  1.000    0     0      1.000
    differences are means over tasks, with 95% confidence intervals; p is from a permutation test, adjusted by Holm's method for 2 comparisons;
    a task is won if at least half of its attempts are solved, and fewer than half in the baseline

    only better solves 3 tasks
      set/t4
      set/t5
      set/t6

    only agent solves 1 task
      set/t1
    ");
    let two = [
        "compare", "jobs/job", "--agent", "better", "--agent", "agent", "--output", "json", "--svg", "a.svg",
    ];
    let reported: Value = serde_json::from_str(&job.rollout(&two).expect(0).stdout()).unwrap();
    assert_eq!(
        reported["sides"].as_array().unwrap().iter().map(|side| &side["name"]).collect::<Vec<_>>(),
        ["better", "agent"]
    );
    let contrast = &reported["contrasts"][0];
    assert_eq!((&contrast["baseline"], &contrast["tasks_in_both"]), (&json!("better"), &json!(6)));
    let excluded = &contrast["failed_excluded"];
    assert_eq!(excluded["mcnemar"], json!({"only_baseline": 3, "only_other": 1, "p": 0.625}));
    assert_eq!(excluded["mean_reward"]["exact"], true);
    assert_eq!(
        excluded["flipped"][0],
        json!({"dataset_name": "set", "task_name": "t1", "baseline_pass_rate": 0.0, "other_pass_rate": 1.0})
    );
    let missing = job.rollout(&["compare", "jobs/job", "--agent", "unknown"]).expect(2);
    insta::assert_snapshot!(missing.stderr(), @r#"error: no agent is named "unknown"; available agents: agent, better, broken"#);
    let alone = job.rollout(&["compare", "jobs/job", "--agent", "agent"]).expect(2);
    insta::assert_snapshot!(alone.stderr(), @"
    error: nothing to compare agent with
    hint: pass two job directories, or a job with two agents
    ");
    let again = job.rollout(&["compare", "jobs/job", "--svg", "a.svg"]).expect(2);
    insta::assert_snapshot!(again.stderr(), @"
    error: cannot write a.svg
    cause: File exists (os error 17)
    hint: choose another file, or remove this one
    ");
    let nowhere = job.rollout(&["compare", "jobs/job", "--svg", "absent/a.svg"]).expect(2);
    insta::assert_snapshot!(nowhere.stderr(), @"
    error: cannot write absent/a.svg
    cause: No such file or directory (os error 2)
    hint: create the directory first
    ");
}

#[test]
fn jobs_that_differ_in_more_than_their_agents_are_reported() {
    let job = job(&solves("1|2")).set("n_attempts", json!(2));
    job.run().expect(0);
    fs::rename(job.dir(), job.root().join("jobs/before")).unwrap();
    fs::write(job.root().join("set/t1/instruction.md"), "task 1, but harder\n").unwrap();
    fs::remove_dir_all(job.root().join("set/t6")).unwrap();
    let job = job.set("n_attempts", json!(1)).set("timeout_multiplier", json!(2.0));
    job.run().expect(0);
    let reported = job.rollout(&["compare", "jobs/before", "jobs/job"]).expect(0);
    insta::assert_snapshot!(shown(&reported.stdout()), @"
                       tasks  trials  failed  excluded  pass rate         95%  mean reward
    jobs/before/agent      6      12       0         0      33.3%  13.8–60.9%        0.333
    jobs/job/agent         5       5       0         0      40.0%  11.8–76.9%          0.4

    against jobs/before/agent  tasks  mean reward      p             pass rate      p  won  lost  McNemar p  cost  time
    jobs/job/agent                 5   0 (0 to 0)  1.000  +0.0% (+0.0 to +0.0)  1.000    0     0          —     —  [time]
    differences are means over tasks, with 95% confidence intervals; p is from a permutation test;
    a task is won if at least half of its attempts are solved, and fewer than half in the baseline

    only jobs/before/agent has 1 task
      set/t6

    warning: jobs/job/agent: attempts: 2 in jobs/before/agent, 1 in jobs/job/agent; McNemar's test is not computed
    warning: jobs/job/agent: timeout_multiplier: 1.0 in jobs/before/agent, 2.0 in jobs/job/agent
    warning: jobs/job/agent: the files of 1 of 5 tasks differ: set/t1
    ");
}

#[test]
fn a_job_that_is_not_finished_is_reported() {
    let job = job(&solves("1|2"))
        .agent(json!({"name": "other", "execute": solves("1|2|3")}))
        .set("n_attempts", json!(2))
        .set("n_concurrent_trials", json!(1));
    job.run().expect(0);
    let journal = job.dir().join("journal.jsonl");
    let text = fs::read_to_string(&journal).unwrap();
    let of_other = |line: &&str| line.contains("\"agent_name\":\"other\"");
    let kept = text.lines().filter(|line| !of_other(line) || line.contains("\"task_name\":\"t1\""));
    fs::write(&journal, kept.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let reported = job.rollout(&["compare", "jobs/job"]).expect(0).stdout();
    assert!(reported.contains("warning: other: 10 of 12 trials of other have no result"), "{reported}");
    let reported = job.rollout(&["compare", "jobs/job", "--output", "json"]).expect(0).stdout();
    let side = &serde_json::from_str::<Value>(&reported).unwrap()["sides"][1];
    assert_eq!(
        (&side["tasks"], &side["trials"], &side["completed"], &side["skipped"]),
        (&json!(6), &json!(12), &json!(2), &json!(10))
    );
    let kept = text.lines().filter(|line| !of_other(line));
    fs::write(&journal, kept.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let nothing = job.rollout(&["compare", "jobs/job", "--svg", "no.svg"]).expect(2);
    insta::assert_snapshot!(nothing.stderr(), @"
    error: agent and other have no finished task in common
    hint: tasks are the same if their dataset and name are; set `name` of a dataset in the job file to match them
    ");
    assert!(!job.root().join("no.svg").exists());
    let absent = job.rollout(&["compare", "jobs/absent"]).expect(2);
    assert!(
        absent.stderr().contains("hint: pass directories that `rollout run` printed"),
        "{}",
        absent.stderr()
    );
}

#[test]
fn a_picture_is_valid_and_holds_any_name() {
    let job = job(&solves("1|2|3")).agent(json!({"name": "other", "execute": solves("4")}));
    job.run().expect(0);
    let name = "<b>&\"'\u{202e}";
    let journal = job.dir().join("journal.jsonl");
    let text = fs::read_to_string(&journal).unwrap();
    let hostile = text.replacen("\"job_name\":\"job\"", &format!("\"job_name\":{}", json!(name)), 1);
    assert_ne!(text, hostile);
    job.rollout(&["compare", "jobs/job", "--svg", "plain.svg"]).expect(0);
    fs::create_dir_all(job.root().join("jobs/copy")).unwrap();
    fs::write(job.root().join("jobs/copy/journal.jsonl"), hostile).unwrap();
    job.rollout(&["compare", "jobs/job", "jobs/copy", "--agent", "other", "--svg", "hostile.svg"]).expect(0);
    for (file, expected) in [("plain.svg", "agent"), ("hostile.svg", name)] {
        let script = "import sys, json, xml.etree.ElementTree as tree\n\
            root = tree.parse(sys.stdin).getroot()\n\
            print(json.dumps([root.tag, [text.text for text in root.iter() if text.tag.endswith('text')]]))";
        let output = Python::new().run(script, &fs::read_to_string(job.root().join(file)).unwrap());
        let (tag, texts): (String, Vec<String>) = serde_json::from_str(&output).unwrap();
        assert_eq!(tag, "{http://www.w3.org/2000/svg}svg");
        assert!(texts.iter().any(|text| text.contains(expected)), "{texts:?}");
    }
}

#[test]
fn a_job_of_tasks_has_statistics_by_agent_dataset_category_difficulty_and_task() {
    let job = job(&format!("{}; grep -q 6 \"/tmp/instruction.md\" && exit 3; true", solves("1|2|3")))
        .set("n_attempts", json!(2));
    job.run().expect(1);
    let result = parsed(&job.dir().join("result.json"));
    let keys: Vec<_> = result.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys[keys.len() - 2..], ["statistics", "results"]);
    let agent = &result["statistics"]["agents"]["agent"];
    assert_eq!(
        (&agent["trials"], &agent["completed"], &agent["failed"]),
        (&json!(12), &json!(10), &json!(2))
    );
    assert_eq!(
        (&agent["failed_excluded"]["pass_rate"]["rate"], &result["pass_rate"]),
        (&json!(0.6), &json!(0.6))
    );
    assert_eq!(agent["failed_excluded"]["mean_reward"]["mean"], result["mean_reward"]);
    assert_eq!(agent["headline"]["pass_rate"]["rate"], 0.5);
    assert_eq!(agent["failed_excluded"]["pass_k"][1], json!({"k": 2, "tasks": 5, "at_k": 0.6, "all_k": 0.6}));
    assert_eq!(agent["duration_sec"]["n"], 12);
    assert_eq!(agent["cost_usd"], Value::Null);
    assert_eq!(agent["categories"]["files"]["trials"], 12);
    assert_eq!(agent["difficulties"]["hard"]["failed_excluded"]["pass_rate"]["rate"], 0.5);
    assert_eq!(agent["datasets"]["set"], agent["categories"]["files"]);
    assert_eq!(
        (&agent["by_task"][5]["task_name"], &agent["by_task"][5]["failed"]),
        (&json!("t6"), &json!(2))
    );
}

#[test]
fn rollouts_of_a_model_have_statistics_with_their_costs() {
    let server = ModelServer::sequence([
        ModelReply::text("2"),
        ModelReply::text("3"),
        ModelReply::text("4"),
        ModelReply::text("4"),
    ]);
    let rows = json!([
        {"question": "What is 1+1?", "answer": "2", "info": {"category": "one", "difficulty": 3}},
        {"question": "What is 2+2?", "answer": "4", "info": {"category": "two"}},
    ]);
    let prices = json!({"input": 1_000_000.0, "output": 0.0});
    let model = json!({"name": "policy", "base_url": server.url(), "max_retries": 0, "prices": prices});
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .agent(json!({"name": "policy", "model": model}))
        .set("n_attempts", json!(2))
        .set("n_concurrent_trials", json!(1))
        .set(
            "datasets",
            json!([{"name": "sums", "interaction": {"dataset": rows, "rubric": [{"match": "numeric"}]}}]),
        );
    job.run().expect(0);
    let agent = &parsed(&job.dir().join("result.json"))["statistics"]["agents"]["policy"];
    assert_eq!(agent["failed_excluded"]["pass_k"][1], json!({"k": 2, "tasks": 2, "at_k": 1.0, "all_k": 0.5}));
    assert_eq!(agent["categories"]["one"]["failed_excluded"]["pass_rate"]["rate"], 0.5);
    assert_eq!(agent["difficulties"], Value::Null, "a number is no name");
    assert_eq!(agent["cost_usd"]["n"], 4);
}

#[test]
fn a_benchmark_has_statistics_and_questions_without_an_answer_do_not_count() {
    let server = ModelServer::arithmetic();
    let lines = [
        json!({"id": "a", "question": "1+1", "answer": "2", "category": "sums"}),
        json!({"id": "b", "question": "1+2", "answer": "7", "category": "sums"}),
        json!({"id": "c", "question": "1+3"}),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let config = json!({"data_path": "q.jsonl", "output_dir": "jobs/job", "base_url": server.url(), "model_name": "m"});
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .file("q.jsonl", &lines)
        .file("config.json", &config.to_string());
    job.rollout(&["eval", "config.json"]).expect(0);
    let agent = &parsed(&job.dir().join("result.json"))["statistics"]["agents"]["m"];
    assert_eq!((&agent["completed"], &agent["unscored"]), (&json!(3), &json!(1)));
    assert_eq!(agent["failed_excluded"]["pass_rate"]["rate"], 0.5);
    assert_eq!(agent["categories"]["sums"]["trials"], 2);
}
