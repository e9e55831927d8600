//! The Fly backend: a machine per trial, in one app, with its guest behind the app's TLS service.
//!
//! The local Docker engine builds images, and pushes them to Fly's registry. Fly does not end a machine after a time, so
//! the guest does, and Fly destroys the machine of a guest that has ended.

mod access;
mod api;
mod app;
mod dial;
mod images;
mod machine;
mod settings;
mod size;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use reqwest::{Client, Method};
use serde_json::json;
use tokio::sync::OnceCell;

pub(crate) use self::settings::Settings;
use self::{
    access::{Access, VENDOR},
    api::Api,
    images::FlyImages,
    machine::{GUEST_PORT, Machine, creation},
};
use super::{
    Backend, CloudConnectError, CloudError, CloudImage, CloudSandbox, ImageSource, KEPT, KEY, MANAGED,
    PlaceSettings, Remote, SandboxPlan, SandboxSize, SandboxState, Wanted,
};
use crate::{
    environment::Demand,
    guest::{DialError, GuestStream},
    host::HostPaths,
};

/// Connects with the settings of a job.
pub(crate) async fn connect(settings: Settings, place: &HostPaths) -> Result<Remote, CloudConnectError> {
    let (times, user) = (settings.times(), settings.user.clone());
    let shared = Shared::new(settings, place)?;
    let open = || -> Box<dyn Backend> { Box::new(Fly::new(Arc::clone(&shared))) };
    Remote::start(VENDOR, &place.state_dir, times, user, false, open).await
}

/// A place in the user's account; `None` without credentials.
pub(super) fn account(
    host: &HostPaths,
    place: &PlaceSettings,
) -> Option<Result<Box<dyn Backend>, CloudConnectError>> {
    match Shared::new(Settings::of_place(place), host) {
        Ok(shared) => Some(Ok(Box::new(Fly::new(shared)))),
        Err(CloudConnectError::NoCredentials { .. }) => None,
        Err(error) => Some(Err(error)),
    }
}

/// What all clients of a job share.
struct Shared {
    settings: Settings,
    access: Access,
    images: FlyImages,
    /// The app, once it is known that it can be used.
    app: OnceCell<String>,
}

impl Shared {
    fn new(settings: Settings, place: &HostPaths) -> Result<Arc<Self>, CloudConnectError> {
        let access = Access::find(&place.clouds)?;
        let images = FlyImages::new(place.clone(), settings.build_network.clone());
        Ok(Arc::new(Self { settings, access, images, app: OnceCell::new() }))
    }

    fn app_name(&self) -> Option<&str> {
        self.settings.app.as_deref().or(self.access.app.as_deref())
    }

    fn org(&self) -> &str {
        self.settings.org.as_deref().or(self.access.org.as_deref()).unwrap_or("personal")
    }

    fn region(&self) -> Option<&str> {
        self.settings.region.as_deref().or(self.access.region.as_deref())
    }
}

/// A client of Fly.
struct Fly {
    shared: Arc<Shared>,
    api: Api,
    sockets: Client,
}

impl Fly {
    fn new(shared: Arc<Shared>) -> Self {
        let api = Api::new(shared.access.clone());
        Self { shared, api, sockets: dial::client() }
    }

    /// The app, which is created if it does not exist.
    async fn app(&self) -> Result<&str, CloudError> {
        let Shared { app, .. } = &*self.shared;
        let found = app.get_or_try_init(|| app::ensure(&self.api, self.shared.app_name(), self.shared.org()));
        found.await.map(String::as_str)
    }

    /// The app, if it exists.
    async fn known_app(&self) -> Result<Option<String>, CloudError> {
        match self.shared.app.get() {
            Some(app) => Ok(Some(app.clone())),
            None => app::find(&self.api, self.shared.app_name(), self.shared.org()).await,
        }
    }

    /// The path of the app's machines, or of one of them.
    async fn machines(&self, id: Option<&str>) -> Result<String, CloudError> {
        let app = self.known_app().await?;
        let app = app.ok_or_else(|| CloudError::Missing("there is no app at Fly".to_owned()))?;
        Ok(match id {
            Some(id) => format!("/apps/{app}/machines/{id}"),
            None => format!("/apps/{app}/machines"),
        })
    }

    /// The machines with a label that are not destroyed.
    async fn labelled(&self, label: &str, value: &str) -> Result<Vec<Machine>, CloudError> {
        let key = format!("metadata.{label}");
        let path = self.machines(None).await?;
        let found: Vec<Machine> = self.api.call(Method::GET, &path, &[(&key, value)], None).await?;
        Ok(found.into_iter().filter(Machine::is_active).collect())
    }
}

#[async_trait]
impl Backend for Fly {
    fn description(&self) -> String {
        let app = self.shared.app.get().map(String::as_str).or(self.shared.app_name());
        let app =
            app.map_or_else(|| format!("organization {}", self.shared.org()), |app| format!("app {app}"));
        match self.shared.region() {
            Some(region) => format!("{app} in {region}"),
            None => app,
        }
    }

    /// An app without a name is searched in the organization.
    fn place(&self) -> PlaceSettings {
        let (key, name) = match self.shared.app_name() {
            Some(app) => ("app", app),
            None => ("org", self.shared.org()),
        };
        PlaceSettings::from_iter([(key.to_owned(), json!(name))])
    }

    async fn check(&self) -> Result<(), CloudError> {
        self.known_app().await.map(drop)
    }

    fn refusal(&self, demand: Demand) -> Option<String> {
        let reason = match demand {
            Demand::Gpus => "the fly provider does not support GPUs",
            Demand::NoNetwork | Demand::NetworkChanges | Demand::Allowlist => {
                "Fly cannot remove the network of a machine: its policies do not cover connections through its proxy"
            }
            Demand::Compose | Demand::Privileged | Demand::ImageStartup => {
                "it runs one machine without privileges"
            }
        };
        Some(format!("fly does not support {demand}: {reason}"))
    }

    fn size(&self, wanted: Wanted) -> Result<SandboxSize, String> {
        self.shared.settings.cpu_kind.size(wanted)
    }

    fn price(&self, size: SandboxSize) -> f64 {
        self.shared.settings.cpu_kind.price(size, &self.shared.settings)
    }

    fn max_lifetime(&self) -> Duration {
        Duration::MAX
    }

    fn creation_interval(&self) -> Duration {
        Duration::from_secs_f64(1.0 / self.shared.settings.creations_per_second)
    }

    fn shell_command(&self, id: &str) -> String {
        match self.shared.app.get().map(String::as_str).or(self.shared.app_name()) {
            Some(app) => format!("fly ssh console --app {app} --machine {id}"),
            None => format!("fly ssh console --machine {id}"),
        }
    }

    async fn image(&self, source: &ImageSource) -> Result<CloudImage, CloudError> {
        let app = self.app().await?;
        let reference = self.shared.images.prepare(source, app, self.api.access()).await?;
        Ok(CloudImage { reference })
    }

    async fn create(&self, plan: &SandboxPlan) -> Result<String, CloudError> {
        let app = self.app().await?;
        let body = creation(plan, self.shared.region(), self.shared.settings.cpu_kind, GUEST_PORT);
        let path = format!("/apps/{app}/machines");
        let machine: Machine = self.api.call(Method::POST, &path, &[], Some(&body)).await?;
        Ok(machine.id)
    }

    async fn find(&self, key: &str) -> Result<Option<String>, CloudError> {
        Ok(self.labelled(KEY, key).await?.into_iter().next().map(|machine| machine.id))
    }

    async fn state(&self, id: &str) -> Result<SandboxState, CloudError> {
        let path = self.machines(Some(id)).await?;
        let machine: Machine = self.api.call(Method::GET, &path, &[], None).await?;
        Ok(machine.state())
    }

    async fn dial(&self, id: &str, plan: &SandboxPlan) -> Result<GuestStream, DialError> {
        let app = self.app().await.map_err(|error| DialError::Temporary(error.to_string()))?;
        let url = self.shared.settings.url.clone().unwrap_or_else(|| format!("https://{app}.fly.dev"));
        let reason = match dial::open(&self.sockets, &url, id, &plan.token).await {
            Ok(stream) => return Ok(stream),
            Err(reason) => reason,
        };
        match self.state(id).await {
            Ok(SandboxState::Ended(_)) | Err(CloudError::Missing(_)) => {
                Err(DialError::Gone(format!("the machine {id} has ended")))
            }
            _ => Err(DialError::Temporary(reason)),
        }
    }

    async fn delete(&self, id: &str) -> Result<(), CloudError> {
        let path = self.machines(Some(id)).await?;
        self.api.order(Method::DELETE, &path, &[("force", "true")], None).await
    }

    async fn list(&self) -> Result<Vec<CloudSandbox>, CloudError> {
        if self.known_app().await?.is_none() {
            return Ok(Vec::new());
        }
        let machines = self.labelled(MANAGED, "true").await?;
        Ok(machines
            .into_iter()
            .map(|machine| CloudSandbox { id: machine.id.clone(), labels: machine.labels() })
            .collect())
    }

    async fn keep(&self, id: &str) -> Result<(), CloudError> {
        let path = format!("{}/metadata/{KEPT}", self.machines(Some(id)).await?);
        self.api.order(Method::POST, &path, &[], Some(&json!({"value": "true"}))).await
    }
}
