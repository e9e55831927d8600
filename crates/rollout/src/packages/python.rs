//! Packages of Python, put together for the Python of an environment by `uv`, which pip fetches.

use std::{
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use super::{
    PackageError, Packages, Part, lock, put, tool,
    unpack::{self, UnpackError},
};
use rollout_core::text::hex;
use rollout_env::blocking::blocking;

const UV: &str = "0.13.7";

/// Its program has 60 MB.
const MAX_UV: u64 = 1 << 30;

/// What is put together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PythonSpec<'a> {
    /// Packages, in the form of pip's requirements.
    pub(crate) requirements: &'a [String],
    /// Those that come only as source, and that the host may build.
    pub(crate) built: &'a [String],
    /// Ignores which Python the requirements themselves ask for.
    pub(crate) any_python: bool,
    /// The Python of the environment, such as `3.12`.
    pub(crate) python: &'a str,
    /// Whether the environment has musl instead of glibc.
    pub(crate) musl: bool,
}

impl Packages {
    /// The latest version of a package.
    pub(crate) async fn pypi_latest(&self, package: &str) -> Result<String, PackageError> {
        // The environment may have another Python than this machine.
        let arguments = [
            "-m",
            "pip",
            "index",
            "versions",
            "--ignore-requires-python",
            "--retries",
            "1",
            "--timeout",
            "15",
            "--",
            package,
        ];
        let arguments = arguments.map(Into::into);
        let index = self.pypi_index().await;
        let variables: Vec<_> =
            index.iter().map(|index| ("PIP_INDEX_URL".to_owned(), index.clone())).collect();
        let printed =
            tool::run("pip", package, &self.sources.python, &arguments, &variables, &self.sources).await?;
        let latest = latest_printed(&printed).filter(|version| !version.is_empty());
        latest.map(ToOwned::to_owned).ok_or_else(|| PackageError::Answer {
            url: format!("the index of {package}"),
            problem: format!("pip printed {:?}", printed.lines().next().unwrap_or_default()),
        })
    }

    /// The packages of an agent and all that they depend on, as a `site-packages` directory.
    pub(crate) async fn python(&self, spec: PythonSpec<'_>) -> Result<Part, PackageError> {
        let PythonSpec { requirements, built, any_python, python, musl } = spec;
        let cpu = std::env::consts::ARCH;
        let platform = if musl { format!("{cpu}-musllinux_1_2") } else { format!("{cpu}-manylinux_2_28") };
        let mut hash = Sha256::new();
        let form = any_python.then_some("any python");
        let identity = [platform.as_str(), python].into_iter().chain(form);
        for text in identity.chain(requirements.iter().map(String::as_str)) {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        let cache = self.dir("python");
        let name = hex(&hash.finalize());
        let _lock = lock(cache.join(format!("{name}.lock"))).await?;
        let place = cache.join(&name);
        let part = Part { dir: place.clone(), place: format!("venv/lib/python{python}/site-packages") };
        if place.is_dir() {
            return Ok(part);
        }
        let uv = self.uv().await?;
        let unfinished = cache.join(format!("{name}.unfinished"));
        fs::create_dir_all(&cache).map_err(|source| PackageError::io(&cache, source))?;
        let index = self.pypi_index().await;
        let wanted = match any_python {
            true => self.without_dependencies(requirements, &unfinished, index.as_deref()).await?,
            false => requirements.to_vec(),
        };
        let mut arguments: Vec<OsString> =
            ["pip", "install", "--no-config", "--quiet", "--link-mode", "copy"].map(Into::into).to_vec();
        for (option, value) in [
            ("--python", self.sources.python.as_os_str()),
            ("--target", unfinished.as_os_str()),
            ("--python-version", python.as_ref()),
            ("--python-platform", platform.as_ref()),
            ("--only-binary", ":all:".as_ref()),
        ] {
            arguments.extend([option.into(), value.to_owned()]);
        }
        if let Some(index) = index {
            arguments.extend(["--index-url".into(), index.into()]);
        }
        for package in built {
            arguments.extend(["--no-binary".into(), package.into()]);
        }
        arguments.push("--".into());
        arguments.extend(wanted.iter().map(Into::into));
        let variables = [("UV_CACHE_DIR".to_owned(), cache.join("cache").display().to_string())];
        tool::run("uv", &requirements.join(" "), &uv, &arguments, &variables, &self.sources).await?;
        let target = place.clone();
        let moved = blocking(move || put(&unfinished, &target)).await;
        moved.map_err(|source| PackageError::io(&place, source))?;
        Ok(part)
    }

    /// Installs packages without those that they depend on, whatever Python they ask for. Returns what they depend on.
    async fn without_dependencies(
        &self,
        requirements: &[String],
        target: &Path,
        index: Option<&str>,
    ) -> Result<Vec<String>, PackageError> {
        // A run that was cut off may have left some.
        let cleared = match fs::remove_dir_all(target) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        cleared.map_err(|source| PackageError::io(target, source))?;
        let mut arguments: Vec<OsString> = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--ignore-requires-python",
            "--only-binary",
            ":all:",
        ]
        .map(Into::into)
        .to_vec();
        arguments.extend(["--no-compile".into(), "--target".into(), target.into(), "--".into()]);
        arguments.extend(requirements.iter().map(Into::into));
        let variables: Vec<(String, String)> =
            index.iter().map(|index| ("PIP_INDEX_URL".to_owned(), (*index).to_owned())).collect();
        let shown = requirements.join(" ");
        tool::run("pip", &shown, &self.sources.python, &arguments, &variables, &self.sources).await?;
        let from = target.to_owned();
        let found = blocking(move || dependencies(&from)).await;
        found.map_err(|source| PackageError::io(target, source))
    }

    /// The program that installs, from its wheel.
    async fn uv(&self) -> Result<PathBuf, PackageError> {
        let cache = self.dir("uv");
        let place = cache.join(format!("uv-{UV}"));
        let _lock = lock(cache.join("lock")).await?;
        if place.is_file() {
            return Ok(place);
        }
        let dir = cache.join("unfinished");
        let arguments: Vec<OsString> =
            ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"]
                .into_iter()
                .map(Into::into)
                .chain([dir.clone().into(), format!("uv=={UV}").into()])
                .collect();
        let variables =
            self.sources.pypi_index.iter().map(|index| ("PIP_INDEX_URL".to_owned(), index.clone()));
        let variables: Vec<(String, String)> = variables.collect();
        tool::run("pip", &format!("uv {UV}"), &self.sources.python, &arguments, &variables, &self.sources)
            .await?;
        let (from, to) = (dir.clone(), place.clone());
        match blocking(move || Ok(take_uv(&from, &to)))
            .await
            .map_err(|source| PackageError::io(&dir, source))?
        {
            Ok(()) => Ok(place),
            Err(UnpackError::Refused(problem)) => {
                Err(PackageError::Unsafe { package: format!("uv {UV}"), problem })
            }
            Err(UnpackError::Io(source)) => Err(PackageError::io(&dir, source)),
        }
    }

    /// The index that pip uses, which uv does not read from pip's files. `None` where both use their own default.
    async fn pypi_index(&self) -> Option<String> {
        if let Some(index) = &self.sources.pypi_index {
            return Some(index.clone());
        }
        let arguments = ["-m", "pip", "config", "get", "global.index-url"].map(Into::into);
        // Fails where nothing is configured, too.
        let asked = tool::run("pip", "packages", &self.sources.python, &arguments, &[], &self.sources).await;
        asked.ok().map(|index| index.trim().to_owned())
    }
}

/// What the packages of a directory depend on, without what belongs to their optional features. Blocks.
fn dependencies(site: &Path) -> std::io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(site)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "dist-info") {
            found.extend(required_by(&fs::read_to_string(path.join("METADATA"))?));
        }
    }
    Ok(found)
}

/// The version in the first line of `pip index versions`, which has the form `package (1.2.3)`.
fn latest_printed(printed: &str) -> Option<&str> {
    printed.lines().next()?.split_once(" (")?.1.strip_suffix(')')
}

/// The requirements that the metadata of a package lists.
fn required_by(metadata: &str) -> Vec<String> {
    let head = metadata.split("\n\n").next().unwrap_or_default();
    let of_line = |line: &str| line.strip_prefix("Requires-Dist:").map(|text| text.trim().to_owned());
    head.lines().filter_map(of_line).filter(|requirement| !requirement.contains("extra ==")).collect()
}

/// Takes the program out of the one wheel of a directory, and removes the directory. Blocks.
fn take_uv(dir: &Path, place: &Path) -> Result<(), UnpackError> {
    let wheel =
        fs::read_dir(dir)?.next().ok_or_else(|| UnpackError::Refused("pip fetched no file".to_owned()))??;
    let invalid = |error: zip::result::ZipError| UnpackError::Refused(error.to_string());
    let mut archive = zip::ZipArchive::new(File::open(wheel.path())?).map_err(invalid)?;
    let is_program = |name: &std::borrow::Cow<'_, str>| name.ends_with("/scripts/uv");
    let name = archive.file_names().flatten().find(is_program).map(std::borrow::Cow::into_owned);
    let name = name.ok_or_else(|| UnpackError::Refused("it has no program".to_owned()))?;
    let unfinished = place.with_extension("unfinished");
    unpack::write(&mut archive.by_name(&name).map_err(invalid)?, &unfinished, true, MAX_UV)?;
    fs::rename(unfinished, place)?;
    Ok(fs::remove_dir_all(dir)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages::PackageSources;

    #[tokio::test]
    async fn the_latest_version_of_a_package_is_that_of_the_index() {
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join("simple/agent");
        fs::create_dir_all(&page).unwrap();
        let file = |version: &str| {
            format!("<a href=\"agent-{version}-py3-none-any.whl\" data-requires-python=\"==3.9.*\">x</a>")
        };
        let files = ["1.9.0", "1.10.0", "2.0.0rc1"].map(file).concat();
        fs::write(page.join("index.html"), format!("<!DOCTYPE html><html><body>{files}</body></html>"))
            .unwrap();
        let mut sources = PackageSources::new(dir.path().join("cache"));
        sources.pypi_index = Some(format!("file://{}/simple", dir.path().display()));
        sources.variables = vec![("PATH".to_owned(), std::env::var("PATH").unwrap())];
        assert_eq!(Packages::new(sources).pypi_latest("agent").await.unwrap(), "1.10.0");
    }

    #[test]
    fn the_requirements_of_a_package_are_those_of_its_head_without_optional_ones() {
        let metadata = "Name: agent\nRequires-Python: ==3.12.*\nRequires-Dist: sdk==1.21.0\nRequires-Dist: rich<14; python_version > \"3\"\n\
             Requires-Dist: pytest; extra == 'dev'\n\nRequires-Dist: of the description\n";
        assert_eq!(required_by(metadata), ["sdk==1.21.0", "rich<14; python_version > \"3\""]);
    }
}
