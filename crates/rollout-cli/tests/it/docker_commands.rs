//! The commands beside `run` on a Docker engine: doctor, clean, shell and attach.

use rollout_testkit::{Gate, OwnEngine, TestEngine, TestJob, TestTask};
use serde_json::json;

use crate::screen::typed;

const MISSING: &str = "unix:///nonexistent/engine.sock";

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

/// The lines of `clean` about the engine, without sizes, below the line with its name.
#[track_caller]
fn cleaned(job: &TestJob, flags: &[&str]) -> String {
    let mut arguments = vec!["clean"];
    arguments.extend(flags);
    let said = job.rollout(&arguments).expect(0).stdout();
    let (_, engine) = said.split_once("\n\n").unwrap();
    let lines = engine.lines().skip(1).map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let unit = |at: usize| words.get(at).is_some_and(|word| ["B", "KiB", "MiB", "GiB"].contains(word));
        let sizeless = (0..words.len()).filter(|at| !unit(*at) && !unit(at + 1)).map(|at| words[at]);
        sizeless.collect::<Vec<_>>().join(" ").replace(" up to", "")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn doctor_describes_the_engine_and_reports_that_jobs_use_it() {
    for (engine, name) in [(TestEngine::shared(), "docker 20"), (TestEngine::podman(), "podman 4")] {
        let said = job().env("DOCKER_HOST", engine.host()).rollout(&["doctor"]).expect(0).stdout();
        let at = format!(", at {}", engine.host());
        for part in [name, ", API 1.", &at, "storage driver ", ", cgroup v", " of memory", " free in "] {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
        assert!(said.contains("without `environment.type` run on docker"), "{said}");
    }
}

#[test]
fn doctor_lists_where_it_searched_for_an_engine_and_fails_only_if_nothing_works() {
    let doctor = |variables: &[(&str, &str)], code| {
        let job = variables.iter().fold(job(), |job, (key, value)| job.env(key, value));
        job.rollout(&["doctor"]).expect(code).stdout()
    };
    let said = doctor(&[], 0);
    assert!(said.contains("– docker  no Docker engine answers"), "{said}");
    assert!(said.contains("unix:///run/podman/podman.sock: there is no such socket"), "{said}");
    assert!(said.contains("without `environment.type` run on native"), "{said}");
    let said = doctor(&[("DOCKER_HOST", MISSING)], 0);
    assert!(said.contains("! docker  no Docker engine answers") && said.contains(MISSING), "{said}");
    // Native environments need a directory to keep their files in.
    let broken = ("ROLLOUT_STATE_DIR", "/proc/nowhere");
    let shared = TestEngine::shared();
    let said = doctor(&[broken, ("DOCKER_HOST", shared.host())], 0);
    assert!(said.contains("✗ native") && said.contains("run on docker"), "{said}");
    let said = doctor(&[broken, ("DOCKER_HOST", MISSING)], 2);
    assert!(said.contains("neither native nor docker works"), "{said}");
}

#[test]
fn clean_ignores_an_engine_that_is_not_configured_and_warns_of_one_that_does_not_answer() {
    let silent = job().rollout(&["clean"]).expect(0);
    assert!(!silent.stdout().contains("\n\n") && silent.stderr().is_empty(), "{}", silent.stderr());
    let warned = job().env("DOCKER_HOST", MISSING).rollout(&["clean"]).expect(0);
    assert!(warned.stdout().contains("ended runs"), "{}", warned.stdout());
    assert_eq!(
        warned.stderr(),
        format!("warning: no Docker engine answers\n  {MISSING}: there is no such socket\n")
    );
}

#[test]
fn clean_removes_what_a_killed_job_left_and_nothing_of_one_that_runs_or_of_others() {
    let own = OwnEngine::start();
    let engine = own.engine();
    engine.docker(&["create", "--name", "unrelated", "test", "true"]);
    let start = |task| {
        let gate = Gate::new();
        // A script ends if the gate does not exist.
        let script = format!("({}) || true\ntouch /app/done", gate.wait());
        let job = job().on(engine).task(TestTask::new(task)).script(&script);
        let running = job.start();
        let arrival = gate.arrival();
        (job, running, arrival)
    };
    let (_killed_job, killed, _waiting) = start("killed");
    let (job, running, arrival) = start("running");
    killed.signal("-KILL");
    killed.finish();
    insta::assert_snapshot!(cleaned(&job, &["--dry-run"]), @"
    to remove 1 container of ended runs
    kept 1 container of running jobs
    kept 0 preserved containers
    kept 1 built image remove with --images
    kept 0 environment images
    kept 1 environment image in use
    kept 0 agent snapshots
    kept build cache, shared with other builds remove with --cache
    ");
    assert!(engine.containers().iter().any(|name| name.contains("killed")));
    insta::assert_snapshot!(cleaned(&job, &[]), @"
    removed 1 container of ended runs
    kept 1 container of running jobs
    kept 0 preserved containers
    kept 1 built image remove with --images
    kept 0 environment images
    kept 1 environment image in use
    kept 0 agent snapshots
    kept build cache, shared with other builds remove with --cache
    ");
    let left = engine.containers();
    assert!(left.len() == 2 && left.contains("unrelated"), "{left:?}");
    arrival.pass();
    running.finish().expect(0);
    engine.expect_no_container("running");
}

#[test]
fn images_of_rollout_go_by_their_flag_and_those_of_others_stay() {
    let own = OwnEngine::start();
    let engine = own.engine();
    let before = engine.images();
    let task = TestTask::new("task")
        .dockerfile("FROM test\nWORKDIR /app\nCOPY content /content\n")
        .file("environment/content", "copied by the build\n");
    let job = job()
        .on(engine)
        .task(task)
        .agent(json!({"name": "agent", "install": "touch /installed", "execute": "touch /app/done"}))
        .set("environment/cache_agent_install", json!(true))
        .set("environment/preserve_env", json!("always"));
    job.run().expect(0);
    let made = engine.images();
    insta::assert_snapshot!(cleaned(&job, &[]), @"
    removed 0 containers of ended runs
    kept 0 containers of running jobs
    kept 1 preserved container remove with --preserved
    kept 1 built image remove with --images
    kept 0 environment images
    kept 1 environment image in use
    kept 1 agent snapshot remove with --images
    kept build cache, shared with other builds remove with --cache
    ");
    insta::assert_snapshot!(cleaned(&job, &["--images", "--cache", "--dry-run"]), @"
    to remove 0 containers of ended runs
    kept 0 containers of running jobs
    kept 1 preserved container remove with --preserved
    to remove 1 built image
    to remove 0 environment images
    kept 1 environment image in use
    to remove 1 agent snapshot
    to remove build cache, shared with other builds
    ");
    assert_eq!(engine.images(), made);
    insta::assert_snapshot!(cleaned(&job, &["--images"]), @"
    removed 0 containers of ended runs
    kept 0 containers of running jobs
    kept 1 preserved container remove with --preserved
    removed 1 built image
    removed 0 environment images
    kept 1 environment image in use
    removed 1 agent snapshot
    kept build cache, shared with other builds remove with --cache
    ");
    assert!(engine.containers().iter().any(|name| name.starts_with("rollout-kept-")));
    insta::assert_snapshot!(cleaned(&job, &["--images", "--preserved", "--dry-run"]), @"
    to remove 0 containers of ended runs
    kept 0 containers of running jobs
    to remove 1 preserved container
    to remove 0 built images
    to remove 1 environment image
    to remove 0 agent snapshots
    kept build cache, shared with other builds remove with --cache
    ");
    insta::assert_snapshot!(cleaned(&job, &["--images", "--cache", "--preserved"]), @"
    removed 0 containers of ended runs
    kept 0 containers of running jobs
    removed 1 preserved container
    removed 0 built images
    removed 1 environment image
    removed 0 agent snapshots
    removed build cache, shared with other builds
    ");
    assert_eq!(engine.images(), before);
    assert_eq!(engine.containers().len(), 0);
    assert_eq!(engine.docker(&["builder", "prune", "--all", "--force"]), "Total reclaimed space: 0B");
    job.rollout(&["run", "job.yaml", "--set", "name=again"]).expect(0);
}

#[test]
fn an_image_that_goes_while_a_job_runs_is_made_again_when_it_is_wanted() {
    let own = OwnEngine::start();
    let engine = own.engine();
    let gate = Gate::new();
    let task = |name| TestTask::new(name).dockerfile(&format!("FROM test\nWORKDIR /app\nENV TASK={name}\n"));
    let wait = format!("if [ $TASK = b ]; then\n{}\nfi\ntouch /app/done", gate.wait());
    let job = job()
        .on(engine)
        .task(task("a"))
        .task(task("b"))
        .script(&wait)
        .oracle()
        .set("n_concurrent_trials", json!(1));
    let running = job.start();
    let arrival = gate.arrival();
    insta::assert_snapshot!(cleaned(&job, &["--images"]), @"
    removed 0 containers of ended runs
    kept 1 container of running jobs
    kept 0 preserved containers
    removed 2 built images
    removed 1 environment image
    kept 1 environment image in use
    removed 0 agent snapshots
    kept build cache, shared with other builds remove with --cache
    ");
    arrival.pass();
    let finished = running.finish().expect(0);
    assert_eq!(finished.result()["completed_trials"], 4);
    assert_eq!(finished.trial("oracle/set/a__1")["tries"], 2);
}

#[test]
fn podman_is_cleaned_alike() {
    let engine = TestEngine::podman();
    let job = job()
        .on(&engine)
        .task(TestTask::new("cleaned-on-podman"))
        .oracle()
        .set("environment/preserve_env", json!("always"));
    job.run().expect(0);
    let said = job.rollout(&["clean", "--dry-run"]).expect(0).stdout();
    assert!(said.contains("\npodman 4") && !said.contains("build cache"), "{said}");
    assert!(said.contains("preserved container") && said.contains("remove with --preserved"), "{said}");
    let kept = engine.containers().into_iter().find(|name| name.contains("cleaned-on-podman")).unwrap();
    engine.docker(&["rm", "--force", &kept]);
}

#[test]
fn a_shell_opens_on_an_engine_that_answers_or_where_the_option_says() {
    let engine = TestEngine::shared();
    let job = job().env("DOCKER_HOST", engine.host()).env("TERM", "xterm").task(TestTask::new("shelled"));
    let shell = |arguments: &[&str], keys: &str| {
        let mut all = vec!["shell", "set/shelled"];
        all.extend(arguments);
        typed(job.command(&all), keys)
    };
    let keys = "pwd; cat $ROLLOUT_TASK_INSTRUCTION; ls -d /tests; ls /.rollout; exit\r";
    let seen = shell(&[], keys);
    for part in ["shelled on docker 20", "/app\r\n", "Create the file", "'/tests': No such file", "guest\r\n"]
    {
        assert!(seen.contains(part), "{part:?} is not in {seen}");
    }
    let seen = shell(&["--environment", "docker", "--with-tests"], "ls /tests; exit\r");
    assert!(seen.contains("test.sh\r\n"), "{seen}");
    let seen = shell(&["--environment", "native"], "ls /.rollout; exit\r");
    assert!(seen.contains("shelled on native") && seen.contains("'/.rollout': No such file"), "{seen}");
    engine.expect_no_container("shelled");
}

#[test]
fn attach_opens_the_container_that_a_trial_left_also_after_it_was_stopped() {
    let engine = TestEngine::shared();
    let job = job()
        .on(&engine)
        .env("TERM", "xterm")
        .task(
            TestTask::new("attached")
                .dockerfile("FROM test\nWORKDIR /app\nRUN chown nobody .\nUSER nobody\n"),
        )
        .oracle()
        .set("environment/preserve_env", json!("always"));
    let finished = job.run().expect(0);
    let trial = finished.trial("oracle/set/attached__1");
    let container = trial["environment"]["preserved"].as_str().unwrap();
    let said = finished.stdout();
    assert!(said.contains("rollout attach jobs/job/oracle/set/attached__1"), "{said}");
    assert!(said.contains(&format!("docker exec -it {container} bash")), "{said}");

    let attach = || job.command(&["attach", "jobs/job/oracle/set/attached__1"]);
    let seen = typed(attach(), "id -un; ls; echo more > more.txt; exit\r");
    assert!(seen.contains("nobody\r\n") && seen.contains("done\r\n"), "{seen}");
    engine.docker(&["stop", "--time", "1", container]);
    let seen = typed(attach(), "cat more.txt; exit\r");
    assert!(seen.contains("more\r\n"), "{seen}");

    engine.docker(&["rm", "--force", container]);
    let output = attach().output().unwrap();
    assert_eq!(output.status.code(), Some(2), "what was removed cannot be opened");
}
