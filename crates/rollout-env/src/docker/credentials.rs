//! Registry credentials of the user, from the docker command's configuration and its helper programs.
//!
//! They are sent only to the engine: no type here prints them.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    process::Stdio,
    time::Duration,
};

use bollard::auth::DockerCredentials;
use serde::Deserialize;
use tokio::io::AsyncWriteExt as _;

use crate::host::DockerAccess;
use rollout_core::lenient_base64;

/// The name of Docker Hub in the docker command's configuration.
const HUB: &str = "https://index.docker.io/v1/";

/// The name of Docker Hub in BuildKit.
const HUB_OF_BUILDKIT: &str = "registry-1.docker.io";

/// A helper may query a keyring, but must not wait for user input.
const HELPER_TIMEOUT: Duration = Duration::from_secs(30);

/// The user name that marks an identity token.
const TOKEN_USER: &str = "<token>";

/// The configured credentials of registries.
#[derive(Deserialize, Default, Clone)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Credentials {
    auths: HashMap<String, Auth>,
    cred_helpers: HashMap<String, String>,
    creds_store: String,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
struct Auth {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

/// The output of a helper.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    #[serde(default)]
    username: String,
    #[serde(default)]
    secret: String,
}

impl Credentials {
    /// Reads the configuration. A missing or invalid file means no credentials.
    pub(crate) async fn load(place: &DockerAccess) -> Self {
        let Some(path) = place.config_file("config.json") else { return Self::default() };
        let Ok(text) = tokio::fs::read(&path).await else { return Self::default() };
        serde_json::from_slice(&text).unwrap_or_else(|error| {
            // The parser's message could quote the file.
            tracing::warn!(path = %path.display(), line = error.line(), "no registry credentials: the file is not valid");
            Self::default()
        })
    }

    /// The credentials for an image's registry, if there are any.
    pub(crate) async fn of_image(&self, image: &str) -> Option<DockerCredentials> {
        self.of_registry(registry(image)).await
    }

    /// The credentials for a registry, by its name in images.
    pub(crate) async fn of_host(&self, host: &str) -> Option<DockerCredentials> {
        let is_hub = matches!(host, "docker.io" | "index.docker.io");
        self.of_registry(if is_hub { HUB } else { host }).await
    }

    /// The credentials for all registries, by the names that builders look for.
    pub(super) async fn all(&self) -> HashMap<String, DockerCredentials> {
        let names = self.auths.keys().chain(self.cred_helpers.keys()).map(String::as_str);
        let registries: BTreeSet<&str> = names.filter(|name| !is_token(name)).collect();
        let mut all = HashMap::new();
        for name in registries {
            let Some(found) = self.of_registry(name).await else { continue };
            if host(name) == host(HUB) {
                all.insert(HUB_OF_BUILDKIT.to_owned(), found.clone());
                all.insert(HUB.to_owned(), found);
            } else {
                all.insert(host(name).to_owned(), found.clone());
                all.insert(name.to_owned(), found);
            }
        }
        all
    }

    async fn of_registry(&self, name: &str) -> Option<DockerCredentials> {
        if let Some(key) = key_of(self.cred_helpers.keys(), name) {
            return from_helper(&self.cred_helpers[key], key).await;
        }
        let key = key_of(self.auths.keys(), name);
        if !self.creds_store.is_empty() {
            let asked = key.map_or(name, String::as_str);
            if let Some(found) = from_helper(&self.creds_store, asked).await {
                return Some(found);
            }
        }
        let key = key?;
        self.auths[key].credentials(key)
    }
}

impl Auth {
    fn credentials(&self, registry: &str) -> Option<DockerCredentials> {
        let (mut username, mut password) = (self.username.clone(), self.password.clone());
        if let Some(decoded) = lenient_base64::decode(&self.auth)
            && let Ok(decoded) = String::from_utf8(decoded)
            && let Some((name, secret)) = decoded.split_once(':')
        {
            name.clone_into(&mut username);
            secret.trim_end_matches('\0').clone_into(&mut password);
        }
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        if username.is_empty() && self.identitytoken.is_empty() && self.registrytoken.is_empty() {
            return None;
        }
        Some(DockerCredentials {
            username: some(&username),
            password: some(&password),
            identitytoken: some(&self.identitytoken),
            registrytoken: some(&self.registrytoken),
            serveraddress: Some(registry.to_owned()),
            ..DockerCredentials::default()
        })
    }
}

/// Runs `docker-credential-<helper>`. A failure means no credentials.
async fn from_helper(helper: &str, registry: &str) -> Option<DockerCredentials> {
    if helper.contains('/') {
        return None;
    }
    ask(Path::new(&format!("docker-credential-{helper}")), registry).await
}

async fn ask(helper: &Path, registry: &str) -> Option<DockerCredentials> {
    let name = helper.display();
    let mut child = tokio::process::Command::new(helper)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .inspect_err(|error| tracing::warn!(helper = %name, %error, "the credential helper does not start"))
        .ok()?;
    let mut stdin = child.stdin.take()?;
    let answer = async {
        // A helper for a single registry may not read its input.
        let _ = stdin.write_all(registry.as_bytes()).await;
        drop(stdin);
        child.wait_with_output().await.ok()
    };
    let output = match tokio::time::timeout(HELPER_TIMEOUT, answer).await {
        Ok(output) => output?,
        Err(_) => {
            tracing::warn!(helper = %name, "the credential helper does not answer");
            return None;
        }
    };
    if !output.status.success() {
        return None;
    }
    let answer: HelperAnswer = serde_json::from_slice(&output.stdout).ok()?;
    Some(answer.credentials(registry))
}

impl HelperAnswer {
    fn credentials(self, registry: &str) -> DockerCredentials {
        let serveraddress = Some(registry.to_owned());
        if self.username == TOKEN_USER {
            let identitytoken = Some(self.secret);
            return DockerCredentials { identitytoken, serveraddress, ..DockerCredentials::default() };
        }
        DockerCredentials {
            username: Some(self.username),
            password: Some(self.secret),
            serveraddress,
            ..DockerCredentials::default()
        }
    }
}

/// The registry of an image name.
fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => match first {
            "docker.io" | "index.docker.io" => HUB,
            registry => registry,
        },
        _ => HUB,
    }
}

/// The key of a registry. Keys are hosts or addresses, as the user or an older client wrote them, so several may fit:
/// the same text is preferred, then the shortest.
fn key_of<'k>(keys: impl Iterator<Item = &'k String>, name: &str) -> Option<&'k String> {
    let fitting = keys.filter(|key| host(key) == host(name) && !is_token(key));
    fitting.min_by_key(|key| (key.as_str() != name, key.len(), key.as_str()))
}

/// Whether a key is of a token that `docker login` stores for itself beside the login, after a login by browser.
fn is_token(key: &str) -> bool {
    key.ends_with("/access-token") || key.ends_with("/refresh-token")
}

/// The host and port of a registry's address.
fn host(address: &str) -> &str {
    let address = address.trim_start_matches("https://").trim_start_matches("http://");
    let host = address.split('/').next().unwrap_or(address);
    match host {
        "docker.io" | "registry-1.docker.io" => "index.docker.io",
        host => host,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn parse(value: serde_json::Value) -> Credentials {
        serde_json::from_value(value).unwrap()
    }

    #[tokio::test]
    async fn credentials_are_found_by_the_registry_of_the_image() {
        let credentials = parse(serde_json::json!({"auths": {
            "https://index.docker.io/v1/": {"auth": "aHViOnNlY3JldA=="},
            "registry.local:5000": {"username": "me", "password": "pass"},
            "https://old.example/v1/": {"auth": "b2xkOnBhOnNz"},
            "token.example": {"identitytoken": "t"},
            "broken.example": {"auth": "no base64", "username": "me"},
            "empty.example": {},
        }}));
        let user = async |image: &str| credentials.of_image(image).await.and_then(|found| found.username);
        assert_eq!(user("debian").await.as_deref(), Some("hub"));
        assert_eq!(user("library/debian").await.as_deref(), Some("hub"));
        assert_eq!(user("docker.io/library/debian").await.as_deref(), Some("hub"));
        assert_eq!(user("registry.local:5000/x").await.as_deref(), Some("me"));
        assert_eq!(user("broken.example/x").await.as_deref(), Some("me"));
        assert_eq!(user("old.example/x:1").await.as_deref(), Some("old"));
        assert_eq!(credentials.of_image("old.example/x").await.unwrap().password.as_deref(), Some("pa:ss"));
        assert_eq!(
            credentials.of_image("token.example/x").await.unwrap().identitytoken.as_deref(),
            Some("t")
        );
        assert!(credentials.of_image("empty.example/x").await.is_none());
        assert!(credentials.of_image("localhost/x").await.is_none());
    }

    #[tokio::test]
    async fn builders_get_all_credentials_by_the_names_they_ask_for() {
        let credentials = parse(serde_json::json!({"auths": {
            "https://index.docker.io/v1/": {"auth": "aHViOnNlY3JldA=="},
            "https://old.example/v1/": {"auth": "b2xkOnBhOnNz"},
        }}));
        let mut names: Vec<String> = credentials.all().await.into_keys().collect();
        names.sort();
        assert_eq!(
            names,
            ["https://index.docker.io/v1/", "https://old.example/v1/", "old.example", "registry-1.docker.io"]
        );
    }

    #[tokio::test]
    async fn the_tokens_of_a_login_by_browser_are_no_login() {
        // A map of each process has another order, so one attempt could succeed by chance.
        for _ in 0..20 {
            let credentials = parse(serde_json::json!({"auths": {
                "https://index.docker.io/v1/": {"username": "hub", "password": "p"},
                "https://index.docker.io/v1/access-token": {"username": "hub", "password": "access"},
                "https://index.docker.io/v1/refresh-token": {"username": "hub", "password": "refresh"},
                "https://r.example/v2/": {"username": "long", "password": "p"},
                "r.example": {"username": "short", "password": "p"},
            }}));
            for image in ["debian", "docker.io/library/debian"] {
                let found = credentials.of_image(image).await.unwrap();
                assert_eq!(found.password.as_deref(), Some("p"));
                assert_eq!(found.serveraddress.as_deref(), Some(HUB));
            }
            assert_eq!(credentials.of_host("docker.io").await.unwrap().password.as_deref(), Some("p"));
            let found = credentials.of_image("r.example/x").await.unwrap();
            assert_eq!(found.username.as_deref(), Some("short"));
            let all = credentials.all().await;
            assert!(all.values().all(|one| one.password.as_deref() == Some("p")));
            let mut names: Vec<&str> = all.keys().map(String::as_str).collect();
            names.sort_unstable();
            assert_eq!(names, [HUB, "https://r.example/v2/", "r.example", HUB_OF_BUILDKIT]);
        }
    }

    #[tokio::test]
    async fn a_helper_is_asked_on_its_standard_input() {
        let dir = tempfile::tempdir().unwrap();
        let helper = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let asked = helper(
            "asked",
            "#!/bin/sh\nread registry\n[ \"$1\" = get ] && printf '{\"Username\": \"%s\", \"Secret\": \"s\"}' \"$registry\"\n",
        );
        let found = ask(&asked, "r.example").await.unwrap();
        assert_eq!((found.username.as_deref(), found.password.as_deref()), (Some("r.example"), Some("s")));
        let token = helper("token", "#!/bin/sh\necho '{\"Username\": \"<token>\", \"Secret\": \"t\"}'\n");
        assert_eq!(ask(&token, "r.example").await.unwrap().identitytoken.as_deref(), Some("t"));
        let none = helper("none", "#!/bin/sh\necho credentials not found in native keychain; exit 1\n");
        assert!(ask(&none, "r.example").await.is_none());
        assert!(ask(&dir.path().join("missing"), "r.example").await.is_none());
    }
}
