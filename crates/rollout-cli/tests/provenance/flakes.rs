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

/// A task whose tests give each attempt the next of these rewards, and 0 to whoever did nothing.
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
    let told = report(&job, &["job.yaml", "--attempts", "3"], 1);
    assert_eq!(told["tasks"], 4);
    let flaky = &told["oracle_fails"];
    assert_eq!(flaky.as_array().unwrap().len(), 1, "{told:#}");
    assert_eq!(
        (&flaky[0]["task"], &flaky[0]["passes"], &flaky[0]["attempts"]),
        (&json!("set/flaky"), &json!(2), &json!(3))
    );
    let evidence = &flaky[0]["trials"][0];
    assert!(evidence["directory"].as_str().unwrap().ends_with("oracle/set/flaky__2"), "{told:#}");
    assert_eq!((&evidence["reward"], &evidence["output"]), (&json!(0.0), &json!(["the tests say 0"])));
    let free = &told["nop_passes"];
    assert_eq!(
        (free.as_array().unwrap().len(), &free[0]["task"], &free[0]["passes"]),
        (1, &json!("set/free"), &json!(3))
    );
    assert_eq!(told["without_solution"], json!(["set/unsolved"]));
    // Wilson's lower bound of 3 of 3.
    let bound = told["pass_rate_at_least"].as_f64().unwrap();
    assert!((bound - 0.438_503).abs() < 1e-6, "{bound}");

    let dir = told["job"].as_str().unwrap();
    assert!(dir.starts_with("jobs/flakes-"), "{dir}");
    assert_eq!(report(&job, &[dir], 1), told, "the directory tells the same again");
    job.rollout(&["resume", dir]).expect(1);
    let shown = job.rollout(&["flakes", dir]).expect(1).stdout();
    let shown = shown.replace(dir, "[dir]");
    insta::assert_snapshot!(shown, @"
    tasks whose oracle does not always pass
      ✗ set/flaky: passed 2 of 3, so 20.8% to 93.9% of the time
        [dir]/oracle/set/flaky__2 (reward 0)
          the tests say 0

    tasks that reward doing nothing
      ✗ set/free: passed 3 of 3, so 43.9% to 100.0% of the time
        [dir]/nop/set/free__1 (reward 1)
        [dir]/nop/set/free__2 (reward 1)
        [dir]/nop/set/free__3 (reward 1)

    tasks without a solution, which the oracle cannot attempt
      – set/unsolved

    ✗ 4 tasks: 1 whose oracle does not always pass, 1 that nop passes
    a task that passes 3 of 3 passes at least 43.9% of the time (at 95.0% confidence); more attempts show more
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

#[test]
fn errors_of_the_oracle_are_counted_by_type() {
    let job = job().task(TestTask::new("broken").solution("echo no such tool >&2; exit 3\n"));
    let told = report(&job, &["job.yaml", "--attempts", "2"], 1);
    let found = &told["oracle_fails"][0];
    assert_eq!(found["errors"], json!({"agent_execution_failed": 2}));
    assert_eq!(found["trials"].as_array().unwrap().len(), 2);
}

#[test]
fn a_directory_of_tasks_needs_no_job_file() {
    let job = job().task(TestTask::new("task"));
    // Nothing says what the image of the test is, so that no trial comes to an environment.
    let told = report(&job, &["set", "--attempts", "1"], 2);
    assert_eq!((&told["nothing_ran"], &told["tasks"]), (&json!(true), &json!(1)), "{told:#}");
    assert_eq!(told["oracle_fails"][0]["errors"], json!({"environment_build_failed": 1}));
}

#[test]
fn what_has_no_oracle_is_refused() {
    let job = job().task(TestTask::new("task")).script("touch /app/done");
    job.run().expect(0);
    let refused = job.rollout(&["flakes", "jobs/job"]).expect(2);
    assert!(refused.stderr().contains("no finished trial of the oracle or of nop"), "{}", refused.stderr());
    let refused = job.rollout(&["flakes", "absent.yaml"]).expect(2);
    assert!(refused.stderr().contains("absent.yaml"), "{}", refused.stderr());
    fs::remove_dir_all(job.dir()).unwrap();
}
