//! Finds and renders the page of an address.

use std::{fs::File, path::Path};

use jiff::Timestamp;
use rollout_core::name::{AgentName, DatasetName, TaskName, TrialId};
use rollout_record::{
    layout::{JobDir, open_below},
    notes::{NewNote, NoteTag},
    saved::TrialStatus,
};

use crate::{
    error::ViewError,
    files,
    job::EVIDENCE_PER_REQUEST,
    library::{Library, lock},
    links::{Address, COMPARE_FORM, CauseNumber, Delivery, SideName, TrialFilter, TrialSort, decoded},
    pages::{self, Here},
};

/// The files that pages use.
pub(crate) const ASSETS: [(&str, &str, &[u8]); 3] = [
    ("view.css", "text/css; charset=utf-8", include_bytes!("../assets/view.css")),
    ("view.js", "text/javascript; charset=utf-8", include_bytes!("../assets/view.js")),
    ("icon.svg", "image/svg+xml", include_bytes!("../assets/icon.svg")),
];

/// Parses the path of a page below the root, and its query.
pub(crate) fn parse(path: &str, query: &str) -> Option<Address> {
    let parts: Vec<String> = path.split('/').map(decoded).collect::<Option<_>>()?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match parts[..] {
        ["index.html"] => Some(Address::Jobs),
        ["assets", name] => {
            ASSETS.iter().find(|(known, ..)| *known == name).map(|(name, ..)| Address::Asset(name))
        }
        ["jobs", job, "trials.html"] => {
            let (filter, page) = filter(query);
            Some(Address::Trials { job: job.to_owned(), filter, page })
        }
        ["jobs", job, page] => Some(Address::Job { job: job.to_owned(), grid: number(page, "grid")? }),
        ["jobs", job, "trials", agent, dataset, name, page] => Some(Address::Trial {
            job: job.to_owned(),
            trial: trial(agent, dataset, name)?,
            page: number(page, "page")?,
        }),
        ["jobs", job, "trials", agent, dataset, name, "files", ref path @ .., last] if !path.is_empty() => {
            let (job, trial) = (job.to_owned(), trial(agent, dataset, name)?);
            let path = path.iter().map(|part| (*part).to_owned()).collect();
            match last.strip_prefix("raw.") {
                Some(extension) => {
                    let extension =
                        ["txt", "png", "jpeg", "gif", "webp"].into_iter().find(|it| *it == extension)?;
                    Some(Address::Raw { job, trial, path, extension })
                }
                None => Some(Address::File { job, trial, path, page: number(last, "page")? }),
            }
        }
        ["compare", left_job, left_agent, "with", right_job, right_agent, "index.html"] => {
            let side = |job: &str, agent: &str| SideName { job: job.to_owned(), agent: agent.to_owned() };
            Some(Address::Compare { left: side(left_job, left_agent), right: side(right_job, right_agent) })
        }
        _ => None,
    }
}

/// The comparison that was chosen in a form: `left` and `right` are a job and an agent each.
pub(crate) fn chosen(path: &str, query: &str) -> Option<Address> {
    let side = |wanted: &str| {
        let mut values = url::form_urlencoded::parse(query.as_bytes());
        let (_, value) = values.find(|(key, _)| key == wanted)?;
        let (job, agent) = value.split_once('/')?;
        Some(SideName { job: decoded(job)?, agent: decoded(agent)? })
    };
    (path == COMPARE_FORM).then(|| Some(Address::Compare { left: side("left")?, right: side("right")? }))?
}

/// The number of a page by its name: `index.html`, or the prefix and a number from 2.
fn number(name: &str, prefix: &str) -> Option<usize> {
    if name == "index.html" {
        return Some(1);
    }
    name.strip_prefix(prefix)?.strip_prefix('-')?.strip_suffix(".html")?.parse().ok().filter(|page| *page > 1)
}

fn trial(agent: &str, dataset: &str, name: &str) -> Option<TrialId> {
    let (task, attempt) = name.rsplit_once("__")?;
    Some(TrialId {
        agent: AgentName::new(agent).ok()?,
        dataset: DatasetName::new(dataset).ok()?,
        task: TaskName::new(task).ok()?,
        attempt: attempt.parse().ok()?,
    })
}

fn filter(query: &str) -> (TrialFilter, usize) {
    let mut filter = TrialFilter::default();
    let mut page = 1;
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "status" => filter.status = TrialStatus::ALL.into_iter().find(|status| status.as_str() == value),
            "agent" => filter.agent = Some(value.into_owned()).filter(|agent| !agent.is_empty()),
            "text" => filter.text = value.into_owned(),
            "cause" => filter.cause = CauseNumber::parse(&value),
            "sort" => {
                let sort = TrialSort::ALL.into_iter().find(|sort| sort.as_str() == value);
                filter.sort = sort.unwrap_or_default();
            }
            "tag" => filter.tag = NoteTag::new(&value).ok(),
            "page" => page = value.parse().unwrap_or(1).max(1),
            _ => {}
        }
    }
    (filter, page)
}

/// What an address leads to.
#[derive(Debug)]
pub(crate) enum Found {
    /// A page.
    Page(String),
    /// A file of the program.
    Asset { kind: &'static str, bytes: &'static [u8] },
    /// A file of a trial.
    File { kind: &'static str, file: File },
}

/// Renders a page, or opens a file.
pub(crate) fn find(library: &Library, address: &Address, delivery: Delivery) -> Result<Found, ViewError> {
    let here = &Here::new(address, delivery);
    let page = match address {
        Address::Jobs => pages::jobs::page(library, here),
        Address::Job { job, grid } => {
            let others: Vec<_> = library.list()?.into_iter().filter_map(Result::ok).collect();
            let job = library.job(job)?;
            let mut job = lock(&job);
            job.read_causes(EVIDENCE_PER_REQUEST)?;
            pages::job::page(&job, &others, *grid, here)
        }
        Address::Trials { job, filter, page } => {
            let job = library.job(job)?;
            let mut job = lock(&job);
            if matches!(filter.cause, Some(CauseNumber::Unsolved(_))) {
                job.read_causes(EVIDENCE_PER_REQUEST)?;
            }
            pages::trials::page(&job, filter, *page, here)
        }
        Address::Trial { job, trial, page } => {
            let job = library.job(job)?;
            let mut job = lock(&job);
            let index = job.index(trial).ok_or_else(|| ViewError::NotFound(format!("the trial {trial}")))?;
            // Its page leads to the others with its cause.
            if job.status(index) == TrialStatus::Unsolved {
                job.read_causes(EVIDENCE_PER_REQUEST)?;
            }
            pages::trial::page(&job, index, *page, here)
        }
        Address::File { job, trial, path, page } => {
            let job = library.job(job)?;
            pages::file::page(&lock(&job), trial, path, *page, here)
        }
        Address::Raw { job, trial, path, extension } => {
            let dir = library.path(job).ok_or_else(|| ViewError::NotFound(format!("the job {job}")))?;
            return raw(&dir, trial, path, extension);
        }
        Address::Compare { left, right } => pages::compare::page(library, left, right, here),
        Address::Asset(name) => {
            let found = ASSETS.iter().find(|(known, ..)| known == name);
            let (_, kind, bytes) = found.ok_or_else(|| ViewError::NotFound((*name).to_owned()))?;
            return Ok(Found::Asset { kind, bytes });
        }
    };
    page.map(Found::Page)
}

/// Adds the note that a form has: a comment, tags between spaces or commas, and tags to remove.
pub(crate) fn note(library: &Library, job: &str, trial: &TrialId, form: &[u8]) -> Result<(), ViewError> {
    let (mut comment, mut tags, mut untags) = (None, Vec::new(), Vec::new());
    for (key, value) in url::form_urlencoded::parse(form) {
        let words = || value.split([' ', ',']).filter(|word| !word.is_empty()).map(NoteTag::new);
        match &*key {
            // Browsers send line breaks in two characters.
            "comment" => comment = Some(value.replace("\r\n", "\n")),
            "tags" => tags.extend(words().collect::<Result<Vec<_>, _>>()?),
            "untag" => untags.extend(words().collect::<Result<Vec<_>, _>>()?),
            _ => {}
        }
    }
    let note = NewNote::new(comment.as_deref(), tags, untags)?;
    let job = library.job(job)?;
    let job = lock(&job);
    job.index(trial).ok_or_else(|| ViewError::NotFound(format!("the trial {trial}")))?;
    Ok(note.add(&JobDir::new(job.saved.path()), std::slice::from_ref(trial), Timestamp::now())?)
}

/// Opens a file of a trial. Only images are more than plain text.
fn raw(job: &Path, trial: &TrialId, path: &[String], extension: &str) -> Result<Found, ViewError> {
    let dir = JobDir::new(job).trial(trial).of_last_result();
    let file = files::join(dir.path(), path);
    let name = path.join("/");
    let is_image = files::image_in(job, &file) == Some(extension);
    if !is_image && extension != "txt" {
        return Err(ViewError::NotFound(name));
    }
    let kind = match extension {
        "png" => "image/png",
        "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        _ => "text/plain; charset=utf-8",
    };
    let file = open_below(job, &file).map_err(|source| ViewError::File { name, source })?;
    Ok(Found::File { kind, file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_found_by_its_path() {
        let trial = trial("an agent", "set", "a task__12").unwrap();
        let side = |agent: &str| SideName { job: "job".to_owned(), agent: agent.to_owned() };
        let job = "a job".to_owned();
        let path = vec!["logs".to_owned(), "index.html".to_owned()];
        let filter = TrialFilter {
            status: Some(TrialStatus::Failed),
            agent: Some("a&b".to_owned()),
            text: "x y".to_owned(),
            cause: Some(CauseNumber::Unsolved(3)),
            tag: Some(NoteTag::new("x:y").unwrap()),
            sort: TrialSort::Cost,
        };
        for address in [
            Address::Jobs,
            Address::Job { job: job.clone(), grid: 1 },
            Address::Job { job: job.clone(), grid: 7 },
            Address::Trials { job: job.clone(), filter, page: 2 },
            Address::Trials { job: job.clone(), filter: TrialFilter::default(), page: 1 },
            Address::Trial { job: job.clone(), trial: trial.clone(), page: 1 },
            Address::Trial { job: job.clone(), trial: trial.clone(), page: 3 },
            Address::File { job: job.clone(), trial: trial.clone(), path: path.clone(), page: 2 },
            Address::Raw { job, trial, path, extension: "png" },
            Address::Compare { left: side("<a>"), right: side("b/c".trim_end_matches("/c")) },
            Address::Asset("view.css"),
        ] {
            let text = address.path(Delivery::Served);
            let (path, query) = text.split_once('?').unwrap_or((&text, ""));
            assert_eq!(parse(path, query), Some(address), "{text}");
        }
    }

    #[test]
    fn a_form_leads_to_the_comparison_that_it_chooses() {
        let side = |job: &str, agent: &str| SideName { job: job.to_owned(), agent: agent.to_owned() };
        let address = Address::Compare { left: side("a job", "x&y"), right: side("b", "c+d") };
        let Address::Compare { left, right } = &address else { unreachable!() };
        let query: String = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("left", &left.value())
            .append_pair("right", &right.value())
            .finish();
        assert_eq!(chosen("compare.html", &query), Some(address));
        for query in ["", "left=a%2Fb", "left=a&right=b", "left=..%2Fb&right=a%2Fb"] {
            assert_eq!(chosen("compare.html", query), None, "{query}");
        }
        assert_eq!(chosen("index.html", "left=a%2Fb&right=a%2Fb"), None);
    }

    #[test]
    fn other_paths_are_no_pages() {
        for path in [
            "",
            "..",
            "jobs/../index.html",
            "jobs/%2e%2e/index.html",
            "jobs/a/trials/b/c/d__1/files/..%2f..%2fetc/passwd/index.html",
            "jobs/a/trials/b/c/d__1/files/../raw.txt",
            "jobs/a/trials/b/c/d__1/files/x/raw.html",
            "jobs/a/grid-1.html",
            "assets/../Cargo.toml",
        ] {
            assert_eq!(parse(path, ""), None, "{path}");
        }
    }
}
