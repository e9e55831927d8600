//! The quality of tasks.

use rollout_testkit::{TestJob, TestTask};
use serde_json::{Value, json};

const DOCKERFILE: &str = "FROM test\nWORKDIR /app\n";

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout")).oracle()
}

fn check(job: &TestJob, arguments: &[&str], code: i32) -> Value {
    let arguments = [&["check", "job.yaml", "--attempts", "2", "--output", "json"], arguments].concat();
    serde_json::from_str(&job.rollout(&arguments).expect(code).stdout()).unwrap()
}

fn task<'a>(report: &'a Value, name: &str) -> &'a Value {
    let tasks = report["tasks"].as_array().unwrap();
    tasks.iter().find(|task| task["task"] == format!("set/{name}")).unwrap()
}

#[test]
fn a_good_task_passes_and_the_report_has_its_figures() {
    let job = job().task(TestTask::new("good").dockerfile("FROM test:1\nWORKDIR /app\n"));
    let report = check(&job, &[], 0);
    let good = task(&report, "good");
    assert_eq!((&good["passed"], &good["problems"]), (&json!(true), &json!([])), "{report:#}");
    assert_eq!([&good["oracle"]["passes"], &good["oracle"]["attempts"], &good["nop"]["passes"]], [2, 2, 0]);
    assert_eq!((&good["leaks"], &good["warnings"]), (&json!([]), &json!([])));
    assert!(good["build_sec"].as_f64().is_some() && good["tests_sec"].as_f64().is_some(), "{good:#}");
    assert!(good["size_bytes"].as_u64().unwrap() > 0);
    let again = job.rollout(&["check", report["job"].as_str().unwrap()]).expect(0).stdout();
    assert!(again.contains("1 task: all passed the check"), "{again}");
}

#[test]
fn bad_tasks_fail_with_the_reason() {
    let solution = "echo the answer is 42 > /app/done\n";
    let tests = "if [ -e /app/done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n";
    let job = job()
        .task(TestTask::new("wrong").solution("true\n"))
        .task(TestTask::new("free").tests("echo 1 > /logs/verifier/reward.txt\n"))
        .task(
            TestTask::new("leaky")
                .solution(solution)
                .tests(tests)
                .file("environment/answer.sh", solution)
                .file("environment/check.sh", tests)
                .dockerfile("FROM test\nWORKDIR /app\nCOPY answer.sh check.sh /app/\n"),
        );
    let report = check(&job, &[], 1);
    assert_eq!((&report["passed"], &report["failed"]), (&json!(0), &json!(3)), "{report:#}");
    assert_eq!(task(&report, "wrong")["problems"], json!(["the solution passes 0 of 2"]));
    assert_eq!(task(&report, "free")["problems"], json!(["doing nothing passes 2 of 2"]));
    assert_eq!(
        task(&report, "leaky")["problems"],
        json!([
            "agents can read solution/solve.sh, at /app/answer.sh",
            "agents can read tests/test.sh, at /app/check.sh",
        ])
    );
    let said = job.rollout(&["check", "job.yaml", "--attempts", "1"]).expect(1).stdout();
    assert!(said.contains("✗ set/free: doing nothing passes 1 of 1"), "{said}");
}

#[test]
fn warnings_fail_a_task_only_if_that_is_asked_for() {
    let job = job().task(TestTask::new("loose").dockerfile(DOCKERFILE).without("solution/solve.sh"));
    let report = check(&job, &[], 0);
    let warnings = &task(&report, "loose")["warnings"];
    assert_eq!(
        warnings,
        &json!(["it has no solution, so its tests were not checked", "FROM test has no version"])
    );
    check(&job, &["--strict"], 1);
}

#[test]
fn images_without_a_version_are_found_in_all_files_of_a_task() {
    let toml = "schema_version = \"1.1\"\n[environment]\ndocker_image = \"test\"\n";
    let compose = "services: {main: {build: {context: ./app}, environment: [A=b]}}\n";
    let job = job()
        .task(TestTask::new("named").config(toml).without("environment/Dockerfile"))
        .task(
            TestTask::new("composed")
                .config("schema_version = \"1.1\"\n")
                .without("environment/Dockerfile")
                .file("environment/app/Dockerfile", DOCKERFILE)
                .file("environment/docker-compose.yaml", compose)
                .file("tests/Dockerfile", "FROM judge:latest\n"),
        )
        .task(TestTask::new("pinned").dockerfile("FROM test:1\nWORKDIR /app\n").solution("true\n"));
    let report = check(&job, &[], 1);
    assert_eq!(task(&report, "named")["unpinned"], json!(["environment.docker_image test has no version"]));
    assert_eq!(
        task(&report, "composed")["unpinned"],
        json!([
            "tests/Dockerfile: FROM judge:latest has no version",
            "docker-compose.yaml, service main: FROM test has no version",
        ])
    );
    let sum = &report["datasets"][0];
    assert_eq!([&sum["dataset"], &sum["tasks"], &sum["unpinned"]], [&json!("set"), &json!(3), &json!(2)]);
    assert_eq!([&sum["flaky"], &sum["leaking"]], [&json!(0), &json!(0)]);
    assert!(sum["build_sec"].as_f64().unwrap() > 0.0, "{sum}");
    let said = job.rollout(&["check", report["job"].as_str().unwrap()]).expect(1).stdout();
    assert!(said.contains(" of 3 tasks passed, 0 flaky, 0 leaking, 2 unpinned, built in "), "{said}");
}

#[test]
fn the_environment_of_each_step_is_searched() {
    let toml = "schema_version = \"1.1\"\n[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n";
    let tests = "if [ -e /app/done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n";
    let in_steps = |name: &str| {
        ["one", "two"].iter().fold(
            TestTask::new(name)
                .config(toml)
                .dockerfile("FROM test:1\nWORKDIR /app\n")
                .without("instruction.md")
                .without("tests/test.sh"),
            |task, step| {
                task.file(&format!("steps/{step}/instruction.md"), "Create /app/done.\n")
                    .file(&format!("steps/{step}/tests/test.sh"), tests)
            },
        )
    };
    // The second step gets the tests as one of its files.
    let job = job().task(in_steps("clean")).task(in_steps("leaky").file("steps/two/workdir/check.sh", tests));
    let report = check(&job, &["--strict"], 1);
    assert_eq!(task(&report, "clean")["passed"], true, "{report:#}");
    let problems = task(&report, "leaky")["problems"].to_string();
    assert!(problems.contains("/tests/test.sh, at /app/check.sh"), "{report:#}");
}

#[test]
fn an_environment_that_could_not_be_searched_has_a_reason() {
    let toml = "schema_version = \"1.1\"\n[environment]\nskills_dir = \"/skills\"\n";
    let job = job().task(TestTask::new("skilled").config(toml).dockerfile("FROM test:1\nWORKDIR /app\n"));
    let report = check(&job, &[], 0);
    let warnings = task(&report, "skilled")["warnings"].to_string();
    assert!(
        warnings.contains("was not searched for tests and solutions: `environment.skills_dir` of task.toml"),
        "{warnings}"
    );
}

#[test]
fn a_path_without_tasks_is_refused() {
    let job = job().task(TestTask::new("good"));
    job.rollout(&["check", "nowhere"]).expect(2);
    job.run().expect(0);
    let refused = job.rollout(&["check", "set/good/tests"]).expect(2).stderr();
    assert!(!refused.is_empty());
}
