//! The initial files of a session.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::{
    resource::{ErrorCode, Params, ToolError},
    seed::{SeedFile, Seeds, blocking},
};

/// The most bytes that are copied into one environment.
const MAX_BYTES: u64 = 256 << 20;

/// A file or folder of this machine, below a folder from which sessions may get files.
pub(super) struct Seed {
    path: String,
    seeds: Seeds,
}

/// Copies of the files, from which an environment gets its own.
pub(super) struct Staged(TempDir);

impl Staged {
    /// The folder with the copies, readable by all users, as in an environment.
    pub(super) fn folder(&self) -> PathBuf {
        self.0.path().join("files")
    }
}

impl Seed {
    /// Finds the file that a client names, if it is allowed.
    pub(super) async fn find(path: String, roots: &[PathBuf]) -> Result<Self, ToolError> {
        let seed = Self { seeds: Seeds::of(roots, vec![path.clone()]).await?, path };
        let bytes = seed.files().await?.iter().map(|file| file.stamp.size).fold(0, u64::saturating_add);
        if bytes > MAX_BYTES { Err(seed.too_large()) } else { Ok(seed) }
    }

    async fn files(&self) -> Result<Vec<SeedFile>, ToolError> {
        self.seeds.files(&Params::new(), |_| true).await
    }

    /// Copies the current files. An environment copies by path, and the target of a path can change at any
    /// time; these copies are opened beneath the roots, without hidden files and within the size limit.
    pub(super) async fn stage(&self) -> Result<Staged, ToolError> {
        let files = self.files().await?;
        blocking(move || stage(&files)).await?.ok_or_else(|| self.too_large())
    }

    fn too_large(&self) -> ToolError {
        let text =
            format!("the files of {:?} exceed the limit of a session: {} MiB", self.path, MAX_BYTES >> 20);
        ToolError::new(ErrorCode::Refused, text)
    }
}

/// `None` if the files are too large.
fn stage(files: &[SeedFile]) -> Result<Option<Staged>, ToolError> {
    let failed = |error: io::Error| {
        let text = format!("cannot copy the files of the session: {error}");
        ToolError::new(ErrorCode::ResourceFailed, text)
    };
    let staged = Staged(TempDir::new().map_err(failed)?);
    let folder = staged.folder();
    fs::create_dir(&folder).map_err(failed)?;
    let mut left = MAX_BYTES;
    for file in files {
        let (from, _) = file.open()?;
        let copied = copy(from, &folder.join(&file.path), left).map_err(failed)?;
        match left.checked_sub(copied) {
            Some(rest) => left = rest,
            None => return Ok(None),
        }
    }
    Ok(Some(staged))
}

/// Copies a file with its permissions, up to a little more than `most` bytes; returns the number of bytes.
fn copy(from: File, to: &Path, most: u64) -> io::Result<u64> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    let permissions = from.metadata()?.permissions();
    let mut target = File::create_new(to)?;
    let copied = io::copy(&mut from.take(most + 1), &mut target)?;
    target.set_permissions(permissions)?;
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refusal(path: &str, roots: &[PathBuf]) -> Option<ToolError> {
        Seed::find(path.to_owned(), roots).await.err()
    }

    #[tokio::test]
    async fn only_files_below_a_root_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("data")).unwrap();
        fs::write(root.join("data/a.txt"), "a").unwrap();
        fs::write(root.join(".env"), "s").unwrap();
        fs::write(dir.path().join("secret.txt"), "s").unwrap();
        std::os::unix::fs::symlink(dir.path(), root.join("out")).unwrap();
        let roots = [root.clone()];
        let path = |text: &str| root.join(text).display().to_string();

        for inside in ["data", "data/a.txt", "", ".", &path("data")] {
            assert_eq!(refusal(inside, &roots).await, None, "{inside:?}");
        }
        for outside in ["../secret.txt", "data/../../secret.txt", "out/secret.txt", "/etc/passwd", ".env"] {
            let error = refusal(outside, &roots).await.unwrap();
            assert_eq!(error.code, ErrorCode::Refused, "{outside:?}: {error}");
        }
        for absent in ["missing", "\0", &path("../secret.txt")] {
            assert!(refusal(absent, &roots).await.is_some(), "{absent:?}");
        }
        assert_eq!(refusal("data", &[]).await.unwrap().code, ErrorCode::Refused);
    }

    #[tokio::test]
    async fn files_beyond_the_limit_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let large = File::create(dir.path().join("large")).unwrap();
        let roots = [dir.path().to_owned()];
        let grows = Seed::find("large".to_owned(), &roots).await.unwrap();
        large.set_len(MAX_BYTES + 1).unwrap();
        for path in ["large", "."] {
            let error = refusal(path, &roots).await.unwrap();
            assert!(error.message.contains("exceed the limit of a session"), "{error}");
        }
        assert_eq!(grows.stage().await.err().unwrap().code, ErrorCode::Refused);
    }

    #[tokio::test]
    async fn the_current_files_are_staged_without_hidden_ones() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("data/.git")).unwrap();
        for hidden in [".env", "data/.git/config"] {
            fs::write(root.join(hidden), "secret").unwrap();
        }
        fs::write(root.join("data/a.txt"), "a").unwrap();
        fs::write(root.join("data/b.txt"), "b").unwrap();
        fs::write(dir.path().join("secret.txt"), "secret").unwrap();
        let seed = Seed::find(".".to_owned(), std::slice::from_ref(&root)).await.unwrap();
        // Replaced with a link to the outside after it was found.
        fs::remove_file(root.join("data/b.txt")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret.txt"), root.join("data/b.txt")).unwrap();

        let staged = seed.stage().await.unwrap();
        assert_eq!(fs::read_to_string(staged.folder().join("data/a.txt")).unwrap(), "a");
        let names = |path: &str| {
            let entries = fs::read_dir(staged.folder().join(path)).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!((names("."), names("data")), (vec!["data".to_owned()], vec!["a.txt".to_owned()]));
    }
}
