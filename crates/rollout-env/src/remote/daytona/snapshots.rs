//! Images of Daytona: snapshots that it builds from a Dockerfile and an uploaded context.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use reqwest::{Method, RequestBuilder};
use rollout_core::text::hex;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{runtime::Handle, time::sleep};

use super::{
    super::{CloudError, ImageSource, SandboxSize, added_archive},
    api::Api,
    storage::{Archive, PushAccess},
};
use crate::blocking::blocking;

/// The archive with the guest, in the context.
const GUEST_ARCHIVE: &str = ".rollout.tar";

/// The interval of the polls while a snapshot is built.
const POLL: Duration = Duration::from_secs(1);

/// The lines of a build log that an error shows.
const LOG_LINES: usize = 30;

/// What a snapshot is built from.
#[derive(Debug, Clone)]
pub(super) struct SnapshotBuild {
    dockerfile: String,
    /// The name of the context in the storage.
    context: String,
    log: PathBuf,
    /// The task names an image instead of a Dockerfile.
    is_pull: bool,
}

/// A snapshot, as far as it matters.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SnapshotAnswer {
    id: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    error_reason: Option<String>,
}

impl SnapshotBuild {
    /// Uploads the context of an image, if the storage does not have it. `nonce` makes the build a new one.
    pub(super) async fn upload(
        api: &Api,
        source: &ImageSource,
        nonce: Option<&str>,
    ) -> Result<Self, CloudError> {
        let access = PushAccess::get(api).await?;
        if !access.has(api, &source.key).await? {
            let local =
                |error: io::Error| CloudError::Build(format!("cannot pack the build context: {error}"));
            let file = tempfile::NamedTempFile::new().map_err(local)?;
            let content = source.clone();
            // The work owns the file, because it may begin after its caller has ended.
            let (file, size, sha256) = blocking(move || {
                let (size, sha256) = pack(&content, file.path())?;
                Ok((file, size, sha256))
            })
            .await
            .map_err(local)?;
            refuse_links(file.path()).await?;
            access.put(api, &source.key, &Archive { path: file.path(), size, sha256 }).await?;
        }
        let mut dockerfile = source.dockerfile_with_archive(GUEST_ARCHIVE);
        if let Some(nonce) = nonce {
            dockerfile.push_str(&format!("# build {nonce}\n"));
        }
        Ok(Self {
            dockerfile,
            context: source.key.clone(),
            log: source.log.clone(),
            is_pull: source.image.is_some(),
        })
    }

    /// Builds the snapshot of a name and size, or waits until another process has built it. If the future is dropped, the
    /// build is ended.
    pub(super) async fn ensure(
        &self,
        api: &Api,
        name: &str,
        size: SandboxSize,
        target: Option<&str>,
    ) -> Result<(), CloudError> {
        let mut guard = BuildGuard(None);
        let built = self.follow(api, name, size, target, &mut guard).await;
        guard.0 = None;
        built
    }

    async fn follow(
        &self,
        api: &Api,
        name: &str,
        size: SandboxSize,
        target: Option<&str>,
        guard: &mut BuildGuard,
    ) -> Result<(), CloudError> {
        let path = format!("/snapshots/{name}");
        let (mut is_first, mut was_built) = (true, false);
        loop {
            let found: Option<SnapshotAnswer> = match api.get(&path).await {
                Ok(found) => Some(found),
                Err(CloudError::Missing(_)) => None,
                Err(error) => return Err(error),
            };
            let was_first = std::mem::replace(&mut is_first, false);
            match found {
                None => {
                    if let Some(created) = self.create(api, name, size, target).await? {
                        let path = format!("/snapshots/{}", created.id);
                        guard.0 = Some(api.request(Method::DELETE, &path));
                        was_built = true;
                    }
                }
                Some(snapshot) => match snapshot.state.as_str() {
                    "active" => {
                        if was_built {
                            self.write_log(&build_log(api, &snapshot.id).await.unwrap_or_default());
                        }
                        return Ok(());
                    }
                    // Daytona puts snapshots away that were not used for some weeks.
                    "inactive" => {
                        let what = format!("POST /snapshots/{}/activate", snapshot.id);
                        let request =
                            api.request(Method::POST, &format!("/snapshots/{}/activate", snapshot.id));
                        // Another process may have asked for it.
                        let _: Option<Value> = api.create(request, &what).await?;
                    }
                    // Left by an earlier job, whose reasons may be over.
                    "error" | "build_failed" if was_first => {
                        let request = api.request(Method::DELETE, &format!("/snapshots/{}", snapshot.id));
                        match api.send(request, &format!("DELETE /snapshots/{}", snapshot.id)).await {
                            Ok(_) | Err(CloudError::Missing(_)) => continue,
                            Err(error) => return Err(error),
                        }
                    }
                    "error" | "build_failed" => return Err(self.failure(api, &snapshot).await),
                    state => tracing::debug!(snapshot = name, state, "waiting for a snapshot"),
                },
            }
            sleep(POLL).await;
        }
    }

    /// Starts a build; `None` if another process has done so meanwhile.
    async fn create(
        &self,
        api: &Api,
        name: &str,
        size: SandboxSize,
        target: Option<&str>,
    ) -> Result<Option<SnapshotAnswer>, CloudError> {
        let mut body = json!({
            "name": name,
            "buildInfo": {"dockerfileContent": self.dockerfile, "contextHashes": [self.context]},
            "cpu": size.cpu_millis / 1000,
            "memory": size.memory_mib >> 10,
            "disk": size.storage_mib.unwrap_or_default() >> 10,
        });
        if let Some(target) = target {
            body["regionId"] = target.into();
        }
        let request = api.request(Method::POST, "/snapshots").json(&body);
        api.create(request, "POST /snapshots").await
    }

    /// Why a build failed, with the end of its log.
    async fn failure(&self, api: &Api, snapshot: &SnapshotAnswer) -> CloudError {
        let reason = snapshot.error_reason.as_deref().unwrap_or("Daytona names no reason");
        let log = build_log(api, &snapshot.id).await.unwrap_or_default();
        let text = if log.is_empty() { reason.to_owned() } else { log.clone() };
        self.write_log(&text);
        let lines: Vec<&str> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
        let text = if end.is_empty() || reason.contains(&end) {
            reason.to_owned()
        } else {
            format!("{end}\n{reason}")
        };
        if self.is_pull && is_missing_image(&text) {
            CloudError::NoImage(text)
        } else {
            CloudError::Build(text)
        }
    }

    /// Appends to the log. An error of this machine's disk must not fail a build.
    fn write_log(&self, text: &str) {
        if let Err(error) = append(&self.log, text) {
            tracing::warn!(path = %self.log.display(), %error, "cannot write the build log");
        }
    }
}

/// Ends a build when it is dropped.
struct BuildGuard(Option<RequestBuilder>);

impl Drop for BuildGuard {
    fn drop(&mut self) {
        if let (Some(request), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(request.send());
        }
    }
}

/// The log of a build.
async fn build_log(api: &Api, id: &str) -> Result<String, CloudError> {
    #[derive(Deserialize)]
    struct Address {
        url: String,
    }
    let address: Address = api.get(&format!("/snapshots/{id}/build-logs-url")).await?;
    api.text(api.request_to(Method::GET, &address.url), "GET the build log").await
}

/// Appends to the log of a build, whose directory may be missing.
fn append(path: &Path, text: &str) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let mut file = File::options().create(true).append(true).open(path)?;
    writeln!(file, "{}", text.trim_end())
}

/// Whether a builder could not find the image that a Dockerfile begins with, or may not pull it.
fn is_missing_image(text: &str) -> bool {
    let text = text.to_lowercase();
    text.contains("pull access denied")
        || text.contains("manifest unknown")
        || (text.contains("failed to resolve source metadata") && text.contains("not found"))
}

/// Writes the context as a tar archive, and returns its size and hash.
///
/// The last public release of Daytona's builder drops the directories of a context, and the modes with them. So the guest
/// comes as an archive in the archive.
fn pack(source: &ImageSource, path: &Path) -> io::Result<(u64, String)> {
    let mut archive = tar::Builder::new(Hashed { file: File::create(path)?, hasher: Sha256::new(), size: 0 });
    if let Some(context) = &source.context {
        let ours = ["Dockerfile", ".dockerignore"].map(Path::new);
        context.append_to(&mut archive, |path| !ours.contains(&path))?;
    }
    let guest = added_archive()?;
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(guest.len() as u64);
    archive.append_data(&mut header, GUEST_ARCHIVE, guest.as_slice())?;
    let Hashed { mut file, hasher, size } = archive.into_inner()?;
    file.flush()?;
    Ok((size, hex(&hasher.finalize())))
}

/// A file whose content is hashed while it is written.
struct Hashed {
    file: File,
    hasher: Sha256,
    size: u64,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Refuses a context with symbolic links: the last public release of Daytona's builder replaces them by empty files.
async fn refuse_links(path: &Path) -> Result<(), CloudError> {
    let path = path.to_owned();
    let found = blocking(move || -> io::Result<Option<String>> {
        let mut archive = tar::Archive::new(File::open(path)?);
        for entry in archive.entries()? {
            let entry = entry?;
            if entry.header().entry_type().is_symlink() {
                return Ok(Some(entry.path()?.display().to_string()));
            }
        }
        Ok(None)
    });
    match found.await {
        Ok(None) => Ok(()),
        Ok(Some(link)) => Err(CloudError::Build(format!(
            "the build context has the symbolic link {link}, which Daytona replaces by an empty file; list it in \
             .dockerignore, or create it with RUN"
        ))),
        Err(error) => Err(CloudError::Build(format!("cannot read the build context: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_base_images_are_recognized() {
        for (text, is_missing) in [
            ("ERROR: docker.io/library/x:1: failed to resolve source metadata for x:1: not found", true),
            ("pull access denied for x, repository does not exist or may require 'docker login'", true),
            ("manifest for x:1 not found: manifest unknown", true),
            ("process \"/bin/sh -c exit 1\" did not complete successfully: exit code: 1", false),
            ("sh: foo: not found", false),
        ] {
            assert_eq!(is_missing_image(text), is_missing, "{text}");
        }
    }
}
