//! Sandboxes of Daytona: its REST API, and the toolbox that it runs in each sandbox.
//!
//! Images are snapshots. The size of a sandbox belongs to its snapshot, so an image has one for each size. The guest is
//! started through the toolbox, and reached over a WebSocket through the address that Daytona gives to its port.

mod api;
mod credentials;
mod link;
mod settings;
mod snapshots;
mod storage;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};

pub(crate) use self::settings::Settings;
use self::{
    api::{Api, SandboxAnswer, SandboxPage},
    credentials::Credentials,
    link::{Dialer, Links},
    settings::SandboxNetwork,
    snapshots::SnapshotBuild,
};
use super::{
    Backend, CloudConnectError, CloudError, CloudImage, CloudSandbox, ImageSource, KEPT, MANAGED,
    PlaceSettings, Remote, SandboxEnd, SandboxPlan, SandboxSize, SandboxState, Wanted, random_hex,
};
use crate::{
    environment::Demand,
    guest::{DialError, GuestStream},
    host::HostPaths,
};

/// The name of the provider in job files.
const VENDOR: &str = "daytona";

/// The most sandboxes in one answer.
const PAGE: &str = "100";

/// Connects with the account of the user.
pub(crate) async fn connect(settings: Settings, place: &HostPaths) -> Result<Remote, CloudConnectError> {
    let credentials = Credentials::find(&place.clouds)?.ok_or_else(Credentials::missing)?;
    let (times, user) = (settings.times(), settings.user.clone());
    let no_network = settings.network == SandboxNetwork::None;
    let (credentials, settings, links) = (Arc::new(credentials), Arc::new(settings), Arc::default());
    let open = move || -> Box<dyn Backend> {
        Box::new(Daytona::new(Arc::clone(&credentials), Arc::clone(&settings), Arc::clone(&links)))
    };
    Remote::start(VENDOR, &place.state_dir, times, user, no_network, open).await
}

/// The account of the user, if there is a key. It has one list of sandboxes.
pub(super) fn account(
    host: &HostPaths,
    _place: &PlaceSettings,
) -> Option<Result<Box<dyn Backend>, CloudConnectError>> {
    let credentials = Credentials::find(&host.clouds).transpose()?;
    Some(credentials.map(|credentials| {
        let settings = Arc::new(Settings::usual());
        Box::new(Daytona::new(Arc::new(credentials), settings, Arc::default())) as Box<dyn Backend>
    }))
}

/// A client of Daytona.
struct Daytona {
    api: Api,
    settings: Arc<Settings>,
    dialer: Dialer,
    /// What the images of this job are built from, by reference.
    builds: Mutex<HashMap<String, SnapshotBuild>>,
}

impl Daytona {
    fn new(credentials: Arc<Credentials>, settings: Arc<Settings>, links: Arc<Links>) -> Self {
        Self { api: Api::new(credentials), settings, dialer: Dialer::new(links), builds: Mutex::default() }
    }

    fn target(&self) -> Option<&str> {
        self.settings.target.as_deref().or(self.api.credentials.target.as_deref())
    }

    /// What an image of this job is built from.
    fn build(&self, reference: &str) -> Option<SnapshotBuild> {
        self.builds.lock().unwrap_or_else(PoisonError::into_inner).get(reference).cloned()
    }

    async fn get(&self, id: &str) -> Result<SandboxAnswer, CloudError> {
        self.api.get(&format!("/sandbox/{id}")).await
    }
}

/// The name of a sandbox. Names are unique, so a creation cannot happen twice.
fn name(key: &str) -> String {
    format!("rollout-{key}")
}

/// The name of the snapshot of an image for a size.
fn snapshot_name(reference: &str, size: SandboxSize) -> String {
    let (cpus, memory, disk) =
        (size.cpu_millis / 1000, size.memory_mib >> 10, size.storage_mib.unwrap_or_default() >> 10);
    format!("{reference}-{cpus}-{memory}-{disk}")
}

/// Whether a creation was refused because its snapshot was deleted.
fn is_about_snapshot(text: &str) -> bool {
    text.contains("Snapshot ") && text.contains("not found")
}

/// Rounds up to minutes, which Daytona counts in.
fn minutes(time: Duration) -> u64 {
    time.as_secs().div_ceil(60).max(1)
}

#[async_trait]
impl Backend for Daytona {
    fn description(&self) -> String {
        let region =
            self.target().map_or("the organization's region".to_owned(), |it| format!("region {it}"));
        format!("{}, {region}", self.api.credentials.url)
    }

    async fn check(&self) -> Result<(), CloudError> {
        let url = self.api.with_query("/sandbox", &[("limit", "1")])?;
        let request = self.api.request_to(Method::GET, url.as_str());
        self.api.read::<Value>(request, "GET /sandbox").await.map(drop)
    }

    fn refusal(&self, demand: Demand) -> Option<String> {
        match demand {
            Demand::NoNetwork | Demand::Allowlist => None,
            // Whether the connection to the guest survives a change is not known.
            Demand::NetworkChanges
            | Demand::Gpus
            | Demand::Compose
            | Demand::Privileged
            | Demand::ImageStartup => {
                Some(format!("{VENDOR} does not support {demand}; use `environment.type: docker`"))
            }
        }
    }

    fn size(&self, wanted: Wanted) -> Result<SandboxSize, String> {
        self.settings.size(wanted)
    }

    fn price(&self, size: SandboxSize) -> f64 {
        self.settings.price(size)
    }

    fn max_lifetime(&self) -> Duration {
        Duration::MAX
    }

    fn shell_command(&self, id: &str) -> String {
        format!("daytona ssh {id}")
    }

    async fn image(&self, source: &ImageSource) -> Result<CloudImage, CloudError> {
        let nonce = match source.force {
            true => Some(random_hex().map_err(|error| CloudError::Refused(error.to_string()))?),
            false => None,
        };
        let mut reference = format!("rollout-{}", source.key);
        if let Some(nonce) = &nonce {
            reference.push_str(&format!("-{}", &nonce[..8]));
        }
        let build = SnapshotBuild::upload(&self.api, source, nonce.as_deref()).await?;
        // A task without limits has this size. Snapshots of other sizes share the build.
        let size = self.size(Wanted::default()).map_err(CloudError::Refused)?;
        build.ensure(&self.api, &snapshot_name(&reference, size), size, self.target()).await?;
        self.builds.lock().unwrap_or_else(PoisonError::into_inner).insert(reference.clone(), build);
        Ok(CloudImage { reference })
    }

    async fn sized_image(&self, image: &CloudImage, size: SandboxSize) -> Result<String, CloudError> {
        let name = snapshot_name(&image.reference, size);
        let unknown = || CloudError::NoImage(format!("the image {} was not prepared", image.reference));
        let build = self.build(&image.reference).ok_or_else(unknown)?;
        build.ensure(&self.api, &name, size, self.target()).await?;
        Ok(name)
    }

    async fn create(&self, plan: &SandboxPlan) -> Result<String, CloudError> {
        let lifetime = minutes(plan.lifetime);
        let mut body = json!({
            "name": name(plan.key()),
            "snapshot": plan.image,
            "labels": plan.labels,
            "public": false,
            "networkBlockAll": plan.no_network,
            "ttlMinutes": lifetime,
            // For releases without a lifetime: stop after as long without a connection, and delete what is stopped.
            "autoStopInterval": lifetime,
            "autoDeleteInterval": 0,
        });
        if let Some(target) = self.target() {
            body["target"] = target.into();
        }
        let request = self.api.request(Method::POST, "/sandbox").json(&body);
        match self.api.create::<SandboxAnswer>(request, "POST /sandbox").await {
            Ok(Some(sandbox)) => Ok(sandbox.id),
            // An attempt whose answer was lost has created it.
            Ok(None) => self.get(&name(plan.key())).await.map(|sandbox| sandbox.id),
            Err(CloudError::Refused(text) | CloudError::Missing(text)) if is_about_snapshot(&text) => {
                Err(CloudError::NoImage(text))
            }
            Err(error) => Err(error),
        }
    }

    async fn find(&self, key: &str) -> Result<Option<String>, CloudError> {
        match self.get(&name(key)).await {
            Ok(sandbox) => Ok((!sandbox.is_deleted()).then_some(sandbox.id)),
            Err(CloudError::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn state(&self, id: &str) -> Result<SandboxState, CloudError> {
        self.get(id).await.map(|sandbox| state_of(&sandbox, Timestamp::now()))
    }

    async fn dial(&self, id: &str, plan: &SandboxPlan) -> Result<GuestStream, DialError> {
        self.dialer.dial(&self.api, id, plan).await
    }

    async fn delete(&self, id: &str) -> Result<(), CloudError> {
        let request = self.api.request(Method::DELETE, &format!("/sandbox/{id}"));
        match self.api.send(request, &format!("DELETE /sandbox/{id}")).await {
            Ok(_) | Err(CloudError::Missing(_)) => {
                self.dialer.links().forget(id);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn list(&self) -> Result<Vec<CloudSandbox>, CloudError> {
        let labels = json!({ MANAGED: "true" }).to_string();
        let (mut listed, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let mut query = vec![("labels", labels.as_str()), ("limit", PAGE)];
            if let Some(cursor) = &cursor {
                query.push(("cursor", cursor));
            }
            let url = self.api.with_query("/sandbox", &query)?;
            let request = self.api.request_to(Method::GET, url.as_str());
            let page: SandboxPage = self.api.read(request, "GET /sandbox").await?;
            let live = page.items.into_iter().filter(|sandbox| !sandbox.is_deleted());
            listed.extend(live.map(|sandbox| CloudSandbox { id: sandbox.id, labels: sandbox.labels }));
            match page.next_cursor.filter(|cursor| !cursor.is_empty()) {
                Some(next) => cursor = Some(next),
                None => return Ok(listed),
            }
        }
    }

    async fn keep(&self, id: &str) -> Result<(), CloudError> {
        let mut labels = self.get(id).await?.labels;
        labels.insert(KEPT.to_owned(), "true".to_owned());
        let path = format!("/sandbox/{id}/labels");
        let request = self.api.request(Method::PUT, &path).json(&json!({ "labels": labels }));
        self.api.send(request, &format!("PUT {path}")).await.map(drop)
    }
}

/// What the state of a sandbox means.
fn state_of(sandbox: &SandboxAnswer, now: Timestamp) -> SandboxState {
    let end = sandbox.auto_destroy_at.as_deref().and_then(|time| time.parse::<Timestamp>().ok());
    let reason = |otherwise: &str| sandbox.error_reason.clone().unwrap_or_else(|| otherwise.to_owned());
    match sandbox.state.as_deref().unwrap_or_default() {
        "started" => SandboxState::Running,
        state @ ("error" | "build_failed") => {
            let reason = reason(state);
            let is_memory = reason.to_lowercase().contains("out of memory");
            SandboxState::Ended(match is_memory {
                true => SandboxEnd::OutOfMemory,
                false => SandboxEnd::Outside(reason),
            })
        }
        "stopped" | "stopping" | "destroyed" | "destroying" | "archived" | "archiving" | "paused"
        | "pausing"
            if end.is_some_and(|end| end <= now) =>
        {
            SandboxState::Ended(SandboxEnd::Lifetime)
        }
        state @ ("stopped" | "stopping" | "destroyed" | "destroying" | "archived" | "archiving"
        | "paused" | "pausing") => SandboxState::Ended(SandboxEnd::Outside(format!("it is {state}"))),
        state => SandboxState::Starting(format!("its state is {state}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: Value) -> SandboxState {
        let mut sandbox = json!({"id": "a", "labels": {}});
        sandbox.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        state_of(&serde_json::from_value(sandbox).unwrap(), now)
    }

    #[test]
    fn states_have_a_meaning() {
        assert_eq!(of(json!({"state": "started"})), SandboxState::Running);
        assert!(matches!(of(json!({"state": "pulling_snapshot"})), SandboxState::Starting(_)));
        assert!(matches!(of(json!({"state": "a state of the future"})), SandboxState::Starting(_)));
        let ended = |value| match of(value) {
            SandboxState::Ended(end) => end,
            other => panic!("{other:?}"),
        };
        assert_eq!(ended(json!({"state": "stopped"})), SandboxEnd::Outside("it is stopped".to_owned()));
        assert_eq!(
            ended(json!({"state": "destroyed", "autoDestroyAt": "2025-12-31T00:00:00Z"})),
            SandboxEnd::Lifetime
        );
        assert_eq!(
            ended(json!({"state": "error", "errorReason": "Container ran out of memory"})),
            SandboxEnd::OutOfMemory
        );
        assert_eq!(
            ended(json!({"state": "error", "errorReason": "no runner"})),
            SandboxEnd::Outside("no runner".to_owned())
        );
    }

    #[test]
    fn lifetimes_are_rounded_up_to_minutes() {
        let of = |seconds| minutes(Duration::from_secs(seconds));
        assert_eq!((of(1), of(60), of(61), of(4 * 3600)), (1, 1, 2, 240));
    }
}
