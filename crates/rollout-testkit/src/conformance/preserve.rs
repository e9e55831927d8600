//! Environments that are kept after their trial.
#![expect(missing_docs, reason = "the names of the cases describe them")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use rollout::environment::Outcome;
use serde_json::{Value, json};

use super::{Ability, Suite, suite::on_terminal};
use crate::{Finished, TestTask, library::runtime};

#[track_caller]
fn place(finished: &Finished, trial: &str) -> Option<String> {
    finished.trial(trial)["environment"].get("preserved").and_then(Value::as_str).map(str::to_owned)
}

pub fn environments_are_preserved_as_the_policy_says(suite: &Suite) {
    for (setting, value, kept) in [
        ("preserve_env", json!("never"), [false, false]),
        ("preserve_env", json!("always"), [true, true]),
        ("preserve_env", json!("on_failure"), [false, true]),
        ("preserveEnv", json!(true), [true, true]),
        ("preserveEnv", json!(false), [false, false]),
    ] {
        let job = suite
            .job()
            .task(TestTask::new("a-solved"))
            .task(TestTask::new("b-unsolved").solution("true\n"))
            .oracle()
            .set(&format!("environment/{setting}"), value.clone());
        let finished = job.run().expect(0);
        let places =
            ["a-solved", "b-unsolved"].map(|task| place(&finished, &format!("oracle/set/{task}__1")));
        assert_eq!(places.clone().map(|place| place.is_some()), kept, "{setting}: {value}");
        for place in places.iter().flatten() {
            suite.subject().forget(place);
        }
        job.expect_nothing_left();
    }
}

pub fn a_preserved_environment_can_be_opened_again_and_stays(suite: &Suite) {
    if suite.lacks(Ability::OtherUsers) {
        return;
    }
    if suite.lacks(Ability::Terminals) {
        return;
    }
    let script = "echo kept > /app/note; mkdir /logs/agent/dir; touch /app/done";
    let job = suite
        .job()
        .task(
            TestTask::new("task")
                .dockerfile("FROM test\nWORKDIR /app\nENV WHO=image\nRUN chmod 777 .\nUSER daemon\n"),
        )
        .script(script)
        .set("environment/preserve_env", json!("always"));
    let place = place(&job.run().expect(0), "agent/set/task__1").unwrap();
    for round in 1..=2 {
        let check = format!(
            "[ \"$(cat /app/note)\" = kept ] && [ \"$WHO $(id -un) $PWD\" = 'image daemon /app' ] && \
             [ $(ls /app | grep -c round) = {} ] && touch /app/round-{round}",
            round - 1
        );
        runtime().block_on(async {
            let (_, provider) = job.connect().await;
            let environment = provider.reopen(&place).await.unwrap();
            let (exit, shown) = on_terminal(&*environment, &["bash", "-c", &check], "").await;
            assert_eq!(exit.outcome, Outcome::Code(0), "{shown}");
            environment.preserve().await.unwrap();
        });
    }
    suite.subject().forget(&place);
    job.expect_nothing_left();
}

pub fn a_place_where_nothing_was_preserved_cannot_be_opened(suite: &Suite) {
    let job = suite.job().task(TestTask::new("task")).oracle();
    runtime().block_on(async {
        let (_, provider) = job.connect().await;
        assert!(provider.reopen("/no/such/place").await.is_err());
    });
}
