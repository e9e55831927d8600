//! `rollout flakes`.

use std::{
    fs,
    io::Write as _,
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rollout_testkit::{TestJob, TestTask};
use serde_json::{Value, json};

use super::job;

/// A task whose tests give each attempt the next of these rewards, and 0 to an agent that did nothing.
fn changeable(name: &str, rewards: &'static [&str]) -> TestTask {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = Arc::new(AtomicUsize::new(0));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let next = rewards[served.fetch_add(1, Ordering::Relaxed) % rewards.len()];
            let _ = writeln!(&stream, "{next}");
        }
    });
    TestTask::new(name).tests(&format!(
        "[ -e /app/done ] || {{ echo 0 > /logs/verifier/reward.txt; exit 0; }}
         exec 3<>/dev/tcp/127.0.0.1/{port}; read -r reward <&3
         echo \"the tests say $reward\"; echo $reward > /logs/verifier/reward.txt\n"
    ))
}

fn report(job: &TestJob, arguments: &[&str], code: i32) -> Value {
    let arguments = [&["flakes"], arguments, &["--output", "json"]].concat();
    serde_json::from_str(&job.rollout(&arguments).expect(code).stdout()).unwrap()
}

#[test]
fn flaky_tasks_and_tasks_that_reward_nothing_are_listed_with_their_evidence() {
    let job = job()
        .task(TestTask::new("good"))
        .task(changeable("flaky", &["1", "0", "1"]))
        .task(TestTask::new("free").tests("echo 1 > /logs/verifier/reward.txt\n"))
        .task(TestTask::new("unsolved").without("solution/solve.sh"))
        .script("this agent is not run")
        .set("n_concurrent_trials", json!(1));
    let reported = report(&job, &["job.yaml", "--attempts", "3"], 1);
    assert_eq!(reported["tasks"], 4);
    let flaky = &reported["oracle_unsolved"];
    assert_eq!(flaky.as_array().unwrap().len(), 1, "{reported:#}");
    assert_eq!(
        (&flaky[0]["task"], &flaky[0]["passes"], &flaky[0]["attempts"]),
        (&json!("set/flaky"), &json!(2), &json!(3))
    );
    let evidence = &flaky[0]["trials"][0];
    assert!(evidence["directory"].as_str().unwrap().ends_with("oracle/set/flaky__2"), "{reported:#}");
    assert_eq!((&evidence["reward"], &evidence["output"]), (&json!(0.0), &json!(["the tests say 0"])));
    let free = &reported["nop_passes"];
    assert_eq!(
        (free.as_array().unwrap().len(), &free[0]["task"], &free[0]["passes"]),
        (1, &json!("set/free"), &json!(3))
    );
    assert_eq!(reported["without_solution"], json!(["set/unsolved"]));
    // Wilson's lower bound of 3 of 3.
    let bound = reported["pass_rate_at_least"].as_f64().unwrap();
    assert!((bound - 0.438_503).abs() < 1e-6, "{bound}");

    let dir = reported["job"].as_str().unwrap();
    assert!(dir.starts_with("jobs/flakes-"), "{dir}");
    assert_eq!(report(&job, &[dir], 1), reported, "the directory tells the same again");
    job.rollout(&["resume", dir]).expect(1);
    let shown = job.rollout(&["flakes", dir]).expect(1).stdout();
    let shown = shown.replace(dir, "[dir]");
    insta::assert_snapshot!(shown, @"
    tasks that the oracle does not always pass
      ✗ set/flaky: passed 2 of 3, pass rate 20.8% to 93.9%
        [dir]/oracle/set/flaky__2 (reward 0)
          the tests say 0

    tasks that the nop agent passes
      ✗ set/free: passed 3 of 3, pass rate 43.9% to 100.0%
        [dir]/nop/set/free__1 (reward 1)
        [dir]/nop/set/free__2 (reward 1)
        [dir]/nop/set/free__3 (reward 1)

    tasks without a solution, not tested with the oracle
      – set/unsolved

    ✗ 4 tasks: 1 not always passed by the oracle, 1 passed by nop
    a task that passes 3 of 3 passes at least 43.9% of the time (at 95.0% confidence); more attempts give a better bound
    results: [dir]
    ");
}

#[test]
fn tasks_that_always_go_as_they_should_are_good() {
    let job =
        job().task(TestTask::new("a")).task(TestTask::new("b")).set("verifier", json!({"disable": true}));
    let fine = job.rollout(&["flakes", "job.yaml", "--attempts", "2"]).expect(0);
    assert!(fine.stdout().contains("✓ 2 tasks: no flakes"), "{}", fine.stdout());
    assert!(
        fine.stdout().contains("a task that passes 2 of 2 passes at least 34.2% of the time"),
        "{}",
        fine.stdout()
    );
}

/// Leaves only the first trials in the journal of a job, as if the run had been killed after them.
fn cut_short(job: &TestJob, trials: usize) {
    let journal = job.dir().join("journal.jsonl");
    let text = fs::read_to_string(&journal).unwrap();
    let mut left = trials + 1;
    let kept = text.lines().filter(|line| {
        let is_trial = line.contains("\"reward\":");
        left = left.saturating_sub(usize::from(is_trial));
        !is_trial || left > 0
    });
    let kept: String = kept.map(|line| format!("{line}\n")).collect();
    assert_ne!(kept, text);
    fs::write(&journal, kept).unwrap();
}

#[test]
fn tasks_are_not_called_good_before_every_trial_has_a_result() {
    let job = job()
        .task(TestTask::new("a"))
        .task(TestTask::new("b"))
        .oracle()
        .agent(json!({"name": "nop"}))
        .set("n_concurrent_trials", json!(1))
        .set("n_attempts", json!(2));
    job.run().expect(0);
    assert!(job.rollout(&["flakes", "jobs/job"]).expect(0).stdout().contains("✓ 2 tasks: no flakes\n"));
    cut_short(&job, 2);
    let reported = report(&job, &["jobs/job"], 1);
    assert_eq!((&reported["tasks"], &reported["unfinished_trials"]), (&json!(2), &json!(6)), "{reported:#}");
    let shown = job.rollout(&["flakes", "jobs/job"]).expect(1).stdout();
    insta::assert_snapshot!(shown, @"
    – 2 tasks: no flakes so far
    a task that passes 2 of 2 passes at least 34.2% of the time (at 95.0% confidence); more attempts give a better bound
    nop attempted no task, so rewards for doing nothing were not checked
    6 trials without a result: `rollout resume jobs/job` runs them
    results: jobs/job
    ");
}

#[test]
fn an_agent_that_attempted_nothing_is_reported() {
    let job = job().task(TestTask::new("task")).oracle();
    job.run().expect(0);
    let reported = report(&job, &["jobs/job"], 0);
    assert_eq!((&reported["oracle_attempts"], &reported["nop_attempts"]), (&json!(1), &Value::Null));
    let shown = job.rollout(&["flakes", "jobs/job"]).expect(0).stdout();
    assert!(shown.starts_with("– 1 task: no flakes so far\n"), "{shown}");
    assert!(shown.contains("nop attempted no task"), "{shown}");
}

#[test]
fn a_reward_above_one_is_a_pass_here_as_elsewhere() {
    let job = job()
        .task(TestTask::new("task").tests("echo 1.5 > /logs/verifier/reward.txt\n"))
        .oracle()
        .agent(json!({"name": "nop"}));
    job.run().expect(0);
    let reported = report(&job, &["jobs/job"], 1);
    assert_eq!((&reported["oracle_unsolved"], &reported["nop_passes"][0]["passes"]), (&json!([]), &json!(1)));
    let compared = job.rollout(&["compare", "jobs/job", "--output", "json"]).expect(0);
    let compared: Value = serde_json::from_str(&compared.stdout()).unwrap();
    assert_eq!(compared["sides"][1]["headline"]["solved"], 1);
}

#[test]
fn errors_of_the_oracle_are_counted_by_type() {
    let job = job().task(TestTask::new("broken").solution("echo no such tool >&2; exit 3\n"));
    let reported = report(&job, &["job.yaml", "--attempts", "2"], 1);
    let found = &reported["oracle_unsolved"][0];
    assert_eq!(found["errors"], json!({"agent_execution_failed": 2}));
    assert_eq!(found["trials"].as_array().unwrap().len(), 2);
}

#[test]
fn a_directory_of_tasks_needs_no_job_file() {
    // Nothing listens on this port, so that no trial comes to an environment.
    let job = job().task(TestTask::new("task").dockerfile("FROM 127.0.0.1:1/absent\n"));
    let reported = report(&job, &["set", "--attempts", "1"], 2);
    assert_eq!((&reported["nothing_ran"], &reported["tasks"]), (&json!(true), &json!(1)), "{reported:#}");
    assert_eq!(reported["oracle_unsolved"][0]["errors"], json!({"environment_build_failed": 1}));
}

#[test]
fn what_has_no_oracle_is_refused() {
    let job = job().task(TestTask::new("task")).script("touch /app/done");
    job.run().expect(0);
    let refused = job.rollout(&["flakes", "jobs/job"]).expect(2);
    assert!(
        refused.stderr().contains("no finished trial of the oracle or nop agent"),
        "{}",
        refused.stderr()
    );
    let refused = job.rollout(&["flakes", "absent.yaml"]).expect(2);
    assert!(refused.stderr().contains("absent.yaml does not exist"), "{}", refused.stderr());
    fs::remove_dir_all(job.dir()).unwrap();
}
