//! `rollout clean`: what goes, what stays, and what it says about both.

use std::{fs, path::Path, process::Command};

use rollout_testkit::{Gate, TestJob, TestRepo, TestTask};
use serde_json::{Value, json};

const AGENT: &str = "cat /proc/sys/kernel/random/uuid > /opt/agent\n";

/// A job that finds no engine. Tests must not use an engine of the developer.
fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout")).env("DOCKER_HOST", "unix:///nonexistent/engine.sock")
}

/// A task whose image has a layer of its own.
fn layered(name: &str) -> TestTask {
    TestTask::new(name).dockerfile(&format!("FROM test\nWORKDIR /app\nRUN echo {name} > /name\n"))
}

#[cfg(not(feature = "remote"))]
#[test]
fn a_build_without_cloud_providers_says_so_if_clouds_are_to_be_cleaned() {
    let cleaned = job().rollout(&["clean", "--all-providers"]).expect(1);
    let said = cleaned.stderr();
    assert!(said.contains("this build has no cloud providers"), "{said}");
    assert!(said.contains("`--features daytona,e2b,fly,modal`"), "{said}");
    job().rollout(&["clean"]).expect(0);
}

/// What clean says, without sizes: file systems differ in what a directory takes.
#[track_caller]
fn cleaned(job: &TestJob, flags: &[&str]) -> String {
    let mut arguments = vec!["clean"];
    arguments.extend(flags);
    let output = job.command(&arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().skip(1).map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let unit = |at: usize| words.get(at).is_some_and(|word| ["B", "KiB", "MiB", "GiB"].contains(word));
        let sizeless = (0..words.len()).filter(|at| !unit(*at) && !unit(at + 1)).map(|at| words[at]);
        sizeless.collect::<Vec<_>>().join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// How many entries a directory of the state directory has.
fn entries(job: &TestJob, dir: &str) -> usize {
    fs::read_dir(job.state_dir().join(dir)).map_or(0, Iterator::count)
}

#[test]
fn ended_runs_go_by_themselves_and_preserved_environments_by_their_flag() {
    let job = job();
    let state = job.state_dir();
    for place in ["run/ended", "run/running", "preserved/kept"] {
        fs::create_dir_all(state.join(place)).unwrap();
    }
    for lock in ["run/ended/lock", "run/running/lock", "preserved/kept/sandbox.json"] {
        fs::write(state.join(lock), "x".repeat(9000)).unwrap();
    }
    let running = fs::File::open(state.join("run/running/lock")).unwrap();
    running.lock().unwrap();
    let there = || ["run/ended", "run/running", "preserved/kept"].map(|path| state.join(path).exists());
    insta::assert_snapshot!(cleaned(&job, &["--dry-run", "--preserved"]), @"
    to remove 1 ended run
    kept 1 running job
    to remove 1 preserved environment
    kept 0 host images
    kept 0 layers
    kept 0 agent snapshots
    kept 0 git checkouts
    ");
    assert_eq!(there(), [true, true, true]);
    insta::assert_snapshot!(cleaned(&job, &[]), @"
    removed 1 ended run
    kept 1 running job
    kept 1 preserved environment remove with --preserved
    kept 0 host images
    kept 0 layers
    kept 0 agent snapshots
    kept 0 git checkouts
    ");
    assert_eq!(there(), [false, true, true]);
    insta::assert_snapshot!(cleaned(&job, &["--preserved"]), @"
    removed 0 ended runs
    kept 1 running job
    removed 1 preserved environment
    kept 0 host images
    kept 0 layers
    kept 0 agent snapshots
    kept 0 git checkouts
    ");
    assert_eq!(there(), [false, true, false]);
}

#[test]
fn images_layers_and_snapshots_go_by_their_flag_and_come_back_when_they_are_needed() {
    let job = job()
        .task(layered("task"))
        .agent(json!({"name": "agent", "install": AGENT, "execute": "cat /opt/agent; touch /app/done"}))
        .set("environment/cache_agent_install", json!(true));
    let run = |name: &str| {
        job.rollout(&["run", "job.yaml", "--set", &format!("name={name}")]).expect(0);
        job.expect_nothing_running();
        let said = job.root().join("jobs").join(name).join("agent/set/task__1/command/stdout.txt");
        fs::read_to_string(said).unwrap()
    };
    let there = || ["images", "layers", "snapshots"].map(|dir| entries(&job, dir));
    let first = run("first");
    assert_eq!(there(), [1, 1, 1]);
    insta::assert_snapshot!(cleaned(&job, &[]), @"
    removed 0 ended runs
    kept 0 running jobs
    kept 0 preserved environments
    kept 1 host image remove with --images
    kept 1 layer remove with --images
    kept 1 agent snapshot remove with --images
    kept 0 git checkouts
    ");
    insta::assert_snapshot!(cleaned(&job, &["--images", "--dry-run"]), @"
    to remove 0 ended runs
    kept 0 running jobs
    kept 0 preserved environments
    to remove 1 host image
    to remove 1 layer
    to remove 1 agent snapshot
    kept 0 git checkouts
    ");
    assert_eq!(there(), [1, 1, 1]);
    assert_eq!(run("second"), first);
    insta::assert_snapshot!(cleaned(&job, &["--images"]), @"
    removed 0 ended runs
    kept 0 running jobs
    kept 0 preserved environments
    removed 1 host image
    removed 1 layer
    removed 1 agent snapshot
    kept 0 git checkouts
    ");
    assert_eq!(there(), [0, 0, 0]);
    assert_ne!(run("third"), first);
    assert_eq!(there(), [1, 1, 1]);
}

#[test]
fn sizes_are_those_of_what_goes() {
    let bulk = TestTask::new("task")
        .dockerfile("FROM test\nWORKDIR /app\nRUN head -c 5000000 /dev/urandom > /bulk\n");
    let job = job().task(bulk).oracle();
    job.run().expect(0);
    job.expect_nothing_running();
    let said = String::from_utf8(job.command(&["clean", "--images"]).output().unwrap().stdout).unwrap();
    assert!(said.contains("1 layer") && said.contains("4.8 MiB"), "{said}");
}

#[test]
fn what_a_running_job_uses_stays_and_the_rest_goes() {
    let gate = Gate::new();
    let job = job().task(layered("used")).script(&(gate.wait() + "cat /name; touch /app/done"));
    let other = self::job()
        .task(layered("unused"))
        .oracle()
        .env("ROLLOUT_STATE_DIR", &job.state_dir().to_string_lossy());
    other.run().expect(0);
    other.expect_nothing_running();
    let job = job.set("n_attempts", json!(2)).set("n_concurrent_trials", json!(1));
    let running = job.start();
    let arrival = gate.arrival();
    assert_eq!(entries(&job, "layers"), 2);
    insta::assert_snapshot!(cleaned(&job, &["--images", "--cache"]), @"
    removed 0 ended runs
    kept 1 running job
    kept 0 preserved environments
    removed 0 host images
    kept 1 host image in use
    removed 1 layer
    kept 1 layer in use
    removed 0 agent snapshots
    removed 0 git checkouts
    ");
    assert_eq!((entries(&job, "layers"), entries(&job, "images")), (1, 1));
    arrival.pass();
    gate.arrival().pass();
    let done = running.finish().expect(0);
    assert_eq!(done.file("agent/set/used__2/command/stdout.txt"), "used\n");
    job.expect_nothing_running();
    assert_eq!(
        cleaned(&job, &["--images", "--dry-run"]).matches("in use").count(),
        0,
        "no job runs any more"
    );
}

#[test]
fn what_a_preserved_environment_is_made_from_stays_with_it() {
    let job = job()
        .task(layered("task"))
        .agent(json!({"name": "agent", "install": AGENT, "execute": "touch /app/done"}))
        .set("environment/cache_agent_install", json!(true))
        .set("environment/preserve_env", json!("always"))
        .set("n_attempts", json!(2))
        .set("n_concurrent_trials", json!(1));
    job.run().expect(0);
    job.expect_nothing_running();
    let there = || ["images", "layers", "snapshots"].map(|dir| entries(&job, dir));
    insta::assert_snapshot!(cleaned(&job, &["--images"]), @"
    removed 0 ended runs
    kept 0 running jobs
    kept 2 preserved environments remove with --preserved
    removed 0 host images
    kept 1 host image in use
    removed 0 layers
    kept 1 layer in use
    removed 0 agent snapshots
    kept 1 agent snapshot in use
    kept 0 git checkouts
    ");
    assert_eq!(there(), [1, 1, 1]);
    insta::assert_snapshot!(cleaned(&job, &["--images", "--preserved", "--dry-run"]), @"
    to remove 0 ended runs
    kept 0 running jobs
    to remove 2 preserved environments
    to remove 1 host image
    to remove 1 layer
    to remove 1 agent snapshot
    kept 0 git checkouts
    ");
    assert_eq!(there(), [1, 1, 1]);
    insta::assert_snapshot!(cleaned(&job, &["--images", "--preserved"]), @"
    removed 0 ended runs
    kept 0 running jobs
    removed 2 preserved environments
    removed 1 host image
    removed 1 layer
    removed 1 agent snapshot
    kept 0 git checkouts
    ");
    assert_eq!(there(), [0, 0, 0]);
    job.expect_nothing_left();
}

#[test]
fn jobs_may_start_and_run_while_images_are_removed_again_and_again() {
    let job = job()
        .task(layered("a"))
        .task(layered("b"))
        .agent(json!({"name": "agent", "install": AGENT, "execute": "cat /opt/agent; touch /app/done"}))
        .set("environment/cache_agent_install", json!(true))
        .set("n_attempts", json!(3))
        .set("n_concurrent_trials", json!(3));
    for round in 0..3 {
        let name = format!("name=round-{round}");
        let mut running = job.start_with(&["run", "job.yaml", "--output", "json", "--set", &name]);
        while running.is_running() {
            assert!(job.command(&["clean", "--images"]).output().unwrap().status.success());
        }
        let done = running.finish().expect(0);
        let rewards: Vec<Value> = done
            .events()
            .into_iter()
            .filter(|event| event["event"] == "trial_finished")
            .map(|event| {
                json!([event["result"]["reward"], event["result"]["tries"], event["result"]["notes"]])
            })
            .collect();
        assert_eq!(rewards, vec![json!([1.0, 1, null]); 6]);
    }
    assert!(job.command(&["clean", "--images"]).output().unwrap().status.success());
    job.expect_nothing_left();
}

#[test]
fn checkouts_go_by_their_flag_unless_a_running_job_reads_from_them() {
    let gate = Gate::new();
    let job = job();
    let repo = TestRepo::new(job.root().join("repo"));
    repo.commit(&TestTask::new("task"));
    let registry =
        json!([{"name": "set", "tasks": [{"name": "task", "git_url": repo.url(), "path": "tasks/task"}]}]);
    let job = job
        .file("registry.json", &registry.to_string())
        .set("datasets", json!([{"registry": {"path": "registry.json"}, "name": "set"}]))
        .script(&(gate.wait() + "touch /app/done"))
        .set("n_attempts", json!(2))
        .set("n_concurrent_trials", json!(1));
    let running = job.start();
    let arrival = gate.arrival();
    let said = cleaned(&job, &["--cache"]);
    assert!(
        said.contains("removed 0 git checkouts") && said.contains("kept 1 git checkout in use"),
        "{said}"
    );
    arrival.pass();
    gate.arrival().pass();
    running.finish().expect(0);
    job.expect_nothing_running();
    assert!(cleaned(&job, &[]).contains("kept 1 git checkout remove with --cache"));
    assert!(cleaned(&job, &["--cache", "--dry-run"]).contains("to remove 1 git checkout"));
    assert_eq!(entries(&job, "git"), 1);
    assert!(cleaned(&job, &["--cache"]).contains("removed 1 git checkout"));
    assert_eq!(entries(&job, "git"), 0);
}

#[test]
fn a_disk_with_little_room_is_reported_once_when_a_job_starts() {
    let job = job().task(TestTask::new("task")).oracle();
    let mut command = job.command(&["run", "job.yaml", "--output", "json"]);
    let jobs = job.root().join("jobs");
    fs::create_dir(&jobs).unwrap();
    mount(&["-t", "tmpfs", "-o", "size=64m", "tmpfs"], &jobs);
    let output = command.output().unwrap();
    let _ = Command::new("umount").arg(&jobs).status();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let reported: Vec<String> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| line.parse::<Value>().unwrap())
        .filter(|event| event["event"] == "warning" && event["message"].to_string().contains("jobs/job"))
        .map(|event| event["message"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("of 64.0 MiB free"), "{reported:?}");
    assert!(reported[0].ends_with("`rollout clean --images --cache` frees space"), "{reported:?}");
}

#[test]
fn a_disk_with_little_room_is_reported_before_a_job_starts_too() {
    let job = job().task(TestTask::new("task")).oracle();
    let mut commands =
        [&["run", "job.yaml", "--dry-run"][..], &["validate", "job.yaml"]].map(|words| job.command(words));
    let jobs = job.root().join("jobs");
    fs::create_dir(&jobs).unwrap();
    mount(&["-t", "tmpfs", "-o", "size=64m", "tmpfs"], &jobs);
    let outputs = commands.each_mut().map(|command| command.output().unwrap());
    let _ = Command::new("umount").arg(&jobs).status();
    for output in outputs {
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        assert!(output.status.success(), "{said}");
        let lines = said.lines().filter(|line| line.starts_with("warning: low disk space for "));
        let of_jobs: Vec<_> = lines.filter(|line| line.contains("jobs/job: ")).collect();
        assert!(matches!(of_jobs[..], [line] if line.contains("of 64.0 MiB free")), "{said}");
    }
}

fn mount(arguments: &[&str], target: &Path) {
    let mounted = Command::new("mount").args(arguments).arg(target).status().unwrap();
    assert!(mounted.success(), "mounting needs root");
}

#[test]
fn what_cannot_be_removed_is_named_and_the_rest_goes() {
    let job = job();
    let state = job.state_dir();
    for run in ["one", "two"] {
        fs::create_dir_all(state.join("run").join(run)).unwrap();
        fs::write(state.join("run").join(run).join("file"), "x").unwrap();
    }
    let file = state.join("run/one/file");
    let locked = Command::new("chattr").arg("+i").arg(&file).status().unwrap();
    assert!(locked.success(), "chattr needs root, and a file system on a disk");
    let plain = job.command(&["clean"]);
    let mut restricted = Command::new("setpriv");
    restricted.args(["--bounding-set=-linux_immutable", "--inh-caps=-linux_immutable"]);
    restricted.arg(plain.get_program()).args(plain.get_args()).current_dir(job.root()).env_clear();
    restricted.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let output = restricted.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let said = said.replace(&*state.canonicalize().unwrap().to_string_lossy(), "[STATE]");
    let said = said.replace(&*state.to_string_lossy(), "[STATE]");
    let about_files: Vec<_> = said.lines().filter(|line| line.contains("[STATE]")).collect();
    insta::assert_snapshot!(about_files.join("\n"), @"warning: cannot remove [STATE]/run/one/file: Operation not permitted (os error 1)");
    assert_eq!(["one", "two"].map(|run| state.join("run").join(run).exists()), [true, false]);
    cleaned(&job, &[]);
    assert!(!file.exists(), "who may change it can remove it");
}
