//! Writes all pages of a directory as files, which need no server.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rollout_core::name::TrialId;
use rollout_record::{layout::JobDir, saved::TrialStatus};

use crate::{
    error::ViewError,
    files::{self, PAGE_BYTES},
    job::{JobLine, JobView, MAX_EVIDENCE},
    library::{Library, lock},
    links::{Address, Delivery, TrialFilter, decoded},
    options::ViewOptions,
    pages::{self, file::EXPORTED_PAGES},
    site::{self, ASSETS, Found},
};

/// What an export has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExportedPages {
    /// The number of jobs.
    pub jobs: u64,
    /// The number of files.
    pub files: u64,
}

/// Writes the pages of a directory of jobs, or of a job, to a new or empty directory. It blocks.
///
/// Of a large file, only the first pages are written.
pub fn export(dir: &Path, to: &Path, options: ViewOptions) -> Result<ExportedPages, ViewError> {
    let library = Library::open(dir, options)?;
    fs::create_dir_all(to).map_err(|source| ViewError::Write { path: to.to_owned(), source })?;
    let mut entries = fs::read_dir(to).map_err(|source| ViewError::Write { path: to.to_owned(), source })?;
    if entries.next().is_some() {
        return Err(ViewError::NotEmpty(to.to_owned()));
    }
    let mut writer = Writer { library: &library, to, written: ExportedPages::default() };
    for (name, ..) in ASSETS {
        writer.write(&Address::Asset(name))?;
    }
    writer.write(&Address::Jobs)?;
    let lines: Vec<_> = library.list()?.into_iter().filter_map(Result::ok).collect();
    for line in &lines {
        writer.written.jobs += 1;
        let shared = library.job(&line.name)?;
        let (addresses, trials) = {
            let mut job = lock(&shared);
            job.read_causes(MAX_EVIDENCE)?;
            (addresses(&job, &lines), job.indexes().filter_map(|index| job.id(index)).collect::<Vec<_>>())
        };
        addresses.iter().try_for_each(|address| writer.write(address))?;
        for trial in trials {
            let addresses = trial_addresses(&lock(&shared), &trial)?;
            addresses.iter().try_for_each(|address| writer.write(address))?;
        }
    }
    Ok(writer.written)
}

/// The pages of a job, without those of its trials.
fn addresses(job: &JobView, jobs: &[JobLine]) -> Vec<Address> {
    let name = || job.name.clone();
    let (_, grids) = pages::grid::pages(job);
    let mut addresses: Vec<_> = (1..=grids).map(|grid| Address::Job { job: name(), grid }).collect();
    let statuses = std::iter::once(None).chain(TrialStatus::ALL.map(Some));
    let filters_of_all: Vec<_> =
        statuses.map(|status| TrialFilter { status, ..TrialFilter::default() }).collect();
    let mut filters = filters_of_all.clone();
    for agent in &job.saved.header().agents {
        let of_agent = |filter: &TrialFilter| TrialFilter { agent: Some(agent.clone()), ..filter.clone() };
        filters.extend(filters_of_all.iter().map(of_agent));
    }
    let causes = job.causes().into_iter().map(|(number, _)| number);
    filters.extend(causes.map(|cause| TrialFilter { cause: Some(cause), ..TrialFilter::default() }));
    let tags = job.tags().into_keys().cloned();
    filters.extend(tags.map(|tag| TrialFilter { tag: Some(tag), ..TrialFilter::default() }));
    for filter in filters {
        let pages = pages::trials::pages(pages::trials::selected(job, &filter).len());
        let page = |page| Address::Trials { job: name(), filter: filter.clone(), page };
        addresses.extend((1..=pages).map(page));
    }
    let number = jobs.iter().position(|line| line.name == job.name);
    let pairs = number.map(|number| pages::compare::exported(jobs, number));
    for (left, right) in pairs.into_iter().flatten() {
        addresses.push(Address::Compare { left: right.clone(), right: left.clone() });
        addresses.push(Address::Compare { left, right });
    }
    addresses
}

/// The pages of a trial and its files.
fn trial_addresses(job: &JobView, trial: &TrialId) -> Result<Vec<Address>, ViewError> {
    let index = job.index(trial);
    let saved = index.map(|index| job.saved.trial(index)).transpose()?.flatten();
    // The page of a trial shows why its conversation cannot be read.
    let said = index.and_then(|index| job.conversation(index, trial, saved.as_ref()).ok().flatten());
    let pages = said.map_or(1, |said| said.len()).max(1);
    let name = || job.name.clone();
    let page = |page| Address::Trial { job: name(), trial: trial.clone(), page };
    let mut addresses: Vec<_> = (1..=pages).map(page).collect();
    let dir = JobDir::new(job.saved.path()).trial(trial).of_last_result();
    for file in files::list(dir.path()) {
        let extension = pages::file::extension(job, trial, &file.path);
        let pages = match extension {
            "txt" => (file.bytes.div_ceil(PAGE_BYTES).max(1) as usize).min(EXPORTED_PAGES),
            _ => 1,
        };
        let page = |page| Address::File { job: name(), trial: trial.clone(), path: file.path.clone(), page };
        addresses.extend((1..=pages).map(page));
        addresses.push(Address::Raw { job: name(), trial: trial.clone(), path: file.path, extension });
    }
    Ok(addresses)
}

struct Writer<'a> {
    library: &'a Library,
    to: &'a Path,
    written: ExportedPages,
}

impl Writer<'_> {
    fn write(&mut self, address: &Address) -> Result<(), ViewError> {
        let Some(path) = self.path(address) else { return Ok(()) };
        let found = match site::find(self.library, address, Delivery::Exported) {
            Ok(found) => found,
            // Jobs without a common task are not compared, and a file may vanish while the job runs.
            Err(ViewError::Compare(_) | ViewError::File { .. } | ViewError::NotFound(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let write = || -> io::Result<()> {
            fs::create_dir_all(path.parent().unwrap_or(self.to))?;
            match found {
                Found::Page(page) => fs::write(&path, page),
                Found::Asset { bytes, .. } => fs::write(&path, bytes),
                Found::File { file, .. } => {
                    let most = PAGE_BYTES * EXPORTED_PAGES as u64;
                    io::copy(&mut io::Read::take(file, most), &mut File::create_new(&path)?).map(drop)
                }
            }
        };
        match write() {
            Ok(()) => self.written.files += 1,
            // The names of files are those of agents, and the export may be deeper than the job.
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename && address.is_file() => {}
            Err(source) => return Err(ViewError::Write { path, source }),
        }
        Ok(())
    }

    /// The file of a page. Its address is encoded for URLs, the names of files are not. None if a part of the address is
    /// not the name of a file.
    fn path(&self, address: &Address) -> Option<PathBuf> {
        let path = address.path(Delivery::Exported);
        path.split('/').try_fold(self.to.to_owned(), |dir, part| Some(dir.join(decoded(part)?)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use rollout_core::{
        event::JobKind,
        name::{AgentName, DatasetName, TaskName},
    };
    use rollout_record::journal::{Header, Journal, JournalEntry, JournalError, PlannedTask, VERSION};

    use super::*;

    /// Writes a job of one trial without a result, and returns the directory of the trial.
    fn job(dir: &Path) -> PathBuf {
        let trial = TrialId {
            agent: AgentName::new("agent").unwrap(),
            dataset: DatasetName::new("set").unwrap(),
            task: TaskName::new("task").unwrap(),
            attempt: 1,
        };
        let header = Header {
            version: VERSION,
            kind: JobKind::Job,
            job_name: "job".to_owned(),
            directory: None,
            job_file: PathBuf::from("/job.yaml"),
            overrides: Vec::new(),
            config_hash: "sha256:0".to_owned(),
            config: None,
            provider: "native".to_owned(),
            agents: vec!["agent".to_owned()],
            attempts: 1,
            pins: BTreeMap::new(),
            selection: None,
            dataset_sizes: BTreeMap::new(),
            regrade: None,
            imported: None,
            tasks: Vec::new(),
        };
        let task = PlannedTask {
            dataset: "set".to_owned(),
            name: "task".to_owned(),
            content_hash: None,
            git_commit_id: None,
            example_id: None,
            attempts: None,
            source: None,
        };
        fs::create_dir_all(dir).unwrap();
        let tasks = std::iter::once(Ok::<_, JournalError>(task));
        let mut journal = Journal::create(&JobDir::new(dir).journal(), header, tasks).unwrap();
        journal.push(&JournalEntry::RunStarted { at: Timestamp::UNIX_EPOCH, provenance: None });
        journal.sync().unwrap();
        let trial = JobDir::new(dir).trial(&trial).path().to_owned();
        fs::create_dir_all(&trial).unwrap();
        trial
    }

    #[test]
    fn files_with_any_name_are_exported_under_it() {
        let dir = tempfile::tempdir().unwrap();
        let trial = job(&dir.path().join("jobs/job"));
        let long = "x".repeat(255);
        let names = [
            r"back\slash",
            r"back\other",
            r"..\..\up",
            "\\",
            "...",
            "%2e%2e",
            "index.html",
            "raw.txt",
            "page-2.html",
            "a\nb",
            " ",
            "~",
            "<b>",
            "\u{202e}cod.exe",
            "-rf",
            "CON",
            &long,
        ];
        let below = trial.join("logs");
        fs::create_dir(&below).unwrap();
        for name in names {
            fs::write(below.join(name), name).unwrap();
        }
        // A directory may have the name of a page too.
        fs::create_dir_all(trial.join("files/index.html")).unwrap();
        fs::write(trial.join("files/index.html/raw.txt"), "raw").unwrap();
        let to = dir.path().join("pages");
        export(&dir.path().join("jobs"), &to, ViewOptions::default()).unwrap();
        let files = to.join("jobs/job/trials/agent/set/task__1/files");
        for name in names {
            let page = files.join("logs").join(name);
            assert_eq!(fs::read_to_string(page.join("raw.txt")).unwrap(), name);
            assert!(page.join("index.html").is_file(), "{name}");
        }
        assert_eq!(fs::read_dir(files.join("logs")).unwrap().count(), names.len(), "nothing else is there");
        assert_eq!(fs::read_to_string(files.join("files/index.html/raw.txt/raw.txt")).unwrap(), "raw");
    }

    #[test]
    fn a_file_whose_path_is_too_long_for_the_export_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let trial = job(&dir.path().join("jobs/job"));
        fs::write(trial.join("short"), "short").unwrap();
        let deep = (0..10).fold(trial.clone(), |dir, _| dir.join("d".repeat(250)));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), "deep").unwrap();
        let to = (0..7).fold(dir.path().join("pages"), |dir, _| dir.join("e".repeat(250)));
        export(&dir.path().join("jobs"), &to, ViewOptions::default()).unwrap();
        let files = to.join("jobs/job/trials/agent/set/task__1/files");
        assert_eq!(fs::read_to_string(files.join("short/raw.txt")).unwrap(), "short");
        assert!(!files.join("d".repeat(250)).exists());
    }
}
