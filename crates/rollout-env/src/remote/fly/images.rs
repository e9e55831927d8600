//! The images of tasks: built by the local Docker engine, and pushed to Fly's registry once per content.

use std::collections::BTreeMap;

use bollard::auth::DockerCredentials;
use futures_util::StreamExt as _;
use oci_client::{
    Client, Reference,
    client::{ClientConfig, ClientProtocol},
    secrets::RegistryAuth,
};
use rollout_core::address::is_loopback_host;
use secrecy::ExposeSecret as _;
use serde_json::json;
use tokio::sync::OnceCell;

use super::access::Access;
use crate::{
    docker::{ArchiveBuild, BuiltConfig, TaskImageBuilder, archive_of},
    environment::EnvironmentError,
    host::HostPaths,
    remote::{ImageSource, backend::CloudError, image::write_guest_tar},
};

/// The user name that Fly's registry expects with a token.
const USER: &str = "x";

/// The only platform of Fly's machines.
const PLATFORM: &str = "linux/amd64";

/// The images of a job.
pub(super) struct FlyImages {
    place: HostPaths,
    network: Option<String>,
    builder: OnceCell<TaskImageBuilder>,
}

impl FlyImages {
    /// `network` is the engine's network for builds.
    pub(super) fn new(place: HostPaths, network: Option<String>) -> Self {
        Self { place, network, builder: OnceCell::new() }
    }

    /// Builds and pushes an image of an app, unless the registry has it, and returns its reference.
    pub(super) async fn prepare(
        &self,
        source: &ImageSource,
        app: &str,
        access: &Access,
    ) -> Result<String, CloudError> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(CloudError::Refused(format!(
                "machines of Fly have x86_64 processors, and this build of Rollout has a guest for {}",
                std::env::consts::ARCH
            )));
        }
        let reference = format!("{}/{app}:rollout-{}", access.registry, source.key);
        if !source.force && has(&reference, access).await {
            return Ok(reference);
        }
        let builder = self.builder().await?;
        let copy = source.clone();
        let archive = ArchiveBuild {
            key: &source.key,
            content: archive_of(move |writer| copy.write_task_tar(writer)).boxed(),
            platform: PLATFORM,
            no_cache: source.force,
        };
        let credentials = DockerCredentials {
            username: Some(USER.to_owned()),
            password: Some(access.password().expose_secret().to_owned()),
            serveraddress: Some(access.registry.clone()),
            ..DockerCredentials::default()
        };
        let finish = |base: String, config: BuiltConfig| {
            let text = description(config);
            archive_of(move |writer| write_guest_tar(&base, &text, writer)).boxed()
        };
        let pushed = builder.push_archive(archive, finish, &source.log, &reference, credentials).await;
        pushed.map_err(|error| failure(error, access, source.image.is_some()))?;
        Ok(reference)
    }

    async fn builder(&self) -> Result<&TaskImageBuilder, CloudError> {
        let HostPaths { docker, state_dir, .. } = &self.place;
        let connected = self
            .builder
            .get_or_try_init(|| TaskImageBuilder::connect(docker, state_dir, self.network.clone()));
        connected.await.map_err(|error| {
            CloudError::Refused(format!("images for fly are built by a local Docker engine: {error}"))
        })
    }
}

/// The description of an image that the guest finds inside.
fn description(config: BuiltConfig) -> String {
    let mut env: BTreeMap<&str, &str> =
        config.env.iter().filter_map(|variable| variable.split_once('=')).collect();
    // Engines give it to the commands of images that do not set it.
    env.entry("PATH").or_insert("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    json!({"env": env, "workdir": config.workdir, "user": config.user}).to_string()
}

/// What a failure means. Of an image that a task names, nothing but its fetching can fail in a build.
fn failure(error: EnvironmentError, access: &Access, is_named: bool) -> CloudError {
    let text = access.without_token(&error.to_string());
    match error {
        EnvironmentError::Build(_) if is_named => CloudError::NoImage(text),
        EnvironmentError::BuildNetwork(_) if is_named => CloudError::Busy { text, retry_after: None },
        EnvironmentError::Build(_) | EnvironmentError::BuildNetwork(_) => CloudError::Build(text),
        EnvironmentError::NoImage(_) => CloudError::NoImage(text),
        EnvironmentError::Pull(_) if text.contains("denied") || text.contains("unauthorized") => {
            CloudError::Unauthorized(text)
        }
        EnvironmentError::Pull(_) | EnvironmentError::Start(_) => {
            CloudError::Busy { text, retry_after: None }
        }
        _ => CloudError::Refused(text),
    }
}

/// Whether the registry has an image. Errors count as no: the push then fails with its own message.
async fn has(image: &str, access: &Access) -> bool {
    let Ok(reference) = image.parse::<Reference>() else { return false };
    let plain = if is_loopback_host(&access.registry) { vec![access.registry.clone()] } else { Vec::new() };
    let client = Client::new(ClientConfig {
        protocol: ClientProtocol::HttpsExcept(plain),
        user_agent: concat!("rollout/", env!("CARGO_PKG_VERSION")),
        ..ClientConfig::default()
    });
    let auth = RegistryAuth::Basic(USER.to_owned(), access.password().expose_secret().to_owned());
    client.fetch_manifest_digest(&reference, &auth).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_described_as_the_engine_would_run_it() {
        let config = BuiltConfig {
            env: vec!["A=b=c".to_owned()],
            workdir: "/app".to_owned(),
            user: "no-such-user".to_owned(),
        };
        let text: serde_json::Value = serde_json::from_str(&description(config)).unwrap();
        assert_eq!((&text["env"]["A"], &text["workdir"]), (&json!("b=c"), &json!("/app")));
        assert_eq!(text["user"], "no-such-user");
        assert!(text["env"]["PATH"].as_str().unwrap().ends_with(":/bin"));
    }
}
