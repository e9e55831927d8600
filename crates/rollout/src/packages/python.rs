//! Packages of Python, put together for the Python of an environment by `uv`, which comes from the index itself.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use reqwest::header::ACCEPT;
use sha2::{Digest as _, Sha256};

use super::{
    PackageError, Packages, Part, download, lock, put, tool,
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
    /// The Python of the environment, such as `3.12`.
    pub(crate) python: &'a str,
    /// Whether the environment has musl instead of glibc.
    pub(crate) musl: bool,
}

impl Packages {
    /// The packages of an agent and all that they depend on, as a `site-packages` directory.
    pub(crate) async fn python(&self, spec: PythonSpec<'_>) -> Result<Part, PackageError> {
        let PythonSpec { requirements, built, python, musl } = spec;
        let cpu = std::env::consts::ARCH;
        let platform = if musl { format!("{cpu}-musllinux_1_2") } else { format!("{cpu}-manylinux_2_28") };
        let mut hash = Sha256::new();
        for text in [platform.as_str(), python].into_iter().chain(requirements.iter().map(String::as_str)) {
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
        let mut arguments: Vec<std::ffi::OsString> =
            ["pip", "install", "--no-config", "--quiet", "--link-mode", "copy"].map(Into::into).to_vec();
        for (option, value) in [
            ("--python", self.sources.python.as_os_str()),
            ("--target", unfinished.as_os_str()),
            ("--python-version", python.as_ref()),
            ("--python-platform", platform.as_ref()),
            ("--index-url", self.sources.pypi_index.as_ref()),
            ("--only-binary", ":all:".as_ref()),
        ] {
            arguments.extend([option.into(), value.to_owned()]);
        }
        for package in built {
            arguments.extend(["--no-binary".into(), package.into()]);
        }
        arguments.push("--".into());
        arguments.extend(requirements.iter().map(Into::into));
        let variables = [("UV_CACHE_DIR".to_owned(), cache.join("cache").display().to_string())];
        fs::create_dir_all(&cache).map_err(|source| PackageError::io(&cache, source))?;
        tool::run("uv", &requirements.join(" "), &uv, &arguments, &variables, &self.sources).await?;
        let target = place.clone();
        let moved = blocking(move || put(&unfinished, &target)).await;
        moved.map_err(|source| PackageError::io(&place, source))?;
        Ok(part)
    }

    /// The program that installs, from its wheel.
    async fn uv(&self) -> Result<PathBuf, PackageError> {
        let cache = self.dir("uv");
        let place = cache.join(format!("uv-{UV}"));
        let _lock = lock(cache.join("lock")).await?;
        if place.is_file() {
            return Ok(place);
        }
        let page = download::url(&format!("{}/uv/", self.sources.pypi_index.trim_end_matches('/')))?;
        let bytes = download::text(&page, self.client.get(page.clone()).header(ACCEPT, "text/html")).await?;
        let wheel = find_wheel(&String::from_utf8_lossy(&bytes), UV, std::env::consts::ARCH);
        let (link, sha256) = wheel.ok_or_else(|| PackageError::Answer {
            url: crate::download_client::without_secrets(&page),
            problem: format!("it lists no uv {UV} for this processor"),
        })?;
        let url = page.join(&link).map_err(|_| PackageError::Url(link))?;
        let archive = cache.join(format!("uv-{UV}.whl"));
        download::archive(&url, self.client.get(url.clone()), &archive).await?;
        let (from, to) = (archive.clone(), place.clone());
        let done = blocking(move || Ok(take_uv(&from, &sha256, &to))).await;
        match done.map_err(|source| PackageError::io(&archive, source))? {
            Ok(()) => Ok(place),
            Err(UnpackError::Refused(problem)) => {
                Err(PackageError::Unsafe { package: format!("uv {UV}"), problem })
            }
            Err(UnpackError::Io(source)) => Err(PackageError::io(&archive, source)),
        }
    }
}

/// The link of a wheel in the page of an index, and the hash that it gives.
fn find_wheel(page: &str, version: &str, cpu: &str) -> Option<(String, String)> {
    let links = page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let start = format!("uv-{version}-");
    // Linked statically, so the one for old systems runs everywhere.
    let end = format!("manylinux2014_{cpu}");
    let mut found = links.filter_map(|link| {
        let (url, sha256) = link.split_once("#sha256=")?;
        let name = url.rsplit('/').next()?;
        (name.starts_with(&start) && name.contains(&end) && name.ends_with(".whl"))
            .then(|| (url.replace("&amp;", "&"), sha256.to_owned()))
    });
    found.next()
}

/// Takes the program out of its wheel, and removes the wheel. Blocks.
fn take_uv(wheel: &Path, sha256: &str, place: &Path) -> Result<(), UnpackError> {
    let bytes = fs::read(wheel)?;
    if hex(&Sha256::digest(&bytes)) != sha256 {
        fs::remove_file(wheel)?;
        return Err(UnpackError::Refused("it does not have the hash that the index gives for it".to_owned()));
    }
    let invalid = |error: zip::result::ZipError| UnpackError::Refused(error.to_string());
    let mut archive = zip::ZipArchive::new(File::open(wheel)?).map_err(invalid)?;
    let is_program = |name: &std::borrow::Cow<'_, str>| name.ends_with("/scripts/uv");
    let name = archive.file_names().flatten().find(is_program).map(std::borrow::Cow::into_owned);
    let name = name.ok_or_else(|| UnpackError::Refused("it has no program".to_owned()))?;
    let unfinished = place.with_extension("unfinished");
    unpack::write(&mut archive.by_name(&name).map_err(invalid)?, &unfinished, true, MAX_UV)?;
    fs::rename(unfinished, place)?;
    match fs::remove_file(wheel) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wheel_is_found_by_version_and_processor() {
        let page = r#"<a href="https://x/uv-0.1.0.tar.gz#sha256=aa">s</a>
            <a href="../f/uv-0.1.0-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl#sha256=bb" data-x="1">w</a>
            <a href="../f/uv-0.1.0-py3-none-musllinux_1_1_x86_64.whl#sha256=cc">w</a>"#;
        let link = "../f/uv-0.1.0-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl".to_owned();
        assert_eq!(find_wheel(page, "0.1.0", "x86_64"), Some((link, "bb".to_owned())));
        assert_eq!(find_wheel(page, "0.1.0", "aarch64"), None);
        assert_eq!(find_wheel(page, "0.2.0", "x86_64"), None);
    }
}
