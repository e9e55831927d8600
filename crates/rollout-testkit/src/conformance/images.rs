//! Images: built once for their content, stored, and their settings apply in the environment.
#![expect(missing_docs, reason = "the names of the cases describe them")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::BTreeSet;

use serde_json::json;

use super::{
    Ability, Suite,
    suite::{fails, says},
};
use crate::{Finished, Gate, Library, TestJob, TestTask};

/// A task whose image records which build it came from. No other job has built it.
fn stamped(job: &str, task: &str) -> TestTask {
    TestTask::new(task)
        .dockerfile(&format!(
            "FROM test\nWORKDIR /app\nRUN : {job}; cat /proc/sys/kernel/random/uuid > /stamp\n"
        ))
        .tests("cat /stamp; echo 1 > /logs/verifier/reward.txt\n")
}

fn stamped_job(suite: &Suite, tasks: &[&str]) -> TestJob<Library> {
    let job = suite.job().oracle();
    let name = job.name().to_owned();
    tasks.iter().fold(job, |job, task| job.task(stamped(&name, task)))
}

/// The builds that the trials of a job came from.
#[track_caller]
fn stamps(finished: &Finished) -> BTreeSet<String> {
    let result = finished.result();
    let rows = result["results"].as_array().unwrap();
    let stamp = |row: &serde_json::Value| {
        let trial = format!("oracle/set/{}__{}", row["task_name"].as_str().unwrap(), row["attempt"]);
        finished.file(&format!("{trial}/logs/verifier/stdout.txt"))
    };
    let found: BTreeSet<String> = rows.iter().map(stamp).collect();
    assert!(found.iter().all(|stamp| stamp.len() == 37), "{found:?}");
    found
}

pub fn an_image_is_built_once_for_all_its_trials_and_kept_between_jobs(suite: &Suite) {
    let job = stamped_job(suite, &["task"]).set("n_attempts", json!(4));
    let first = stamps(&job.run_as("one").expect(0));
    assert_eq!(first.len(), 1);
    assert_eq!(stamps(&job.run_as("two").expect(0)), first);
}

pub fn a_forced_build_happens_once_for_all_trials_of_a_job(suite: &Suite) {
    let job = stamped_job(suite, &["task"]).set("n_attempts", json!(4));
    let kept = stamps(&job.run_as("kept").expect(0));
    let job = job.set("environment/force_build", json!(true));
    let (one, two) = (stamps(&job.run_as("one").expect(0)), stamps(&job.run_as("two").expect(0)));
    assert_eq!((one.len(), two.len()), (1, 1));
    assert!(kept != one && one != two, "{kept:?} {one:?} {two:?}");
}

pub fn tasks_of_the_same_content_share_one_build(suite: &Suite) {
    let job = stamped_job(suite, &["a", "b", "c"]);
    assert_eq!(stamps(&job.run().expect(0)).len(), 1);
}

pub fn jobs_at_the_same_time_share_one_build(suite: &Suite) {
    let job = stamped_job(suite, &["task"]);
    let started: Vec<_> = ["one", "two", "three"].iter().map(|name| job.start_as(name)).collect();
    let all: BTreeSet<String> =
        started.into_iter().flat_map(|running| stamps(&running.finish().expect(0))).collect();
    assert_eq!(all.len(), 1, "{all:?}");
}

pub fn trials_that_wait_for_a_build_all_get_it(suite: &Suite) {
    let gate = Gate::new();
    let task = stamped("", "task").dockerfile(&format!(
        "FROM test\nSHELL [\"/bin/bash\", \"-c\"]\nWORKDIR /app\n\
         RUN {}; cat /proc/sys/kernel/random/uuid > /stamp\n",
        gate.wait().trim_end()
    ));
    let job =
        suite.job().task(task).oracle().set("n_attempts", json!(6)).set("n_concurrent_trials", json!(6));
    let running = job.start();
    running.arrival(&gate).pass();
    assert_eq!(stamps(&running.finish().expect(0)).len(), 1);
}

pub fn force_build_builds_the_dockerfile_even_where_the_task_names_an_image(suite: &Suite) {
    let base = suite.subject().base_image();
    let task = TestTask::new("task")
        .config(&format!("[environment]\ndocker_image = \"{base}\"\n"))
        .solution("true\n")
        .dockerfile("FROM test\nWORKDIR /app\nRUN touch /from-dockerfile\n")
        .tests("if [ -e /from-dockerfile ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n");
    let job = suite.job().task(task).oracle();
    let reward = |job: &TestJob<Library>, name| {
        job.run_as(name).expect(0).trial("oracle/set/task__1")["reward"].clone()
    };
    assert_eq!(reward(&job, "named"), 0.0, "the image alone is enough");
    assert_eq!(reward(&job.set("environment/force_build", json!(true)), "forced"), 1.0);
}

pub fn a_changed_context_is_another_image(suite: &Suite) {
    let copying = |content: &str| {
        TestTask::new("task")
            .dockerfile("FROM test\nWORKDIR /app\nCOPY data.txt /data.txt\n")
            .file("environment/data.txt", content)
            .tests("cat /data.txt; echo 1 > /logs/verifier/reward.txt\n")
    };
    let said = |finished: &Finished| finished.file("oracle/set/task__1/logs/verifier/stdout.txt");
    let job = suite.job().task(copying("first\n")).oracle();
    assert_eq!(said(&job.run_as("one").expect(0)), "first\n");
    assert_eq!(said(&job.task(copying("second\n")).run_as("two").expect(0)), "second\n");
}

pub fn a_dockerignore_file_keeps_files_out_of_the_image(suite: &Suite) {
    let task = TestTask::new("task")
        .dockerfile("FROM test\nWORKDIR /app\nCOPY . /context/\n")
        .file("environment/.dockerignore", "# unused files\n*.log\n!keep.log\nsecret\n**/cache\n")
        .file("environment/data.txt", "data\n")
        .file("environment/noise.log", "noise\n")
        .file("environment/keep.log", "kept\n")
        .file("environment/secret/key", "key\n")
        .file("environment/deep/cache/x", "x\n")
        .file("environment/deep/file", "file\n")
        .tests("cd /context; find . -type f ! -name .dockerignore ! -name Dockerfile | sort; echo 1 > /logs/verifier/reward.txt\n");
    let finished = suite.job().task(task).oracle().run().expect(0);
    let said = finished.file("oracle/set/task__1/logs/verifier/stdout.txt");
    assert_eq!(said, "./data.txt\n./deep/file\n./keep.log\n");
}

pub fn the_build_log_is_there_when_something_was_built(suite: &Suite) {
    // Unique content, so that no earlier test has built the image.
    let job = suite.job();
    let words = format!("said while building {}", job.name());
    let task = TestTask::new("task")
        .dockerfile(&format!("FROM test\nWORKDIR /app\nRUN echo {words} | tr a-z a-z\n"));
    let finished = job.task(task).oracle().run().expect(0);
    let log = finished.file("oracle/set/task__1/environment/build.txt");
    assert!(log.contains(&words), "{log}");
}

pub fn user_directory_and_variables_of_the_dockerfile_hold_for_agent_and_tests(suite: &Suite) {
    if suite.lacks(Ability::OtherUsers) {
        return;
    }
    let say = "echo $(id -un) $(pwd) $GREETING $HOME";
    let task = TestTask::new("task")
        .dockerfile(
            "FROM test\nARG WHO=world\nENV GREETING=\"hello-$WHO\"\nWORKDIR /srv/work\nWORKDIR deep\n\
             RUN chown daemon .\nUSER daemon\n",
        )
        .tests(&format!("{say}; test -O mine && echo 1 > /logs/verifier/reward.txt\n"));
    let agent = json!({"name": "agent", "install": say, "execute":
        format!("{say}; touch mine; echo seen > /logs/agent/by-daemon")});
    let finished = suite.job().task(task).agent(agent).run().expect(0);
    assert_eq!(finished.trial("agent/set/task__1")["reward"], 1.0);
    for file in ["setup/stdout.txt", "command/stdout.txt", "logs/verifier/stdout.txt"] {
        let said = finished.file(&format!("agent/set/task__1/{file}"));
        assert_eq!(said, "daemon /srv/work/deep hello-world /usr/sbin\n", "{file}");
    }
    assert_eq!(finished.file("agent/set/task__1/logs/agent/by-daemon"), "seen\n");
}

pub fn a_user_may_be_numeric_ids_without_a_name(suite: &Suite) {
    if suite.lacks(Ability::OtherUsers) {
        return;
    }
    let task = TestTask::new("task")
        .dockerfile("FROM test\nWORKDIR /app\nRUN chown 4321:8765 .\nUSER 4321:8765\n")
        .solution("echo $(id -u) $(id -g); touch /app/done\n");
    let finished = suite.job().task(task).oracle().run().expect(0);
    assert_eq!(finished.file("oracle/set/task__1/command/stdout.txt"), "4321 8765\n");
    assert_eq!(finished.trial("oracle/set/task__1")["reward"], 1.0);
}

pub fn entrypoint_and_command_of_the_image_are_not_run(suite: &Suite) {
    let task = TestTask::new("task")
        .dockerfile("FROM test\nWORKDIR /app\nENTRYPOINT [\"/bin/false\"]\nCMD [\"exit\", \"1\"]\nHEALTHCHECK CMD false\nSTOPSIGNAL SIGKILL\n");
    let result = suite.job().task(task).oracle().run().expect(0).trial("oracle/set/task__1");
    assert_eq!(result["reward"], 1.0);
}

pub fn tests_of_the_task_replace_those_in_the_image(suite: &Suite) {
    let task = TestTask::new("task")
        .dockerfile("FROM test\nWORKDIR /app\nRUN mkdir /tests && echo forged > /tests/helper.sh && echo 'exit 1' > /tests/test.sh\n")
        .tests("ls -A /tests; echo 1 > /logs/verifier/reward.txt\n");
    let finished = suite.job().task(task).script("ls -A /tests; echo more > /tests/more").run().expect(0);
    assert_eq!(finished.trial("agent/set/task__1")["reward"], 1.0);
    assert_eq!(finished.file("agent/set/task__1/logs/verifier/stdout.txt"), "test.sh\n");
}

pub fn a_tests_link_of_the_image_leads_nowhere(suite: &Suite) {
    let task = TestTask::new("task")
        .dockerfile("FROM test\nWORKDIR /app\nRUN mkdir /elsewhere && ln -s /elsewhere /tests\n")
        .tests("ls -A /elsewhere; echo 1 > /logs/verifier/reward.txt\n");
    let finished = suite.job().task(task).oracle().run().expect(0);
    assert_eq!(finished.file("oracle/set/task__1/logs/verifier/stdout.txt"), "");
}

pub fn a_logs_directory_of_the_image_is_used_whatever_its_mode(suite: &Suite) {
    if suite.lacks(Ability::OtherUsers) {
        return;
    }
    for (logs, user) in [
        ("mkdir -p /logs/agent /logs/verifier; echo old > /logs/agent/old; chmod 700 /logs /logs/*", "root"),
        ("mkdir -p /logs/agent; chmod 000 /logs/agent /logs", "root"),
        ("mkdir /logs; chmod 2755 /logs", "daemon"),
        ("mkdir -p /logs/agent /logs/verifier; chmod 700 /logs /logs/*; chown -R daemon /logs", "daemon"),
    ] {
        let task = TestTask::new("task")
            .dockerfile(&format!("FROM test\nWORKDIR /app\nRUN chmod 777 /app; {logs}\nUSER {user}\n"))
            .solution("echo trace > /logs/agent/trace && touch /app/done\n");
        let finished = suite.job().task(task).oracle().run();
        let result = finished.trial("oracle/set/task__1");
        assert_eq!(result["reward"], 1.0, "{logs}: {result:#}");
        assert_eq!(finished.file("oracle/set/task__1/logs/agent/trace"), "trace\n", "{logs}");
    }
}

pub fn a_logs_directory_that_the_image_closes_to_its_own_user_is_named_in_the_error(suite: &Suite) {
    if suite.lacks(Ability::OtherUsers) {
        return;
    }
    let task = TestTask::new("task")
        .dockerfile(
            "FROM test\nWORKDIR /app\nRUN mkdir -p /logs/agent && chmod 700 /logs/agent\nUSER daemon\n",
        )
        .solution("echo trace > /logs/agent/trace\n");
    let (_, result) = fails(&suite.job().task(task).oracle(), "agent_execution_failed");
    says(&result, "/logs/agent/trace: Permission denied");
}
