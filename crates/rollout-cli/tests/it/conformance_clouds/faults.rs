//! Faults of clouds: each leads to a retry or to the right error, and no sandbox stays.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use rollout::{
    config::{EnvironmentConfig, EnvironmentKind},
    environment::ConnectError,
};
use rollout_testkit::{
    CloudCall, CloudFake, CloudTrouble, Finished, Library, TestJob, TestTask,
    conformance::{Subject as _, Suite},
};
use serde_json::json;

use super::Cloud;

/// Creates the tests of faults for an expression that makes a [`Cloud`].
macro_rules! cloud_faults {
    ($cloud:expr) => {
        mod faults {
            use super::*;
            use crate::conformance_clouds::faults;

            $crate::conformance_clouds::faults::cloud_faults! { $cloud;
                a_busy_cloud_is_asked_again
                a_fault_of_the_cloud_is_tried_again
                a_creation_whose_answer_is_lost_makes_no_second_sandbox
                a_deletion_that_is_lost_is_repeated
                a_deletion_that_is_refused_is_reported
                output_is_complete_although_streams_are_cut
                a_slow_start_is_waited_for
                a_quota_delays_trials_and_one_that_is_never_free_fails_them
                a_refused_creation_fails_without_a_retry
                a_sandbox_that_does_not_start_is_paid_for
                a_trial_that_outlives_its_sandbox_fails_without_a_retry
                a_sandbox_of_a_cancelled_trial_that_is_not_deleted_is_reported
                credentials_that_are_not_accepted_are_an_error_without_them
                many_trials_with_many_faults_lose_nothing_and_leave_nothing
            }
        }
    };
    ($cloud:expr; $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                faults::$case($cloud);
            }
        )*
    };
}
pub(crate) use cloud_faults;

/// A cloud with its jobs.
struct Trials {
    suite: Suite,
    fake: Arc<dyn CloudFake>,
}

impl Trials {
    fn new(cloud: Cloud) -> Self {
        let fake = cloud.fake();
        Self { suite: Suite::new(cloud), fake }
    }

    /// A job of one trial.
    fn job(&self) -> TestJob<Library> {
        self.suite.job().task(TestTask::new("task")).oracle()
    }

    /// Runs a job whose only trial must succeed at its first try, and leave nothing.
    #[track_caller]
    fn succeeds(&self, job: &TestJob<Library>) -> Finished {
        let finished = job.run().expect(0);
        let result = finished.trial("oracle/set/task__1");
        assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(1)), "{result:#}");
        job.expect_nothing_left();
        finished
    }
}

pub(crate) fn a_busy_cloud_is_asked_again(cloud: Cloud) {
    let trials = Trials::new(cloud);
    for call in [CloudCall::Image, CloudCall::Create, CloudCall::State, CloudCall::List, CloudCall::Delete] {
        trials.fake.faults().once(call, CloudTrouble::Busy(Some(1)));
        trials.fake.faults().once(call, CloudTrouble::Busy(None));
    }
    trials.succeeds(&trials.job());
    assert_eq!(trials.fake.faults().calls(CloudCall::Create), 3);
}

pub(crate) fn a_fault_of_the_cloud_is_tried_again(cloud: Cloud) {
    let trials = Trials::new(cloud);
    for call in [
        CloudCall::Image,
        CloudCall::Create,
        CloudCall::State,
        CloudCall::List,
        CloudCall::Stream,
        CloudCall::Delete,
    ] {
        trials.fake.faults().once(call, CloudTrouble::Failure);
        trials.fake.faults().once(call, CloudTrouble::LoseRequest);
    }
    trials.succeeds(&trials.job());
}

pub(crate) fn a_creation_whose_answer_is_lost_makes_no_second_sandbox(cloud: Cloud) {
    let trials = Trials::new(cloud);
    trials.fake.faults().once(CloudCall::Create, CloudTrouble::LoseAnswer);
    trials.succeeds(&trials.job());
    assert_eq!(trials.fake.faults().calls(CloudCall::Create), 1);
}

pub(crate) fn a_deletion_that_is_lost_is_repeated(cloud: Cloud) {
    let trials = Trials::new(cloud);
    for trouble in [CloudTrouble::LoseRequest, CloudTrouble::LoseAnswer, CloudTrouble::Ignore] {
        trials.fake.faults().once(CloudCall::Delete, trouble);
        trials.succeeds(&trials.job());
    }
}

pub(crate) fn a_deletion_that_is_refused_is_reported(cloud: Cloud) {
    let fake = cloud.fake();
    fake.faults().times(1000, CloudCall::Delete, CloudTrouble::Refusal);
    let job = cloud.command_job().task(TestTask::new("task")).oracle();
    let finished = job.run();
    assert_eq!(finished.trial("oracle/set/task__1")["reward"], 1.0);
    let left = fake.sandboxes();
    assert_eq!(left.len(), 1, "{left:?}");
    let result = finished.result();
    let warnings = result["teardown_warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 1, "{result:#}");
    let warning = warnings[0].as_str().unwrap();
    assert!(
        warning.contains(&left[0].id) && warning.contains("`rollout clean --all-providers`"),
        "{warning}"
    );
    // Before the summary.
    let said = finished.stderr() + &finished.stdout();
    assert!(said.contains(&format!("the sandbox {} was not deleted", left[0].id)), "{said}");
    fake.faults().heal();
    fake.end(&left[0].id);
}

pub(crate) fn output_is_complete_although_streams_are_cut(cloud: Cloud) {
    let trials = Trials::new(cloud);
    for after in [10, 3000, 20_000, 50_000, 100] {
        trials.fake.faults().once(CloudCall::Stream, CloudTrouble::CutStream(after));
    }
    let script = "seq 100000; seq 50000 > /logs/agent/numbers; touch /app/done";
    let job = trials.suite.job().task(TestTask::new("task")).script(script);
    let finished = job.run().expect(0);
    let numbers = |end: u32| (1..=end).map(|number| format!("{number}\n")).collect::<String>();
    assert!(finished.file("agent/set/task__1/command/stdout.txt") == numbers(100_000), "the output differs");
    assert!(
        finished.file("agent/set/task__1/logs/agent/numbers") == numbers(50_000),
        "a copied file differs"
    );
    let result = finished.trial("agent/set/task__1");
    assert_eq!((&result["reward"], &result["tries"]), (&json!(1.0), &json!(1)), "{result:#}");
    assert!(trials.fake.faults().calls(CloudCall::Stream) > 5);
    job.expect_nothing_left();
}

pub(crate) fn a_slow_start_is_waited_for(cloud: Cloud) {
    let trials = Trials::new(cloud);
    trials.fake.faults().once(CloudCall::Create, CloudTrouble::Slow(Duration::from_secs(2)));
    trials.succeeds(&trials.job());
}

pub(crate) fn a_quota_delays_trials_and_one_that_is_never_free_fails_them(cloud: Cloud) {
    let trials = Trials::new(cloud);
    trials.fake.faults().limit(1);
    let job = trials.job().set("n_attempts", json!(2)).set("n_concurrent_trials", json!(2));
    assert_eq!(job.run().expect(0).result()["completed_trials"], 2);
    trials.fake.faults().limit(0);
    let job = trials.job().set("environment/provider_config/start_timeout_sec", json!(2));
    let result = job.run().expect(1).trial("oracle/set/task__1");
    assert_eq!(result["error"]["type"], "environment_resource_allocation_failed", "{result:#}");
    assert!(result["error"]["message"].as_str().unwrap().contains("quota of the account"), "{result:#}");
    job.expect_nothing_left();
}

pub(crate) fn a_refused_creation_fails_without_a_retry(cloud: Cloud) {
    let trials = Trials::new(cloud);
    trials.fake.faults().times(1000, CloudCall::Create, CloudTrouble::Refusal);
    let result = trials.job().run().expect(1).trial("oracle/set/task__1");
    assert_eq!(result["error"]["type"], "environment_start_failed", "{result:#}");
    assert_eq!((&result["tries"], trials.fake.faults().calls(CloudCall::Create)), (&json!(1), 1));
}

pub(crate) fn a_sandbox_that_does_not_start_is_paid_for(cloud: Cloud) {
    let trials = Trials::new(cloud);
    trials.fake.faults().times(1000, CloudCall::Stream, CloudTrouble::Failure);
    let price = if trials.fake.kind() == "fly" { "shared_cpu_hour" } else { "cpu_hour" };
    let job = trials
        .job()
        .set("environment/provider_config/start_timeout_sec", json!(3))
        .set(&format!("environment/provider_config/{price}"), json!(1));
    let result = job.set("retry/max_attempts", json!(2)).run().expect(1).trial("oracle/set/task__1");
    assert_eq!(result["error"]["type"], "environment_start_failed", "{result:#}");
    assert_eq!(result["tries"], 2);
    assert!(result["environment_cost"].as_f64().unwrap() > 0.0, "{result:#}");
    assert_eq!(result["cost"], result["environment_cost"]);
}

pub(crate) fn a_trial_that_outlives_its_sandbox_fails_without_a_retry(cloud: Cloud) {
    let trials = Trials::new(cloud);
    let job = trials.suite.job().task(TestTask::new("task")).script("sleep 300");
    let job = job.set("environment/provider_config/lifetime_sec", json!(8));
    let result = job.run().expect(1).trial("agent/set/task__1");
    assert_eq!(
        (&result["error"]["type"], &result["tries"]),
        (&json!("internal_error"), &json!(1)),
        "{result:#}"
    );
    let message = result["error"]["message"].as_str().unwrap();
    assert!(message.contains("has expired (8 seconds)"), "{message}");
    job.expect_nothing_left();
}

pub(crate) fn a_sandbox_of_a_cancelled_trial_that_is_not_deleted_is_reported(cloud: Cloud) {
    let fake = cloud.fake();
    fake.faults().times(1000, CloudCall::Delete, CloudTrouble::Refusal);
    let job = cloud.command_job().task(TestTask::new("task")).script("sleep 300");
    let mut running = job.start();
    running.until_phase("execute", 1);
    running.signal("-INT");
    let finished = running.finish();
    let left = fake.sandboxes();
    assert_eq!(left.len(), 1, "{left:?}");
    let result = finished.result();
    assert!(result["teardown_warnings"].to_string().contains(&left[0].id), "{result:#}");
    fake.faults().heal();
    fake.end(&left[0].id);
}

pub(crate) fn credentials_that_are_not_accepted_are_an_error_without_them(cloud: Cloud) {
    let fake = cloud.fake();
    for call in [CloudCall::List, CloudCall::State] {
        fake.faults().times(1000, call, CloudTrouble::Unauthorized);
    }
    let environment = cloud.environment();
    let config: EnvironmentConfig = EnvironmentConfig {
        kind: EnvironmentKind::from_name(fake.kind()),
        provider_config: environment["provider_config"].as_object().unwrap().clone(),
        ..EnvironmentConfig::default()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let error = runtime
        .block_on(cloud.connect(&config, "unused".as_ref()))
        .map(|provider| provider.name())
        .expect_err("the credentials are refused");
    assert!(matches!(error, ConnectError::Cloud(_)), "{error:?}");
    let said = format!("{error} {error:?}");
    assert!(said.contains("does not accept the credentials"), "{said}");
    for (name, value) in fake.variables() {
        assert!(value.starts_with("http") || !said.contains(&value), "{name} is in {said}");
    }
}

pub(crate) fn many_trials_with_many_faults_lose_nothing_and_leave_nothing(cloud: Cloud) {
    let trials = Trials::new(cloud);
    let attempts = if std::env::var_os("ROLLOUT_TEST_FULL").is_some() { 200 } else { 20 };
    let job = trials.job().set("n_attempts", json!(attempts)).set("n_concurrent_trials", json!(8));
    trials.fake.faults().often(5);
    let finished = job.run();
    assert!(trials.fake.faults().met() > 0, "no request failed");
    let result = finished.result();
    let rows = result["results"].as_array().unwrap();
    let seen: BTreeSet<u64> = rows.iter().map(|row| row["attempt"].as_u64().unwrap()).collect();
    assert_eq!((rows.len(), seen.len()), (attempts, attempts), "a result is lost or doubled");
    let failed: Vec<_> = rows.iter().filter(|row| row["reward"] != 1.0).collect();
    assert!(failed.is_empty(), "{failed:#?}\n{}", finished.stdout());
    let left = trials.fake.sandboxes();
    assert!(left.is_empty(), "{left:?}");
}
