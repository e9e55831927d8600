//! A running sandbox, controlled through its guest.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use rollout_guest::KillScope;
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};

use super::{
    Cloud,
    backend::{CloudError, SandboxEnd, SandboxPlan, SandboxState},
    desk::{CLEAN_COMMAND, OwnedSandbox, is_temporary},
    image::DESCRIPTION,
};
use crate::{
    environment::{EnvironmentError, Exit, Facts, FileRead, ImageStartup, StartReport},
    guest::{Dial, DialError, Guest, GuestSession, GuestStream},
    guest_environment::{GuestEnvironment, GuestPlace},
};

/// How long a vendor may take to report the end of a sandbox whose guest has gone.
const END_PATIENCE: Duration = Duration::from_secs(15);

/// The interval of the polls meanwhile, and while a sandbox starts.
const POLL: Duration = Duration::from_millis(500);

/// How much earlier than the end of its lifetime a sandbox may end because of it.
const LIFETIME_TOLERANCE: Duration = Duration::from_secs(2);

/// How long one question may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest description of an image.
const MAX_DESCRIPTION: u64 = 1 << 20;

/// What a build recorded of its image.
#[derive(Debug, Default, Deserialize)]
struct ImageDescription {
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    workdir: String,
    /// As `uid:gid`.
    #[serde(default)]
    user: Option<String>,
}

/// A running sandbox.
pub(super) struct RemoteSandbox {
    /// `None` in a reopened sandbox. Dropped before the cloud, whose last owner waits until every sandbox is dropped.
    owned: Option<OwnedSandbox>,
    cloud: Arc<Cloud>,
    id: String,
    workdir: String,
    variables: Vec<(String, String)>,
    facts: Facts,
    life: Life,
    /// Dollars per second.
    price: f64,
    since: Instant,
}

/// What is known here of the life of a sandbox.
#[derive(Clone, Default)]
struct Life {
    /// Processes inside have ended the guest.
    was_killed: Arc<AtomicBool>,
    /// When the vendor ends it at the latest, and its lifetime.
    end: Option<(Instant, Duration)>,
}

impl Life {
    /// The error for a sandbox that is gone, if its lifetime is over. Vendors do not always say why.
    fn time_over(&self, id: &str, is_reported: bool) -> Option<EnvironmentError> {
        let (end, lifetime) = self.end?;
        (is_reported || Instant::now() + LIFETIME_TOLERANCE >= end).then(|| {
            EnvironmentError::TimeOver(format!(
                "the lifetime of the sandbox {id} has expired ({} seconds). Set a larger `lifetime_sec` in \
                 provider_config, if the vendor allows it, or lower the timeouts of the task",
                lifetime.as_secs()
            ))
        })
    }
}

/// Opens connections to the guest of a sandbox.
struct SandboxDial {
    cloud: Arc<Cloud>,
    id: String,
    plan: Arc<SandboxPlan>,
    /// When the current outage began.
    outage: Mutex<Option<Instant>>,
    was_killed: Arc<AtomicBool>,
}

#[async_trait]
impl Dial for SandboxDial {
    async fn dial(&self) -> Result<GuestStream, DialError> {
        let dialled = self.cloud.backend.dial(&self.id, &self.plan).await;
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        match &dialled {
            Ok(_) => *outage = None,
            Err(DialError::Temporary(_)) => {
                outage.get_or_insert_with(Instant::now);
            }
            // A guest ends itself only after a long outage.
            Err(DialError::Gone(_)) if outage.is_none_or(|since| since.elapsed() < self.plan.grace / 2) => {
                self.was_killed.store(true, Ordering::Relaxed);
            }
            Err(DialError::Gone(_)) => {}
        }
        drop(outage);
        dialled
    }
}

impl RemoteSandbox {
    /// Waits until a sandbox runs and its guest answers. Commands run as `user`, or as the user of the image.
    pub(super) async fn start(
        cloud: Arc<Cloud>,
        owned: OwnedSandbox,
        plan: Arc<SandboxPlan>,
        (user, workdir): (Option<String>, Option<&str>),
        mut facts: Facts,
        until: Instant,
        waits: Option<&dyn StartReport>,
    ) -> Result<GuestEnvironment<Self>, EnvironmentError> {
        let since = Instant::now();
        let id = owned.id().to_owned();
        await_start(&cloud, &id, until, waits).await?;
        let end = owned.began().checked_add(plan.lifetime).map(|end| (end, plan.lifetime));
        let life = Life { was_killed: Arc::default(), end };
        let dial = SandboxDial {
            cloud: Arc::clone(&cloud),
            id: id.clone(),
            plan: Arc::clone(&plan),
            outage: Mutex::default(),
            was_killed: Arc::clone(&life.was_killed),
        };
        let failed =
            |error: std::io::Error| EnvironmentError::Start(format!("cannot start a session: {error}"));
        let (session, reader, writer) = GuestSession::open(dial, plan.grace).map_err(failed)?;
        let connected = tokio::time::timeout_at(until, Guest::connect(reader, writer, None)).await;
        let error = match connected {
            Ok(Ok(guest)) => {
                let described = describe(&guest).await?;
                // Says which promise holds about processes that are killed.
                facts.enforced["killed"] = match guest.kill_scope() {
                    KillScope::Namespace => "all processes",
                    KillScope::Descendants => "descendants of the guest",
                }
                .into();
                let user = user.or(described.user).filter(|user| !user.is_empty());
                let guest = guest.with_outage(plan.grace).with_user(user);
                let workdir = workdir.map_or(described.workdir, str::to_owned);
                let place = Self {
                    owned: Some(owned),
                    price: cloud.backend.price(plan.size),
                    cloud,
                    id,
                    workdir: if workdir.is_empty() { "/".to_owned() } else { workdir },
                    variables: described.env.into_iter().collect(),
                    facts,
                    life,
                    since,
                };
                return Ok(GuestEnvironment::new(place, guest, session));
            }
            Ok(Err(error)) => why_ended(&cloud, &id, &life).await.unwrap_or(error),
            Err(_) => EnvironmentError::Start("it was not reached in time".to_owned()),
        };
        Err(EnvironmentError::Start(format!("the sandbox {id} runs, but its guest does not answer: {error}")))
    }

    /// Opens a preserved sandbox.
    pub(super) async fn reopen(
        cloud: Arc<Cloud>,
        id: &str,
    ) -> Result<GuestEnvironment<Self>, EnvironmentError> {
        let gone = |why: String| EnvironmentError::Start(format!("cannot open the sandbox {id}: {why}"));
        match cloud.backend.state(id).await {
            Ok(SandboxState::Ended(end)) => return Err(gone(words(&end))),
            Ok(_) => {}
            Err(error) => return Err(gone(error.to_string())),
        }
        Ok(GuestEnvironment::reopened(Self {
            owned: None,
            cloud,
            id: id.to_owned(),
            workdir: "/".to_owned(),
            variables: Vec::new(),
            facts: Facts { network: String::new(), enforced: serde_json::Value::Null },
            life: Life::default(),
            price: 0.0,
            since: Instant::now(),
        }))
    }
}

/// Waits until a sandbox runs.
async fn await_start(
    cloud: &Cloud,
    id: &str,
    until: Instant,
    waits: Option<&dyn StartReport>,
) -> Result<(), EnvironmentError> {
    let mut reported = String::new();
    loop {
        let reason = match timeout(CALL_TIMEOUT, cloud.backend.state(id)).await {
            Ok(Ok(SandboxState::Running)) => return Ok(()),
            Ok(Ok(SandboxState::Starting(what))) => what,
            Ok(Ok(SandboxState::Ended(end))) => {
                let text = format!("the sandbox {id} ended while it was started: {}", words(&end));
                return Err(EnvironmentError::Start(text));
            }
            Ok(Err(error)) if !is_temporary(&error) => {
                return Err(EnvironmentError::Start(format!("cannot look up the sandbox {id}: {error}")));
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the vendor does not answer".to_owned(),
        };
        if Instant::now() + POLL > until {
            let text = format!("the sandbox {id} did not start in time: {reason}");
            return Err(EnvironmentError::Start(text));
        }
        if reason != reported {
            if let Some(waits) = waits {
                waits.waits_for(&format!("the start of its sandbox: {reason}"));
            }
            reported = reason;
        }
        sleep(POLL).await;
    }
}

/// Reads what the build recorded of the image. Nothing of the task has run yet.
async fn describe(guest: &Guest) -> Result<ImageDescription, EnvironmentError> {
    match guest.read_file(DESCRIPTION, MAX_DESCRIPTION).await? {
        FileRead::Content(text) => serde_json::from_slice(&text).map_err(|error| {
            EnvironmentError::Start(format!("{DESCRIPTION} of the image is invalid: {error}"))
        }),
        FileRead::Missing => Ok(ImageDescription::default()),
        FileRead::NotRegular | FileRead::TooLarge(_) => {
            Err(EnvironmentError::Start(format!("{DESCRIPTION} of the image is not a small file")))
        }
    }
}

fn words(end: &SandboxEnd) -> String {
    match end {
        SandboxEnd::Lifetime => "its lifetime was over".to_owned(),
        SandboxEnd::OutOfMemory => "its processes used up its memory".to_owned(),
        SandboxEnd::Exited(text) | SandboxEnd::Outside(text) => text.clone(),
    }
}

/// Why a sandbox does not run, or its guest does not; `None` if both do, as far as is known.
async fn why_ended(cloud: &Cloud, id: &str, life: &Life) -> Option<EnvironmentError> {
    let patience = Instant::now() + END_PATIENCE;
    loop {
        let state = timeout(CALL_TIMEOUT, cloud.backend.state(id)).await;
        match state {
            Ok(Ok(SandboxState::Ended(SandboxEnd::OutOfMemory))) => {
                return Some(EnvironmentError::Ended(format!(
                    "the sandbox {id} has ended: {}",
                    words(&SandboxEnd::OutOfMemory)
                )));
            }
            Ok(Ok(SandboxState::Ended(SandboxEnd::Exited(text)))) => {
                return Some(EnvironmentError::Ended(format!("the sandbox {id} has ended: {text}")));
            }
            Ok(Ok(SandboxState::Ended(end))) => {
                let lost = || EnvironmentError::Lost(format!("the sandbox {id} has ended: {}", words(&end)));
                return Some(life.time_over(id, end == SandboxEnd::Lifetime).unwrap_or_else(lost));
            }
            Ok(Err(CloudError::Missing(_))) => {
                let lost = || EnvironmentError::Lost(format!("the sandbox {id} no longer exists"));
                return Some(life.time_over(id, false).unwrap_or_else(lost));
            }
            _ if Instant::now() > patience => {
                return life.was_killed.load(Ordering::Relaxed).then(|| {
                    let text = format!("processes inside the sandbox {id} have ended its guest");
                    EnvironmentError::Ended(text)
                });
            }
            _ => sleep(POLL).await,
        }
    }
}

#[async_trait]
impl GuestPlace for RemoteSandbox {
    const KIND: &'static str = "sandbox";

    fn id(&self) -> &str {
        &self.id
    }

    fn facts(&self) -> Facts {
        self.facts.clone()
    }

    fn workdir(&self) -> &str {
        &self.workdir
    }

    fn startup(&self) -> ImageStartup {
        ImageStartup::default()
    }

    fn cost(&self) -> f64 {
        self.price * self.since.elapsed().as_secs_f64()
    }

    fn clean_command(&self) -> String {
        CLEAN_COMMAND.to_owned()
    }

    fn variables(&self) -> &[(String, String)] {
        &self.variables
    }

    async fn why_ended(&self) -> Option<EnvironmentError> {
        why_ended(&self.cloud, &self.id, &self.life).await
    }

    async fn set_network(&self, connected: bool) -> Result<(), EnvironmentError> {
        let set = self.cloud.backend.set_network(&self.id, connected).await;
        set.map_err(|error| {
            EnvironmentError::Lost(format!("cannot change the network of the sandbox: {error}"))
        })
    }

    async fn address(&self) -> Result<Option<String>, EnvironmentError> {
        Ok(None)
    }

    async fn exec_on_terminal(&self, _argv: &[&str], _terminal: OwnedFd) -> Result<Exit, EnvironmentError> {
        Err(EnvironmentError::Command(format!(
            "`rollout attach` cannot open a shell in the sandbox {} at {}; run: {}",
            self.id,
            self.cloud.name,
            self.cloud.backend.shell_command(&self.id)
        )))
    }

    async fn destroy(self) -> Result<(), EnvironmentError> {
        match self.owned {
            Some(owned) => owned.delete().await,
            None => self.cloud.desk.delete(&self.id).await,
        }
    }

    async fn keep(self) -> Result<String, EnvironmentError> {
        let Self { owned, cloud, id, .. } = self;
        cloud.backend.keep(&id).await.map_err(|error| {
            EnvironmentError::Teardown(format!("cannot preserve the sandbox {id}: {error}"))
        })?;
        if let Some(owned) = owned {
            owned.release();
        }
        Ok(id)
    }
}
