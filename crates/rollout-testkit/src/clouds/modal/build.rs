//! Images: files that clients upload, and builds from the commands of Dockerfiles.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{Stream, stream};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tonic::Status;

use super::{
    messages::{
        BlobAnswer, BlobCreate, FAILURE, GenericResult, Hashes, Image, ImageAnswer, ImageGetOrCreate,
        ImageJoin, ImageJoinAnswer, MountGetOrCreate, MountPutFile, MountPutFileAnswer, SUCCESS,
        SecretAnswer, SecretGetOrCreate, SecretMetadata, TERMINATED, Text, Urls,
    },
    state::{ModalState, lock},
};

/// Images whose names contain this need credentials.
const PRIVATE: &str = "private";

/// The number of static credentials among the kinds.
const STATIC: i32 = 4;

/// Files of this size must be uploaded separately.
const LARGE: usize = 4 << 20;

/// A build ends when no client has waited for it for this time.
const AWAY: Duration = Duration::from_secs(2);

/// The version of the builder of all environments.
pub(super) const BUILDER: &str = "2025.06";

/// A build.
pub(super) struct Build {
    image: Image,
    log: Mutex<String>,
    result: watch::Sender<Option<GenericResult>>,
    /// The clients that wait for it.
    followers: watch::Sender<usize>,
}

/// A client that waits for a build.
struct Follower(Arc<Build>);

impl Follower {
    fn new(build: Arc<Build>) -> Self {
        build.followers.send_modify(|count| *count += 1);
        Self(build)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.followers.send_modify(|count| *count -= 1);
    }
}

impl Build {
    /// Returns when all clients that waited are gone. They come back at once if only the time of a call is over.
    async fn abandoned(&self) {
        let mut followers = self.followers.subscribe();
        // The sender is a part of `self`.
        let _ = followers.wait_for(|count| *count > 0).await;
        loop {
            let _ = followers.wait_for(|count| *count == 0).await;
            let back = followers.wait_for(|count| *count > 0);
            if tokio::time::timeout(AWAY, back).await.is_err() {
                return;
            }
        }
    }
}

impl ModalState {
    pub(super) fn secret(&self, request: &SecretGetOrCreate) -> Result<SecretAnswer, Status> {
        let known = self.known();
        let keys = known.secrets.get(&request.name);
        let keys = keys.ok_or_else(|| Status::not_found(format!("Secret {} not found", request.name)))?;
        let metadata = SecretMetadata { keys: keys.clone() };
        Ok(SecretAnswer { id: format!("st-{}", request.name), metadata: Some(metadata) })
    }

    pub(super) fn missing(&self, request: Hashes) -> Hashes {
        let known = self.known();
        Hashes { hashes: request.hashes.into_iter().filter(|hash| !known.files.contains_key(hash)).collect() }
    }

    pub(super) fn put_file(&self, request: MountPutFile) -> Result<MountPutFileAnswer, Status> {
        let mut known = self.known();
        let data = if request.blob_id.is_empty() {
            if request.data.len() >= LARGE {
                return Err(Status::invalid_argument("the file is too large for a request"));
            }
            request.data
        } else {
            let blob = known.blobs.get(&request.blob_id).and_then(|(_, content)| content.clone());
            blob.ok_or_else(|| Status::not_found("the blob was not uploaded"))?
        };
        if hex(&Sha256::digest(&data)) != request.sha256_hex {
            return Err(Status::invalid_argument("the file does not have this hash"));
        }
        known.files.insert(request.sha256_hex, data);
        Ok(MountPutFileAnswer { exists: true })
    }

    pub(super) fn create_blob(&self, request: BlobCreate) -> Result<BlobAnswer, Status> {
        if request.length < LARGE as i64 {
            return Err(Status::invalid_argument("the file is small"));
        }
        let id = self.id("bl");
        self.known().blobs.insert(id.clone(), (request.md5, None));
        let urls = Urls { items: vec![format!("{}/blobs/{id}", self.url)] };
        Ok(BlobAnswer { blob_ids: vec![id], upload_urls: Some(urls) })
    }

    /// Stores an uploaded file; `false` if it is not the announced one.
    pub(super) fn upload(&self, id: &str, md5: &str, content: Vec<u8>) -> bool {
        let actual = md5_of(&content);
        match self.known().blobs.get_mut(id) {
            Some((announced, place)) if *announced == actual && md5 == actual => {
                *place = Some(content);
                true
            }
            _ => false,
        }
    }

    pub(super) fn mount(&self, request: MountGetOrCreate) -> Result<Text, Status> {
        let id = self.id("mo");
        let mut known = self.known();
        if request.creation != 4 || !known.apps.values().any(|app| *app == request.app_id) {
            return Err(Status::invalid_argument("the mount belongs to no app"));
        }
        if request.files.iter().any(|file| !known.files.contains_key(&file.sha256_hex)) {
            return Err(Status::failed_precondition("a file was not uploaded"));
        }
        known.mounts.insert(id.clone(), request.files);
        Ok(Text { text: id })
    }

    /// Finds an image, or starts to build it.
    pub(super) fn image(self: &Arc<Self>, request: ImageGetOrCreate) -> Result<ImageAnswer, Status> {
        let mut known = self.known();
        if request.builder_version != BUILDER || !known.apps.values().any(|app| *app == request.app_id) {
            return Err(Status::invalid_argument("the builder or the app is unknown"));
        }
        let mut image = request.image.unwrap_or_default();
        let mut files = Vec::new();
        if !image.context_mount_id.is_empty() {
            let mount = known.mounts.get(&image.context_mount_id);
            files.clone_from(mount.ok_or_else(|| Status::not_found("the mount does not exist"))?);
        }
        // The same files are the same context, in whichever mount.
        let listing: Vec<u8> = files.iter().flat_map(prost::Message::encode_to_vec).collect();
        image.context_mount_id = hex(&Sha256::digest(&listing));
        let found = known.builds.iter().find(|(_, build)| {
            build.image == image && build.result.borrow().as_ref().is_none_or(|end| end.status == SUCCESS)
        });
        if let Some((id, build)) = found.filter(|_| !request.force_build) {
            return Ok(ImageAnswer { image_id: id.clone(), result: build.result.borrow().clone() });
        }
        let id = format!("im-{:022}", known.builds.len() + 1);
        let build = Arc::new(Build {
            image,
            log: Mutex::default(),
            result: watch::Sender::new(None),
            followers: watch::Sender::new(0),
        });
        known.builds.insert(id.clone(), Arc::clone(&build));
        drop(known);
        let (state, name) = (Arc::clone(self), id.clone());
        tokio::spawn(async move {
            let contents = files.into_iter().map(|file| {
                let content = state.known().files.get(&file.sha256_hex).cloned().unwrap_or_default();
                (file.filename, file.mode.unwrap_or(0o644), content)
            });
            let contents = contents.collect();
            let result = tokio::select! {
                result = state.build(&name, &build, contents) => result,
                () = async { build.abandoned().await } => GenericResult {
                    status: TERMINATED,
                    exception: "no client waits for the build".to_owned(),
                    exitcode: 0,
                },
            };
            build.result.send_replace(Some(result));
        });
        Ok(ImageAnswer { image_id: id, result: None })
    }

    async fn build(&self, id: &str, build: &Build, files: Vec<(String, u32, Vec<u8>)>) -> GenericResult {
        let image = &build.image;
        let failed = |exception: String| GenericResult { status: FAILURE, exception, exitcode: 1 };
        let registry = image.registry.clone().unwrap_or_default();
        let has_login = registry.kind == STATIC && registry.secret_id.starts_with("st-");
        let mut dockerfile = String::new();
        for line in &image.commands {
            let mut line = line.clone();
            if let Some(name) = line.strip_prefix("FROM ").map(str::trim) {
                if name.contains(PRIVATE) && !has_login {
                    return failed(format!("{name}: pull access denied, unauthorized"));
                }
                if let Some(base) = image.base_images.iter().find(|base| base.docker_tag == name) {
                    line = format!("FROM {}", base.image_id);
                }
            }
            dockerfile.push_str(&line);
            dockerfile.push('\n');
        }
        let dir = match self.host.scratch() {
            Ok(dir) => dir,
            Err(error) => return failed(error.to_string()),
        };
        let context = dir.path().join("context");
        let written = write(&context, &dockerfile, &files);
        if let Err(error) = written {
            return failed(error.to_string());
        }
        match self.host.build(id, &context).await {
            Ok(log) => {
                *lock(&build.log) = log;
                GenericResult { status: SUCCESS, ..GenericResult::default() }
            }
            Err(failure) => {
                *lock(&build.log) = failure.log;
                failed(failure.message)
            }
        }
    }

    /// Follows a build for the time that a client asks for.
    pub(super) async fn join(
        &self,
        request: ImageJoin,
    ) -> Result<impl Stream<Item = Result<ImageJoinAnswer, Status>> + Send + 'static, Status> {
        let build = self.known().builds.get(&request.image_id).cloned();
        let build = build.ok_or_else(|| Status::not_found("the image does not exist"))?;
        let time = Duration::try_from_secs_f32(request.timeout).unwrap_or_default();
        let _follower = Follower::new(Arc::clone(&build));
        let mut end = build.result.subscribe();
        let _ = tokio::time::timeout(time, end.wait_for(Option::is_some)).await;
        let result = end.borrow().clone();
        let mut answers = Vec::new();
        if let Some(result) = result {
            if request.last_entry_id.is_empty() {
                let text = lock(&build.log).clone();
                let logs = vec![Text { text }];
                answers.push(ImageJoinAnswer { logs, entry_id: "1-0".to_owned(), result: None });
            }
            answers.push(ImageJoinAnswer { result: Some(result), ..ImageJoinAnswer::default() });
        }
        Ok(stream::iter(answers.into_iter().map(Ok)))
    }
}

/// Writes the files of a build.
fn write(context: &Path, dockerfile: &str, files: &[(String, u32, Vec<u8>)]) -> io::Result<()> {
    fs::create_dir_all(context)?;
    for (name, mode, content) in files {
        let path = context.join(name.trim_start_matches('/'));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(*mode))?;
    }
    fs::write(context.join("Dockerfile"), dockerfile)
}

/// As `Content-MD5` has it.
fn md5_of(content: &[u8]) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use md5::{Digest as _, Md5};
    STANDARD.encode(Md5::digest(content))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
