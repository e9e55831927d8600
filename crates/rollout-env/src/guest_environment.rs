//! An environment whose operations are served by a guest over a session: what pods and cloud sandboxes share.

use std::{net::SocketAddr, os::fd::OwnedFd, path::Path};

use async_trait::async_trait;

use crate::{
    environment::{
        CommandUsers, CopyMode, CopyOut, CopyReport, Environment, EnvironmentError, Exec, Exit, Facts,
        FileChange, FileRead, ImageStartup,
    },
    guest::{Guest, GuestSession},
};

/// The pod or sandbox in which a guest runs.
#[async_trait]
pub(crate) trait GuestPlace: Send + Sync + Sized + 'static {
    /// What it is called in messages: `pod`, `sandbox`.
    const KIND: &'static str;

    fn id(&self) -> &str;

    fn facts(&self) -> Facts;

    fn workdir(&self) -> &str;

    fn startup(&self) -> ImageStartup;

    fn cost(&self) -> f64;

    /// The command that removes it if it is left behind.
    fn clean_command(&self) -> String;

    /// Variables of the image that the guest does not have itself.
    fn variables(&self) -> &[(String, String)];

    /// Why it has ended; `None` if it runs, as far as is known.
    async fn why_ended(&self) -> Option<EnvironmentError>;

    async fn set_network(&self, connected: bool) -> Result<(), EnvironmentError>;

    async fn address(&self) -> Result<Option<String>, EnvironmentError>;

    async fn exec_on_terminal(&self, argv: &[&str], terminal: OwnedFd) -> Result<Exit, EnvironmentError>;

    /// Removes it.
    async fn destroy(self) -> Result<(), EnvironmentError>;

    /// Keeps it for the user, and returns its place.
    async fn keep(self) -> Result<String, EnvironmentError>;
}

/// A place with a connected guest. A preserved place was reopened without one.
pub(crate) struct GuestEnvironment<P> {
    place: P,
    guest: Option<(Guest, GuestSession)>,
}

impl<P: GuestPlace> GuestEnvironment<P> {
    pub(crate) fn new(place: P, guest: Guest, session: GuestSession) -> Self {
        Self { place, guest: Some((guest, session)) }
    }

    /// A preserved place.
    pub(crate) fn reopened(place: P) -> Self {
        Self { place, guest: None }
    }

    fn guest(&self) -> Result<&Guest, EnvironmentError> {
        self.guest.as_ref().map(|(guest, _)| guest).ok_or_else(|| {
            EnvironmentError::Lost(format!("a preserved {} can only be opened with a terminal", P::KIND))
        })
    }

    /// Adds the cause to the error of a lost place.
    async fn explain_loss<T>(&self, answer: Result<T, EnvironmentError>) -> Result<T, EnvironmentError> {
        match answer {
            Err(EnvironmentError::Lost(text)) => {
                Err(self.place.why_ended().await.unwrap_or(EnvironmentError::Lost(text)))
            }
            answer => answer,
        }
    }
}

#[async_trait]
impl<P: GuestPlace> Environment for GuestEnvironment<P> {
    fn id(&self) -> &str {
        self.place.id()
    }

    fn facts(&self) -> Facts {
        self.place.facts()
    }

    fn workdir(&self) -> &str {
        self.place.workdir()
    }

    fn startup(&self) -> ImageStartup {
        self.place.startup()
    }

    fn set_users(&self, users: CommandUsers) -> Result<(), EnvironmentError> {
        self.guest()?.set_users(users);
        Ok(())
    }

    async fn set_network(&self, connected: bool) -> Result<(), EnvironmentError> {
        self.place.set_network(connected).await
    }

    async fn address(&self) -> Result<Option<String>, EnvironmentError> {
        self.place.address().await
    }

    async fn copy_to(&self, source: &Path, target: &str, mode: CopyMode) -> Result<(), EnvironmentError> {
        self.explain_loss(self.guest()?.copy_to(source, target, mode).await).await
    }

    async fn write_file(&self, path: &str, content: &[u8]) -> Result<(), EnvironmentError> {
        self.explain_loss(self.guest()?.write_file(path, content).await).await
    }

    async fn copy_from(&self, copy: CopyOut<'_>) -> Result<CopyReport, EnvironmentError> {
        self.explain_loss(self.guest()?.copy_from(copy).await).await
    }

    async fn read_file(&self, path: &str, max_bytes: u64) -> Result<FileRead, EnvironmentError> {
        self.explain_loss(self.guest()?.read_file(path, max_bytes).await).await
    }

    async fn make_dirs(&self, paths: &[&str], empty: bool) -> Result<(), EnvironmentError> {
        self.explain_loss(self.guest()?.make_dirs(paths, empty).await).await
    }

    async fn link(&self, target: &str, link: &str) -> Result<(), EnvironmentError> {
        self.explain_loss(self.guest()?.link(target, link).await).await
    }

    async fn exec(&self, command: Exec<'_>) -> Result<Exit, EnvironmentError> {
        let variables = self.place.variables();
        if variables.is_empty() {
            return self.explain_loss(self.guest()?.exec(command).await).await;
        }
        let env: Vec<_> = variables.iter().chain(command.env).cloned().collect();
        self.explain_loss(self.guest()?.exec(Exec { env: &env, ..command }).await).await
    }

    async fn exec_on_terminal(&self, argv: &[&str], terminal: OwnedFd) -> Result<Exit, EnvironmentError> {
        self.place.exec_on_terminal(argv, terminal).await
    }

    async fn offer(&self, service: SocketAddr) -> Result<u16, EnvironmentError> {
        self.explain_loss(self.guest()?.offer(service).await).await
    }

    async fn snapshot(&self, _key: &str) -> Result<(), EnvironmentError> {
        Err(EnvironmentError::Command(format!(
            "a {} cannot be stored as an image: install the agent in the image of the task instead of \
             `cache_agent_install`",
            P::KIND
        )))
    }

    async fn survivors(&self) -> Result<Vec<String>, EnvironmentError> {
        self.explain_loss(self.guest()?.survivors().await).await
    }

    async fn kill_all(&self) -> Result<(), EnvironmentError> {
        self.explain_loss(self.guest()?.kill_all().await).await
    }

    async fn hold(&self) -> Result<bool, EnvironmentError> {
        self.explain_loss(self.guest()?.hold().await).await.map(|()| true)
    }

    async fn watch(&self, tree: &str, files: &[&str]) -> Result<bool, EnvironmentError> {
        self.explain_loss(self.guest()?.watch(tree, files).await).await.map(|()| true)
    }

    async fn changes(&self) -> Result<Vec<FileChange>, EnvironmentError> {
        self.explain_loss(self.guest()?.changes().await).await
    }

    fn cost(&self) -> f64 {
        self.place.cost()
    }

    fn clean_command(&self) -> String {
        self.place.clean_command()
    }

    async fn destroy(self: Box<Self>) -> Result<(), EnvironmentError> {
        let Self { place, guest } = *self;
        place.destroy().await?;
        if let Some((guest, session)) = guest {
            session.stop();
            guest.finish().await;
        }
        Ok(())
    }

    async fn preserve(self: Box<Self>) -> Result<String, EnvironmentError> {
        let Self { place, guest } = *self;
        let Some((guest, session)) = guest else { return Ok(place.id().to_owned()) };
        guest.stay().await.map_err(|error| EnvironmentError::Teardown(error.to_string()))?;
        let kept = place.keep().await?;
        guest.finish().await;
        drop(session);
        Ok(kept)
    }
}
