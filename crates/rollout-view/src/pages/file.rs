//! A file of a trial: text in pages, or an image.

use askama::Template;
use rollout_core::{display::size, name::TrialId};
use rollout_record::layout::JobDir;

use super::{Frame, Here, Pager, render};
use crate::{
    ansi, diff,
    error::ViewError,
    files::{self, PAGE_BYTES},
    html::Html,
    job::JobView,
    links::Address,
};

#[derive(Debug, Template)]
#[template(path = "file.html")]
struct FilePage {
    frame: Frame,
    name: String,
    size: String,
    raw: String,
    is_image: bool,
    text: Html,
    pager: Pager,
    /// Whether an export has only a part of the file.
    is_cut: bool,
}

/// The most pages of a file in an export.
pub(crate) const EXPORTED_PAGES: usize = 8;

/// The extension under which a file is served and exported. A page of an agent, for instance, must not be opened as one.
pub(crate) fn extension(job: &JobView, trial: &TrialId, path: &[String]) -> &'static str {
    let dir = JobDir::new(job.saved.path()).trial(trial).of_last_result();
    files::image_in(job.saved.path(), &files::join(dir.path(), path)).unwrap_or("txt")
}

/// Renders a page of a file, counted from 1.
pub(crate) fn page(
    job: &JobView,
    trial: &TrialId,
    path: &[String],
    page: usize,
    here: &Here,
) -> Result<String, ViewError> {
    let name = path.join("/");
    let dir = JobDir::new(job.saved.path()).trial(trial).of_last_result();
    let file = files::join(dir.path(), path);
    let failed = |source| ViewError::File { name: name.clone(), source };
    let content = files::page(job.saved.path(), &file, page).map_err(failed)?;
    let pages = match here.is_exported() {
        true => content.pages.min(EXPORTED_PAGES),
        false => content.pages,
    };
    if page > pages {
        return Err(ViewError::NotFound(format!("page {page} of {name}")));
    }
    let extension = extension(job, trial, path);
    let (job_name, at) = (job.name.clone(), |page| Address::File {
        job: job.name.clone(),
        trial: trial.clone(),
        path: path.to_vec(),
        page,
    });
    let above = vec![
        here.link("Jobs", &Address::Jobs),
        here.link(job_name.clone(), &Address::Job { job: job_name.clone(), grid: 1 }),
        here.link(
            trial.to_string(),
            &Address::Trial { job: job_name.clone(), trial: trial.clone(), page: 1 },
        ),
    ];
    let text = match extension {
        "txt" if diff::is_diff(&content.text) => diff::render(&content.text),
        "txt" => ansi::render(&content.text),
        _ => Html::default(),
    };
    let raw = Address::Raw { job: job_name, trial: trial.clone(), path: path.to_vec(), extension };
    render(&FilePage {
        frame: here.frame(name.clone(), above, job.is_running()),
        size: size(content.bytes),
        raw: here.to(&raw),
        is_image: extension != "txt",
        text,
        pager: Pager::new(page, if extension == "txt" { pages } else { 1 }, |page| here.to(&at(page))),
        is_cut: content.bytes > pages as u64 * PAGE_BYTES && extension == "txt",
        name,
    })
}
