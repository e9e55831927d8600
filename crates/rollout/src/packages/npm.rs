//! Packages of npm: programs for one platform, and JavaScript with what it depends on.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use reqwest::{Url, header::ACCEPT};
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha512};

use super::{
    PackageError, Packages, Part, download, lock, put, tool,
    unpack::{self, UnpackError},
};
use rollout_env::blocking::blocking;
use rollout_record::atomic;

/// The short form of a package's description, which is enough for an installation.
const DESCRIPTION: &str = "application/vnd.npm.install-v1+json, application/json;q=0.5";

/// The version of npm that installs the dependencies of packages. It runs with every Node since 22.
const NPM: &str = "10.9.4";

/// The registry's description of a package.
#[derive(Deserialize)]
struct Description {
    #[serde(rename = "dist-tags", default)]
    tags: BTreeMap<String, String>,
    #[serde(default)]
    versions: BTreeMap<String, serde_json::Value>,
}

/// The registry's description of one version.
#[derive(Deserialize)]
struct Manifest {
    dist: Dist,
    #[serde(default)]
    dependencies: BTreeMap<String, String>,
    #[serde(default)]
    bin: Programs,
}

#[derive(Deserialize)]
struct Dist {
    tarball: String,
    #[serde(default)]
    integrity: String,
}

/// The programs of a package.
#[derive(Deserialize, Default)]
#[serde(untagged)]
enum Programs {
    One(String),
    Named(BTreeMap<String, String>),
    #[default]
    None,
}

/// The index entry of a cached package.
#[derive(Serialize, Deserialize)]
struct Kept {
    directory: String,
    integrity: String,
    depends: bool,
}

impl Packages {
    /// The latest version of a package.
    pub(crate) async fn npm_latest(&self, package: &str) -> Result<String, PackageError> {
        let (url, mut description) = self.describe(package).await?;
        let latest = description.tags.remove("latest").filter(|version| !version.is_empty());
        latest.ok_or_else(|| PackageError::Answer {
            url: crate::download_client::without_secrets(&url),
            problem: "it has no tag `latest`; name the version of the agent".to_owned(),
        })
    }

    /// The files of a package, and of everything that it depends on, which `node` then installs.
    pub(crate) async fn npm(
        &self,
        package: &str,
        version: &str,
        node: Option<&str>,
    ) -> Result<Part, PackageError> {
        let (dir, kept) = self.npm_package(package, version).await?;
        let Some(node) = node.filter(|_| kept.depends) else {
            return Ok(Part { dir, place: format!("node_modules/{package}") });
        };
        let dir = self.npm_tree(package, version, node).await?;
        Ok(Part { dir: dir.join("node_modules"), place: "node_modules".to_owned() })
    }

    /// Node for this machine's processor.
    pub(crate) async fn node(&self, version: &str) -> Result<Part, PackageError> {
        let package = format!("node-linux-{}", super::arch());
        let (dir, _) = self.npm_package(&package, version).await?;
        Ok(Part { dir, place: "node".to_owned() })
    }

    /// Fetches a package unless it is there, and says where.
    async fn npm_package(&self, package: &str, version: &str) -> Result<(PathBuf, Kept), PackageError> {
        let name = file_name(package, version)?;
        let cache = self.dir("npm");
        let index = cache.join(format!("{name}.json"));
        let _lock = lock(cache.join(format!("{name}.lock"))).await?;
        if let Some(kept) = kept(&index).filter(|kept| cache.join(&kept.directory).is_dir()) {
            return Ok((cache.join(&kept.directory), kept));
        }
        let manifest = self.manifest(package, version).await?;
        let sha512 = manifest.dist.integrity.split_whitespace().find_map(|hash| hash.strip_prefix("sha512-"));
        let sha512 = sha512.unwrap_or_default().to_owned();
        let expected = BASE64_STANDARD.decode(&sha512).unwrap_or_default();
        let shown = format!("{package}@{version}");
        let mismatch =
            || PackageError::Integrity { package: shown.clone(), expected: format!("sha512-{sha512}") };
        if expected.len() != 64 {
            return Err(mismatch());
        }
        let directory = format!("{name}-{}", &rollout_core::text::hex(&expected)[..16]);
        let archive = cache.join(format!("{directory}.tgz"));
        self.fetch_tarball(&manifest.dist.tarball, &archive).await?;
        let programs = match manifest.bin {
            Programs::One(path) => vec![path],
            Programs::Named(paths) => paths.into_values().collect(),
            Programs::None => Vec::new(),
        };
        let (place, unpacked) = (cache.join(&directory), cache.join(format!("{directory}.unfinished")));
        let work = {
            let archive = archive.clone();
            move || Ok(check_and_unpack(&archive, &expected, &unpacked, &place, &programs))
        };
        let done = blocking(work).await.map_err(|source| PackageError::io(&archive, source))?;
        match done {
            Ok(()) => {}
            Err(Unusable::Hash) => return Err(mismatch()),
            Err(Unusable::Unpack(UnpackError::Refused(problem))) => {
                return Err(PackageError::Unsafe { package: shown, problem });
            }
            Err(Unusable::Unpack(UnpackError::Io(source))) => return Err(PackageError::io(&archive, source)),
        }
        let kept = Kept {
            directory,
            integrity: format!("sha512-{sha512}"),
            depends: !manifest.dependencies.is_empty(),
        };
        atomic::write_json(&index, &kept).map_err(|error| PackageError::io(&error.path, error.source))?;
        Ok((cache.join(&kept.directory), kept))
    }

    /// Installs a package with its dependencies by npm, without running anything of theirs.
    async fn npm_tree(&self, package: &str, version: &str, node: &str) -> Result<PathBuf, PackageError> {
        let cache = self.dir("npm-trees");
        let name = file_name(package, version)?;
        let _lock = lock(cache.join(format!("{name}.lock"))).await?;
        let place = cache.join(&name);
        if place.is_dir() {
            return Ok(place);
        }
        let node = self.node(node).await?.dir.join("bin/node");
        let (npm, _) = Box::pin(self.npm_package("npm", NPM)).await?;
        let unfinished = cache.join(format!("{name}.unfinished"));
        let arguments = [
            npm.join("bin/npm-cli.js").into_os_string(),
            "install".into(),
            format!("{package}@{version}").into(),
            "--prefix".into(),
            unfinished.clone().into_os_string(),
            "--ignore-scripts".into(),
            "--omit=optional".into(),
            "--no-bin-links".into(),
            "--no-audit".into(),
            "--no-fund".into(),
            "--no-save".into(),
            "--loglevel=error".into(),
        ];
        let mut variables = vec![
            ("npm_config_registry".to_owned(), self.npm_registry().await?.to_owned()),
            ("npm_config_cache".to_owned(), cache.join("cache").display().to_string()),
            ("npm_config_userconfig".to_owned(), "/dev/null".to_owned()),
        ];
        if let Some(token) = &self.sources.npm_token {
            let registry = download::url(self.npm_registry().await?)?;
            let place = format!("{}{}", registry.authority(), registry.path());
            let place = place.trim_end_matches('/');
            variables.push((format!("npm_config_//{place}/:_authToken"), token.expose_secret().to_owned()));
        }
        fs::create_dir_all(&unfinished).map_err(|source| PackageError::io(&unfinished, source))?;
        tool::run("npm", &format!("{package}@{version}"), &node, &arguments, &variables, &self.sources)
            .await?;
        let target = place.clone();
        let moved = blocking(move || put(&unfinished, &target)).await;
        moved.map_err(|source| PackageError::io(&place, source))?;
        Ok(place)
    }

    /// The registry's address. npm itself is asked only when a package has to be fetched: it takes half a second.
    async fn npm_registry(&self) -> Result<&str, PackageError> {
        let ask = || async {
            let arguments = ["config", "get", "registry"].map(Into::into);
            let asked = tool::run("npm", "packages", Path::new("npm"), &arguments, &[], &self.sources).await;
            let output = asked.map_err(|source| PackageError::NpmRegistry(Box::new(source)))?;
            Ok(output.trim().to_owned())
        };
        self.npm_registry.get_or_try_init(ask).await.map(String::as_str)
    }

    async fn manifest(&self, package: &str, version: &str) -> Result<Manifest, PackageError> {
        let (url, mut description) = self.describe(package).await?;
        let Some(manifest) = description.versions.remove(version) else {
            let latest = description.tags.get("latest").cloned().unwrap_or_default();
            let (package, version) = (package.to_owned(), version.to_owned());
            return Err(PackageError::NoVersion { package, version, latest });
        };
        serde_json::from_value(manifest).map_err(|error| PackageError::Answer {
            url: crate::download_client::without_secrets(&url),
            problem: error.to_string(),
        })
    }

    async fn describe(&self, package: &str) -> Result<(Url, Description), PackageError> {
        let registry = self.npm_registry().await?.trim_end_matches('/');
        let url = download::url(&format!("{registry}/{package}"))?;
        let bytes = download::text(&url, self.request(&url).await?.header(ACCEPT, DESCRIPTION)).await?;
        let description = serde_json::from_slice(&bytes).map_err(|error| PackageError::Answer {
            url: crate::download_client::without_secrets(&url),
            problem: error.to_string(),
        })?;
        Ok((url, description))
    }

    async fn fetch_tarball(&self, tarball: &str, archive: &Path) -> Result<(), PackageError> {
        let url = download::url(tarball)?;
        download::archive(&url, self.request(&url).await?, archive).await
    }

    /// A request, with the token only where the registry itself is asked.
    async fn request(&self, url: &Url) -> Result<reqwest::RequestBuilder, PackageError> {
        let request = self.client().await?.get(url.clone());
        let registry = self.npm_registry.get().and_then(|registry| download::url(registry).ok());
        Ok(match &self.sources.npm_token {
            Some(token) if registry.is_some_and(|registry| registry.origin() == url.origin()) => {
                request.bearer_auth(token.expose_secret())
            }
            _ => request,
        })
    }
}

/// Why a fetched archive is not used.
enum Unusable {
    Hash,
    Unpack(UnpackError),
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Self {
        Self::Unpack(error.into())
    }
}

/// Unpacks an archive that has the right hash, and removes it in any case. Blocks.
fn check_and_unpack(
    archive: &Path,
    expected: &[u8],
    unfinished: &Path,
    place: &Path,
    programs: &[String],
) -> Result<(), Unusable> {
    let mut hash = Sha512::new();
    io::copy(&mut File::open(archive)?, &mut HashWriter(&mut hash))?;
    if hash.finalize()[..] != *expected {
        fs::remove_file(archive)?;
        return Err(Unusable::Hash);
    }
    if unfinished.exists() {
        fs::remove_dir_all(unfinished)?;
    }
    fs::create_dir_all(unfinished)?;
    let unpacked = unpack::tarball(archive, unfinished);
    fs::remove_file(archive)?;
    if let Err(error) = unpacked {
        fs::remove_dir_all(unfinished)?;
        return Err(Unusable::Unpack(error));
    }
    // Nothing in the directory is a link, so no path below it leads elsewhere.
    let inside = |path: &&String| Path::new(path).components().all(is_plain);
    for program in programs.iter().filter(inside) {
        unpack::make_executable(&unfinished.join(program))?;
    }
    Ok(put(unfinished, place)?)
}

fn is_plain(component: std::path::Component<'_>) -> bool {
    matches!(component, std::path::Component::Normal(_) | std::path::Component::CurDir)
}

struct HashWriter<'a>(&'a mut Sha512);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The index entry of a package, if it is cached.
fn kept(index: &Path) -> Option<Kept> {
    let text = fs::read_to_string(index).ok()?;
    let kept: Kept = serde_json::from_str(&text).ok()?;
    Some(kept).filter(|kept| !kept.directory.contains('/'))
}

/// The name of a package and version as that of a file.
fn file_name(package: &str, version: &str) -> Result<String, PackageError> {
    let plain = |text: &str| {
        let known = |char: char| char.is_ascii_alphanumeric() || "-_.~+".contains(char);
        !text.is_empty() && !text.starts_with('.') && text.len() < 100 && text.chars().all(known)
    };
    let (scope, name) = match package.strip_prefix('@').map(|scoped| scoped.split_once('/')) {
        Some(Some((scope, name))) => (scope, name),
        Some(None) => ("", package),
        None => ("none", package),
    };
    if !plain(scope) || !plain(name) || !plain(version) {
        return Err(PackageError::Name(format!("{package}@{version}")));
    }
    Ok(format!("{}@{version}", package.replace('/', "+")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_a_file_name_or_refused() {
        assert_eq!(file_name("@openai/codex", "0.1.0-linux-x64").unwrap(), "@openai+codex@0.1.0-linux-x64");
        for (package, version) in
            [("../x", "1"), ("a/b", "1"), ("@a", "1"), ("@../b", "1"), ("a", ""), ("a", "../1"), ("a", "1/2")]
        {
            assert!(file_name(package, version).is_err(), "{package} {version}");
        }
    }
}
