//! The content of a hub.

use std::{
    collections::{BTreeMap, HashMap},
    io::Write as _,
    process::{Command, Stdio},
};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::fault::Fault;

pub(super) struct Store {
    pub(super) url: String,
    pub(super) storage_url: String,
    pub(super) part_size: Option<usize>,
    pub(super) faults: Vec<Fault>,
    pub(super) repos: BTreeMap<String, Repo>,
    /// Large files by the SHA-256 of their content.
    pub(super) large: HashMap<String, Bytes>,
    /// Parts of incomplete large files, by file and number.
    pub(super) parts: HashMap<(String, usize), Bytes>,
    /// The git ids of known content, by its SHA-256.
    git_blobs: HashMap<String, String>,
    pub(super) requests: Vec<String>,
    pub(super) leaks: usize,
}

pub(super) struct Repo {
    pub(super) private: bool,
    pub(super) files: BTreeMap<String, Stored>,
    pub(super) commits: Vec<String>,
    /// The identifier of the last commit.
    pub(super) head: String,
    /// The files of every commit.
    history: BTreeMap<String, BTreeMap<String, Stored>>,
}

/// A file of a repository.
#[derive(Clone)]
pub(super) enum Stored {
    Regular { content: Bytes, git_blob: String },
    Large { sha256: String },
}

impl Store {
    pub(super) fn new(url: &str, storage_url: &str) -> Self {
        Self {
            url: url.to_owned(),
            storage_url: storage_url.to_owned(),
            part_size: None,
            faults: Vec::new(),
            repos: BTreeMap::new(),
            large: HashMap::new(),
            parts: HashMap::new(),
            git_blobs: HashMap::new(),
            requests: Vec::new(),
            leaks: 0,
        }
    }

    pub(super) fn regular(&mut self, content: Bytes) -> Stored {
        let name = || git_blob(&content);
        let git_blob = self.git_blobs.entry(sha256(&content)).or_insert_with(name).clone();
        Stored::Regular { content, git_blob }
    }

    /// Keeps content as the hub does: large files by their SHA-256, others in git.
    pub(super) fn stored(&mut self, content: Bytes) -> Stored {
        if (content.len() as u64) < super::api::LARGE {
            return self.regular(content);
        }
        let sha256 = sha256(&content);
        self.large.insert(sha256.clone(), content);
        Stored::Large { sha256 }
    }

    pub(super) fn content(&self, file: &Stored) -> Bytes {
        match file {
            Stored::Regular { content, .. } => content.clone(),
            Stored::Large { sha256 } => self.large.get(sha256).cloned().unwrap_or_default(),
        }
    }
}

impl Repo {
    /// A repository with the file that every new one has.
    pub(super) fn new(private: bool, attributes: Stored) -> Self {
        let mut repo = Self {
            private,
            files: BTreeMap::from([(".gitattributes".to_owned(), attributes)]),
            commits: Vec::new(),
            head: String::new(),
            history: BTreeMap::new(),
        };
        repo.commit("initial commit");
        repo
    }

    pub(super) fn commit(&mut self, message: &str) {
        self.commits.push(message.to_owned());
        self.head = sha256(format!("{}{message}", self.commits.len()).as_bytes())[..40].to_owned();
        self.history.insert(self.head.clone(), self.files.clone());
    }

    /// The files of a commit, or of the branch.
    pub(super) fn at(&self, revision: &str) -> Option<&BTreeMap<String, Stored>> {
        if revision == "main" { Some(&self.files) } else { self.history.get(revision) }
    }
}

impl Stored {
    /// The id by which clients detect changes.
    pub(super) fn oid(&self) -> &str {
        match self {
            Self::Regular { git_blob, .. } => git_blob,
            Self::Large { sha256 } => sha256,
        }
    }
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The git id of the content.
fn git_blob(content: &[u8]) -> String {
    let mut child = Command::new("git")
        .args(["hash-object", "--no-filters", "--stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("git starts");
    child.stdin.take().expect("it is piped").write_all(content).expect("git reads");
    let output = child.wait_with_output().expect("git ends");
    String::from_utf8(output.stdout).expect("git prints text").trim().to_owned()
}
