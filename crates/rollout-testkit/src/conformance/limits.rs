//! Limits: those that are reported as enforced are enforced.
#![expect(missing_docs, reason = "the names of the cases describe them")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use serde_json::json;

use super::{Ability, Suite};
use crate::TestTask;

pub fn the_result_records_which_limits_are_enforced(suite: &Suite) {
    let result = suite.job().task(TestTask::new("task")).oracle().run().expect(0).trial("oracle/set/task__1");
    for (limit, ability) in
        [("cpus", Ability::LimitCpus), ("memory", Ability::LimitMemory), ("pids", Ability::LimitProcesses)]
    {
        assert_eq!(result["environment"]["enforced"][limit], !suite.lacks(ability), "{limit}: {result:#}");
    }
}

pub fn a_fraction_of_a_processor_is_enforced(suite: &Suite) {
    if suite.lacks(Ability::LimitCpus) || suite.lacks(Ability::FractionsOfCpus) {
        return;
    }
    let task = TestTask::new("task").config("[environment]\ncpus = 0.2\n");
    let script = "timeout 2 bash -c 'while :; do :; done'; read -r stat < /proc/$$/stat; set -- ${stat##*) }; \
                  echo $((${12} + ${13} + ${14} + ${15}))";
    let finished = suite.job().task(task).script(script).run().expect(0);
    // Two seconds of a fifth of a processor are forty ticks; a whole processor would use two hundred.
    let said = finished.file("agent/set/task__1/command/stdout.txt");
    let ticks: u32 = said.trim().parse().unwrap();
    assert!(ticks < 100, "{ticks} ticks of processor time");
}

pub fn the_limits_of_the_job_override_those_of_the_task(suite: &Suite) {
    if suite.lacks(Ability::LimitMemory) {
        return;
    }
    let task = TestTask::new("task").config("[environment]\nmemory = \"4Gi\"\n");
    let job =
        suite.job().task(task).script("tail /dev/zero").set("environment/override_memory", json!("64Mi"));
    let result = job.run().expect(1).trial("agent/set/task__1");
    assert!(result["error"]["message"].as_str().unwrap().contains("ran out of memory"), "{result:#}");
}

pub fn an_out_of_memory_kill_of_another_process_leaves_the_environment_working(suite: &Suite) {
    if suite.lacks(Ability::LimitMemory) {
        return;
    }
    let task = TestTask::new("task").config("[environment]\nmemory = \"64Mi\"\n");
    let script = "tail /dev/zero; echo \"tail ended with $?\"; touch /app/done";
    let finished = suite.job().task(task).script(script).run().expect(0);
    assert_eq!(finished.file("agent/set/task__1/command/stdout.txt"), "tail ended with 137\n");
    assert_eq!(finished.trial("agent/set/task__1")["reward"], 1.0);
}
