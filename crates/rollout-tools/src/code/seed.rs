//! Files that a session starts with.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{Code, ToolError};

/// What is copied into one environment at most.
const MAX_BYTES: u64 = 256 << 20;
const MAX_ENTRIES: usize = 10_000;

/// A file or a directory of this machine, below a directory from which sessions may have files.
pub(super) struct Seed(PathBuf);

impl Seed {
    /// Finds what a client names, if it may have it.
    pub(super) async fn find(path: String, roots: Vec<PathBuf>) -> Result<Self, ToolError> {
        let found = tokio::task::spawn_blocking(move || find(&path, &roots));
        found
            .await
            .unwrap_or_else(|_| Err(ToolError::new(Code::Unexpected, "the files could not be looked at")))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Its own name, if it is a file.
    pub(super) fn file_name(&self) -> Option<String> {
        if !self.0.is_file() {
            return None;
        }
        self.0.file_name().map(|name| name.to_string_lossy().into_owned())
    }
}

fn find(path: &str, roots: &[PathBuf]) -> Result<Seed, ToolError> {
    if roots.is_empty() {
        let text = "sessions cannot start with files: `resources.code.roots` names no directory for them";
        return Err(ToolError::new(Code::Refused, text));
    }
    // What is not there and what may not be seen look the same from outside.
    let refused = || {
        let text = format!("{path:?} is not below a directory of `resources.code.roots`");
        ToolError::new(Code::Refused, text)
    };
    let roots = roots.iter().filter_map(|root| root.canonicalize().ok()).collect::<Vec<_>>();
    let wanted = Path::new(path);
    let candidates = match wanted.is_absolute() {
        true => vec![wanted.to_owned()],
        false => roots.iter().map(|root| root.join(wanted)).collect(),
    };
    let found = candidates.iter().filter_map(|candidate| candidate.canonicalize().ok());
    let found = found.into_iter().find(|found| roots.iter().any(|root| found.starts_with(root)));
    let found = found.ok_or_else(refused)?;
    let size = measure(&found).map_err(|error| {
        ToolError::new(Code::ResourceFailed, format!("the files of {path:?} cannot be read: {error}"))
    })?;
    match size {
        Some(()) => Ok(Seed(found)),
        None => {
            let text = format!(
                "the files of {path:?} are more than a session may have: {} MiB in {MAX_ENTRIES} files",
                MAX_BYTES >> 20
            );
            Err(ToolError::new(Code::Refused, text))
        }
    }
}

/// Nothing if there is too much. Links are not followed: they are copied as links, and lead nowhere outside.
fn measure(path: &Path) -> io::Result<Option<()>> {
    let (mut bytes, mut entries) = (0, 0);
    let mut left = vec![path.to_owned()];
    while let Some(path) = left.pop() {
        let metadata = fs::symlink_metadata(&path)?;
        entries += 1;
        if metadata.is_dir() {
            for entry in fs::read_dir(&path)? {
                left.push(entry?.path());
                if left.len() > MAX_ENTRIES {
                    return Ok(None);
                }
            }
        } else if metadata.is_file() {
            bytes += metadata.len();
        }
        if bytes > MAX_BYTES || entries > MAX_ENTRIES {
            return Ok(None);
        }
    }
    Ok(Some(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &str, roots: &[PathBuf]) -> Option<String> {
        find(path, roots).err().map(|error| {
            assert_eq!(error.code, Code::Refused);
            error.message
        })
    }

    #[test]
    fn only_what_lies_below_a_root_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("data")).unwrap();
        fs::write(root.join("data/a.txt"), "a").unwrap();
        fs::write(dir.path().join("secret.txt"), "s").unwrap();
        std::os::unix::fs::symlink(dir.path(), root.join("out")).unwrap();
        let roots = [root.clone()];
        let path = |text: &str| root.join(text).display().to_string();

        assert_eq!(refusal("data", &roots), None);
        assert_eq!(refusal("data/a.txt", &roots), None);
        assert_eq!(refusal(&path("data"), &roots), None);
        for outside in
            ["../secret.txt", "data/../../secret.txt", "out/secret.txt", "/etc/passwd", "missing", "\0"]
        {
            assert!(
                refusal(outside, &roots).is_some_and(|text| text.contains("is not below")),
                "{outside:?}"
            );
        }
        assert!(refusal(&path("../secret.txt"), &roots).is_some());
        assert!(refusal("data", &[]).is_some_and(|text| text.contains("roots")));
    }

    #[test]
    fn more_than_a_session_may_have_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::File::create(dir.path().join("large")).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let roots = [dir.path().to_owned()];
        assert!(refusal("large", &roots).is_some_and(|text| text.contains("more than a session may have")));
        assert!(refusal(".", &roots).is_some());
    }
}
