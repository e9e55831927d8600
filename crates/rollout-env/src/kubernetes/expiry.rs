//! Objects that delete themselves, and with them what they own.
//!
//! Such an object is a Job that runs no pods. When its deadline has passed, the Job has failed, and the cluster deletes
//! failed Jobs. The deadline can be moved. Clusters older than Kubernetes 1.24 do not record the start of a Job without
//! pods, so its deadline does not pass there.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::{
        batch::v1::{Job, JobSpec},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

/// A Job that is deleted after a time.
pub(super) fn job(
    name: &str,
    labels: &[(&str, &str)],
    owner: Option<OwnerReference>,
    after: Duration,
) -> Result<Job, serde_json::Error> {
    // It is never used, but required, and policies of clusters check it.
    let template: PodTemplateSpec = serde_json::from_value(json!({"spec": {
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{
            "name": "none",
            "image": "none",
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "1m", "memory": "1Mi"}},
        }],
    }}))?;
    let labels: BTreeMap<String, String> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Ok(Job {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            parallelism: Some(0),
            backoff_limit: Some(0),
            active_deadline_seconds: Some(seconds(after)),
            ttl_seconds_after_finished: Some(0),
            template,
            ..JobSpec::default()
        }),
        ..Job::default()
    })
}

/// Moves the deadline of a Job to a time after its start.
pub(super) async fn postpone(jobs: &Api<Job>, name: &str, after: Duration) -> Result<Job, kube::Error> {
    let patch = json!({"spec": {"activeDeadlineSeconds": seconds(after)}});
    jobs.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await
}

/// Whether the deadline of a Job has passed, or it is being deleted.
pub(super) fn is_over(job: &Job) -> bool {
    let mut conditions = job.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    let failed = ["Failed", "FailureTarget"];
    job.metadata.deletion_timestamp.is_some()
        || conditions
            .any(|condition| failed.contains(&condition.type_.as_str()) && condition.status == "True")
}

/// The reference to an owner, for objects in the form of JSON.
pub(super) fn reference(api_version: &str, kind: &str, metadata: &ObjectMeta) -> Value {
    json!(owner(api_version, kind, metadata))
}

/// The reference to an owner.
pub(super) fn owner(api_version: &str, kind: &str, metadata: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    }
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_runs_nothing_and_is_deleted_after_its_deadline() {
        let job = job("a", &[("rollout/run", "a")], None, Duration::from_secs(420)).unwrap();
        let job = serde_json::to_value(job).unwrap();
        let spec = &job["spec"];
        assert_eq!(
            (&spec["parallelism"], &spec["activeDeadlineSeconds"], &spec["ttlSecondsAfterFinished"]),
            (&json!(0), &json!(420), &json!(0))
        );
        // With a number of completions, a Job without pods could count as complete.
        assert_eq!(spec["completions"], Value::Null);
        assert_eq!(job["metadata"]["labels"]["rollout/run"], "a");
    }

    #[test]
    fn a_job_is_over_when_its_deadline_has_passed() {
        let with = |status: Value| is_over(&serde_json::from_value(json!({"status": status})).unwrap());
        assert!(!with(json!({})));
        assert!(!with(json!({"conditions": [{"type": "Suspended", "status": "True"}]})));
        assert!(with(
            json!({"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]})
        ));
        assert!(with(json!({"conditions": [{"type": "FailureTarget", "status": "True"}]})));
    }
}
