//! Rows from datasets on a Hugging Face hub, or on a server with the same protocol.
//!
//! ```text
//! <cache>/hub/<hash of the dataset>/refs/<hash of its name>   the last known commit of a branch or tag
//! <cache>/hub/<hash of the dataset>/<commit>.json             the files of a commit
//! <cache>/hub/files/<id>                                      the content of a file, by its hash
//! <cache>/hub/files/<id>.verified                             the size and time of the file when it was verified
//! <cache>/hub/files/<id>.part                                 the beginning of a file, which a download continues
//! <cache>/rows/<hash>.jsonl                                   converted rows, by the hash of files and columns
//! <cache>/rows/<hash>.jsonl.verified                          their size and time
//! ```

mod cache;
mod choose;
mod client;
mod error;

use std::{fmt, path::PathBuf};

use secrecy::SecretString;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{
    DatasetProblem, Pins, Resolved, Sources,
    retry::retried,
    sources::{Loader, blocking},
    verified,
};
use crate::{
    config::{ExamplesConfig, HubAddress, InteractionConfig},
    rows::{RowFormat, RowsError, TableFile, convert},
};
use cache::{HubCache, Snapshot};
use rollout_core::text::hex;
use rollout_model::dataset::Row;
use rollout_record::hub::DEFAULT_ENDPOINT;

pub use error::HubDataError;

/// Changes when the conversion of rows changes, so that older files are not used.
const ROWS_VERSION: u32 = 1;

/// Downloads of this size and more are announced.
const NOTICE_FROM: u64 = 1 << 20;

/// A hub, and the token for it.
#[derive(Clone)]
pub struct HubAccess {
    /// Its base URL, in the form of `HF_ENDPOINT`.
    pub endpoint: String,
    /// The token of the user. It is sent to the endpoint only.
    pub token: Option<SecretString>,
}

impl Default for HubAccess {
    fn default() -> Self {
        Self { endpoint: DEFAULT_ENDPOINT.to_owned(), token: None }
    }
}

impl fmt::Debug for HubAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.as_ref().map(|_| "…");
        f.debug_struct("HubAccess").field("endpoint", &self.endpoint).field("token", &token).finish()
    }
}

/// A dataset on a hub, at a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubDataset {
    /// The address that was asked for.
    pub address: HubAddress,
    /// The commit that it stands for.
    pub commit: String,
    /// The files with its rows, in order.
    pub files: Vec<HubFile>,
}

/// A file of a dataset on a hub.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HubFile {
    /// Its path in the dataset.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its hash: SHA-256, or the id of git for files that the hub keeps in git.
    pub id: String,
    /// Whether it is in the cache.
    #[serde(skip)]
    pub is_cached: bool,
}

impl HubDataset {
    /// The number of bytes that are not in the cache yet.
    pub fn missing_bytes(&self) -> u64 {
        self.files.iter().filter(|file| !file.is_cached).map(|file| file.size).sum()
    }
}

impl Sources {
    /// Looks up a dataset on the hub, without its files.
    pub async fn find_on_hub(
        &self,
        address: &HubAddress,
        progress: &(dyn Fn(String) + Send + Sync),
    ) -> Result<HubDataset, HubDataError> {
        let resolved = Resolved::default();
        let loader = Loader::new(self, &resolved, progress);
        let mut pins = Pins::new();
        let (cache, snapshot) = snapshot(&loader, address, &mut pins).await?;
        files_of(&loader, &cache, address, snapshot).await
    }
}

/// The file of JSON lines for an interaction, and what was looked up for it. No file if the examples can be read as
/// they are.
pub(super) async fn rows(
    loader: &Loader<'_>,
    interaction: &InteractionConfig,
) -> Result<(Option<PathBuf>, Pins), DatasetProblem> {
    let mut pins = Pins::new();
    let files: Vec<(TableFile, String)> = match &interaction.dataset {
        ExamplesConfig::Inline(_) if interaction.columns.is_empty() => return Ok((None, pins)),
        ExamplesConfig::Inline(rows) => vec![inline(loader, rows).await?],
        ExamplesConfig::File { path, sha256 } => {
            let name = path.display().to_string();
            let format = RowFormat::of(&name).unwrap_or(RowFormat::Json);
            if format == RowFormat::Json && interaction.columns.is_empty() {
                return Ok((None, pins));
            }
            vec![(TableFile { path: path.clone(), name, format }, sha256.clone())]
        }
        ExamplesConfig::Hub(address) => {
            let (cache, snapshot) = snapshot(loader, address, &mut pins).await?;
            let found = files_of(loader, &cache, address, snapshot).await?;
            let is_unreadable =
                |file: &&HubFile| RowFormat::of(&file.path).is_some_and(|format| !format.is_readable());
            if let Some(file) = found.files.iter().find(is_unreadable) {
                return Err(RowsError::NoParquet { name: file.path.clone() }.into());
            }
            download(loader, &cache, &found).await?
        }
    };
    let columns = interaction.columns.clone();
    let recorded: Vec<_> = columns.iter().map(|(name, column)| json!([name, column.record()])).collect();
    let ids: Vec<_> = files.iter().map(|(file, id)| json!([id, file.format as u8])).collect();
    let key = hex(&Sha256::digest(json!([ROWS_VERSION, ids, recorded]).to_string()));
    let target = loader.sources.cache_dir.join("rows").join(format!("{key}.jsonl"));
    let place = target.clone();
    let work = move || -> Result<(), RowsError> {
        // Rows that were changed, or copied from elsewhere, are converted again.
        if !verified::is_recorded(&place) {
            let files: Vec<TableFile> = files.into_iter().map(|(file, _)| file).collect();
            convert(&files, &columns, &place)?;
            let store = |source| RowsError::Store { path: place.clone(), source };
            verified::record(&place).map_err(store)?;
        }
        Ok(())
    };
    super::sources::notice(loader.progress, "reading the rows", blocking(work)).await?;
    Ok((Some(target), pins))
}

/// Rows of the interaction itself as a file.
async fn inline(loader: &Loader<'_>, rows: &[Row]) -> Result<(TableFile, String), RowsError> {
    let text = json!(rows).to_string();
    let id = hex(&Sha256::digest(&text));
    let path = loader.sources.cache_dir.join("rows").join(format!("{id}.json"));
    let place = path.clone();
    let write = move || {
        std::fs::create_dir_all(place.parent().unwrap_or(&place))?;
        std::fs::write(place, text)
    };
    blocking(write).await.map_err(|source| RowsError::Store { path: path.clone(), source })?;
    Ok((TableFile { path, name: "the interaction".to_owned(), format: RowFormat::Json }, id))
}

/// The files of a dataset at its commit. The commit is looked up unless it is known.
async fn snapshot(
    loader: &Loader<'_>,
    address: &HubAddress,
    pins: &mut Pins,
) -> Result<(HubCache, Snapshot), HubDataError> {
    let Sources { cache_dir, hub, offline, retry, .. } = loader.sources;
    let cache = HubCache::new(cache_dir, hub, &address.repo, *offline)?;
    let revision = address.revision.as_deref().unwrap_or("main");
    let key = format!("{}@{revision}", cache.url());
    let commit = match loader.resolved.pins.get(&key) {
        Some(commit) => commit.clone(),
        None if is_commit(revision) => revision.to_owned(),
        None => retried(retry, loader.progress, || cache.commit(revision)).await?,
    };
    if !is_commit(revision) {
        pins.insert(key, commit.clone());
    }
    let snapshot = retried(retry, loader.progress, || cache.snapshot(&commit)).await?;
    Ok((cache, snapshot))
}

/// Chooses the files of a configuration and split.
async fn files_of(
    loader: &Loader<'_>,
    cache: &HubCache,
    address: &HubAddress,
    snapshot: Snapshot,
) -> Result<HubDataset, HubDataError> {
    let retry = &loader.sources.retry;
    let card =
        match snapshot.files.iter().find(|file| file.path == choose::CARD && file.size < choose::MAX_CARD) {
            Some(card) => {
                let fetched = retried(retry, loader.progress, || cache.file(&snapshot.commit, card)).await?;
                let text = blocking(move || std::fs::read(fetched)).await;
                text.ok().map(|text| String::from_utf8_lossy(&text).into_owned())
            }
            None => None,
        };
    let mut files = choose::files(&snapshot.files, card.as_deref(), address)?;
    for file in &mut files {
        file.is_cached = cache.has(file).await?;
    }
    Ok(HubDataset { address: address.clone(), commit: snapshot.commit, files })
}

/// Makes all files available, each with its hash.
async fn download(
    loader: &Loader<'_>,
    cache: &HubCache,
    found: &HubDataset,
) -> Result<Vec<(TableFile, String)>, HubDataError> {
    let missing = found.missing_bytes();
    if missing >= NOTICE_FROM && !loader.sources.offline {
        let files = match found.files.iter().filter(|file| !file.is_cached).count() {
            1 => "1 file".to_owned(),
            number => format!("{number} files"),
        };
        (loader.progress)(format!("downloading {}: {} in {files}", found.address, shown_size(missing)));
    }
    let mut files = Vec::with_capacity(found.files.len());
    for file in &found.files {
        let fetch = || cache.file(&found.commit, file);
        let path = retried(&loader.sources.retry, loader.progress, fetch).await?;
        let format = RowFormat::of(&file.path).unwrap_or(RowFormat::Json);
        files.push((TableFile { path, name: file.path.clone(), format }, file.id.clone()));
    }
    Ok(files)
}

fn is_commit(revision: &str) -> bool {
    revision.len() == 40
        && revision.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// A size in the units that people read.
fn shown_size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} kB", bytes.div_ceil(1000)),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
