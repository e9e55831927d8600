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
        let path = self.path(address);
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
        write().map_err(|source| ViewError::Write { path: path.clone(), source })?;
        self.written.files += 1;
        Ok(())
    }

    /// The file of a page. Its address is encoded for URLs, the names of files are not.
    fn path(&self, address: &Address) -> PathBuf {
        let path = address.path(Delivery::Exported);
        path.split('/').filter_map(decoded).fold(self.to.to_owned(), |dir, part| dir.join(part))
    }
}
