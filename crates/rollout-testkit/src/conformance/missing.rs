//! Images without common programs: each works, or the error says what is missing.
#![expect(missing_docs, reason = "the names of the cases describe them")]

use serde_json::json;

use super::{
    Ability, Suite,
    suite::{fails, never_ran, says},
};
use crate::TestTask;

pub fn an_image_without_bash_fails_the_agent_with_what_is_missing(suite: &Suite) {
    if suite.lacks(Ability::OtherUsers) {
        return;
    }
    let task =
        TestTask::new("task").dockerfile("FROM test\nWORKDIR /app\nRUN rm -f /bin/bash /usr/bin/bash\n");
    let (_, result) = fails(&suite.job().task(task).oracle(), "agent_execution_failed");
    says(&result, "bash");
    never_ran(&result, &["verifier"]);
}

pub fn an_image_without_tar_works(suite: &Suite) {
    if suite.lacks(Ability::OtherUsers) {
        return;
    }
    let task = TestTask::new("task")
        .dockerfile("FROM test\nWORKDIR /app\nRUN rm -f /bin/tar /usr/bin/tar /bin/gzip /usr/bin/gzip\n")
        .file("solution/data/x", "x\n")
        .solution("cat /oracle/data/x > /logs/agent/x; touch /app/done\n");
    let finished = suite.job().task(task).oracle().run().expect(0);
    assert_eq!(finished.trial("oracle/set/task__1")["reward"], 1.0);
    assert_eq!(finished.file("oracle/set/task__1/logs/agent/x"), "x\n");
}

pub fn an_image_without_sh_works(suite: &Suite) {
    if suite.lacks(Ability::OtherUsers) {
        return;
    }
    let task = TestTask::new("task").dockerfile(
        "FROM test\nWORKDIR /app\nSHELL [\"/bin/bash\", \"-c\"]\nRUN rm -f /bin/sh /usr/bin/sh /bin/dash /usr/bin/dash\n",
    );
    let result = suite.job().task(task).oracle().run().expect(0).trial("oracle/set/task__1");
    assert_eq!(result["reward"], 1.0);
}

pub fn the_path_of_the_image_decides_which_bash_runs(suite: &Suite) {
    let bash = "mkdir -p /opt/tools && cp /bin/bash /opt/tools/bash && cp /usr/bin/touch /opt/tools/touch";
    let task = TestTask::new("task")
        .dockerfile(&format!("FROM test\nWORKDIR /app\nRUN {bash}\nENV PATH=/opt/tools\n"))
        .solution("echo $BASH $PATH; touch /app/done\n");
    let finished = suite.job().task(task).oracle().run().expect(0);
    assert_eq!(finished.trial("oracle/set/task__1")["reward"], 1.0);
    assert_eq!(finished.file("oracle/set/task__1/command/stdout.txt"), "/opt/tools/bash /opt/tools\n");
}

pub fn an_image_with_bash_outside_of_its_path_fails_the_agent_with_what_is_missing(suite: &Suite) {
    let task = TestTask::new("task").dockerfile("FROM test\nWORKDIR /app\nENV PATH=/nowhere\n");
    let agent = json!({"name": "agent", "install": "true", "execute": "true"});
    let (_, result) = fails(&suite.job().task(task).agent(agent), "agent_install_failed");
    says(&result, "bash");
    never_ran(&result, &["agent_execution", "verifier"]);
}

pub fn an_image_without_its_user_fails_the_agent_naming_the_user(suite: &Suite) {
    let task = TestTask::new("task").dockerfile("FROM test\nWORKDIR /app\nUSER no-such-user\n");
    let (_, result) = fails(&suite.job().task(task).oracle(), "agent_execution_failed");
    says(&result, "no-such-user");
}

pub fn a_missing_working_directory_is_created(suite: &Suite) {
    let task = TestTask::new("task")
        .dockerfile("FROM test\nWORKDIR /not/made/by/anybody\n")
        .solution("pwd; mkdir /app; touch /app/done\n");
    let finished = suite.job().task(task).oracle().run().expect(0);
    assert_eq!(finished.file("oracle/set/task__1/command/stdout.txt"), "/not/made/by/anybody\n");
}
