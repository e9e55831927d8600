//! Calls of the `doc` tools.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::extract::DocumentFormat;
use super::library::{Library, Opened};
use super::page::{MOST_TOKENS, Page, TOKENS, page};
use super::{bm25, ids, snippet};
use crate::arguments;
use crate::resource::{Call, ErrorCode, Params, Session, ToolError};
use crate::seed::{SeedFile, Seeds};

/// The default number of sections of a search.
pub(super) const RESULTS: usize = 10;
/// The most sections that can be requested.
const MOST_RESULTS: usize = 100;
/// The number of characters shown of each.
const SNIPPET: usize = 240;
/// If there are more documents than this, they are listed without reading them.
const FEW: usize = 20;
/// The number of unreadable documents that are named.
const UNREAD: usize = 5;
/// The most sections that can be read at once.
const MOST_IDS: usize = 200;

pub(super) struct DocSession {
    pub(super) seeds: Seeds,
    pub(super) library: Arc<Library>,
}

#[async_trait]
impl Session for DocSession {
    async fn call(&self, tool: &str, params: Params, _call: &Call) -> Result<Value, ToolError> {
        let files = self.seeds.files(&params, |name| DocumentFormat::known(name).is_some()).await?;
        if files.is_empty() {
            return Err(ToolError::new(ErrorCode::NoResults, "there are no documents here"));
        }
        match tool {
            "read" => self.read(files, &params).await,
            "search" => self.search(files, &params).await,
            _ => Err(ToolError::new(ErrorCode::InvalidRequest, format!("unknown tool `doc:{tool}`"))),
        }
    }
}

impl DocSession {
    async fn read(&self, files: Vec<SeedFile>, params: &Params) -> Result<Value, ToolError> {
        let start = arguments::count(params, "start", 0, usize::MAX)?;
        let tokens = arguments::count(params, "max_text_token", TOKENS, MOST_TOKENS)?;
        let listed = arguments::list(params, &["section_ids"])?;
        let mut wanted: Vec<_> =
            listed.iter().flat_map(|ids| ids.split(',')).map(str::trim).filter(|id| !id.is_empty()).collect();
        let mut seen = HashSet::new();
        wanted.retain(|id| seen.insert(*id));
        if wanted.len() > MOST_IDS {
            let message = format!("{} sections are requested; at most {MOST_IDS} are allowed", wanted.len());
            return Err(ToolError::new(ErrorCode::InvalidInput, message));
        }
        if !wanted.is_empty() {
            return self.sections(files, &wanted, start, tokens).await;
        }
        let is_only = files.len() == 1;
        let files = match arguments::text(params, "path")?.filter(|path| !path.trim().is_empty()) {
            Some(path) => match ids::find_file(path, &files) {
                Some(at) => vec![files[at].clone()],
                None => {
                    let message =
                        format!("there is no document `{path}`; doc:read without a path lists them");
                    return Err(ToolError::new(ErrorCode::NoResults, message));
                }
            },
            None => files,
        };
        if files.len() > FEW {
            return Ok(file_list(&files, start, tokens));
        }
        self.library.with(files, move |opened| outline(opened, is_only, start, tokens)).await
    }

    async fn sections(
        &self,
        files: Vec<SeedFile>,
        wanted: &[&str],
        start: usize,
        tokens: usize,
    ) -> Result<Value, ToolError> {
        let is_only = files.len() == 1;
        let mut missing = Vec::new();
        let mut found = Vec::new();
        for id in wanted {
            match ids::find(id, &files) {
                Some(place) => found.push(place),
                None => missing.push((*id).to_owned()),
            }
        }
        // Only the requested documents are read.
        let mut needed: Vec<_> = found.iter().map(|(file, _)| *file).collect();
        needed.sort_unstable();
        needed.dedup();
        let places: Vec<_> = found
            .iter()
            .filter_map(|(file, number)| Some((needed.binary_search(file).ok()?, *number)))
            .collect();
        let files = needed.iter().map(|at| files[*at].clone()).collect();
        let read = move |opened: &[Opened]| {
            let (mut text, mut given) = (String::new(), Vec::new());
            for (at, number) in places {
                let (file, document) = &opened[at];
                let document = document.as_ref().map_err(ToolError::clone)?;
                let id = ids::of(&file.path, number, is_only);
                match document.sections.get(number) {
                    Some(section) => {
                        let _ = write!(text, "[{id}] {}\n{}\n\n", section.title, section.text);
                        given.push(json!({"id": id, "title": section.title, "path": file.path}));
                    }
                    None => missing.push(id),
                }
            }
            if given.is_empty() {
                let message =
                    format!("there is no section {}; doc:read without ids lists them", missing.join(", "));
                return Err(ToolError::new(ErrorCode::NoResults, message));
            }
            if !missing.is_empty() {
                let _ = write!(text, "(there is no section {})", missing.join(", "));
            }
            let Page { text, next } = page(text.trim_end(), start, tokens);
            Ok(json!({"result": text, "sections": given, "missing": missing, "next_start": next}))
        };
        self.library.with(files, read).await
    }

    async fn search(&self, files: Vec<SeedFile>, params: &Params) -> Result<Value, ToolError> {
        let query = arguments::texts(params, &["key_words"])?.join(" ");
        if query.trim().is_empty() {
            return Err(arguments::missing("key_words"));
        }
        bm25::check_query(&query)?;
        let most = arguments::count(params, "max_search_results", RESULTS, MOST_RESULTS)?.max(1);
        self.library.with(files, move |opened| search(opened, &query, most)).await
    }
}

fn search(opened: &[Opened], query: &str, most: usize) -> Result<Value, ToolError> {
    if let [(_, Err(error))] = opened {
        return Err(error.clone());
    }
    let readable: Vec<_> =
        opened.iter().filter_map(|(file, document)| Some((file, document.as_ref().ok()?))).collect();
    let indexes: Vec<_> = readable.iter().map(|(_, document)| &document.index).collect();
    let unread = unread(opened);
    let (mut text, mut results) = (String::new(), Vec::new());
    for hit in bm25::search(&indexes, query, most) {
        let (file, document) = readable[hit.index];
        let section = &document.sections[hit.text];
        let id = ids::of(&file.path, hit.text, opened.len() == 1);
        let score = (hit.score * 1000.0).round() / 1000.0;
        let snippet = snippet(&section.text, query, SNIPPET);
        let _ = write!(text, "[{id}] {} (score {score})\n{snippet}\n\n", section.title);
        results.push(
            json!({"id": id, "title": section.title, "path": file.path, "score": score, "snippet": snippet}),
        );
    }
    if results.is_empty() {
        let message = format!("nothing was found for `{query}`; try other words{unread}");
        return Err(ToolError::new(ErrorCode::NoResults, message));
    }
    Ok(json!({"result": format!("{}{unread}", text.trim_end()), "results": results}))
}

/// The text of the documents if it is short, otherwise their sections.
fn outline(opened: &[Opened], is_only: bool, start: usize, tokens: usize) -> Result<Value, ToolError> {
    if let [(_, Err(error))] = opened {
        return Err(error.clone());
    }
    let (mut text, mut list, mut sections) = (String::new(), String::new(), Vec::new());
    for (file, document) in opened {
        let Ok(document) = document else { continue };
        let _ = writeln!(list, "{} ({} sections)", file.path, document.sections.len());
        for (number, section) in document.sections.iter().enumerate() {
            let id = ids::of(&file.path, number, is_only);
            let chars = section.text.chars().count();
            let _ = writeln!(list, "  [{id}] {} ({chars} characters)", section.title);
            // Text that will not fit is not collected.
            if text.len() <= 4 * tokens {
                let _ = write!(text, "[{id}] {}\n{}\n\n", section.title, section.text);
            }
            sections.push(json!({"id": id, "title": section.title, "path": file.path, "chars": chars}));
        }
    }
    let whole = page(text.trim_end(), 0, tokens);
    let is_short = whole.next.is_none() && text.len() <= 4 * tokens;
    let Page { text, next } = if is_short { whole } else { page(list.trim_end(), start, tokens) };
    sections.truncate(MOST_LISTED);
    Ok(json!({"result": format!("{text}{}", unread(opened)), "sections": sections, "next_start": next}))
}

/// The most sections or documents in the structured part of a result.
const MOST_LISTED: usize = 1000;

fn file_list(files: &[SeedFile], start: usize, tokens: usize) -> Value {
    let mut list = format!("{} documents; read one by its path, or search them\n", files.len());
    for file in files {
        let _ = writeln!(list, "{} ({} bytes)", file.path, file.stamp.size);
    }
    let Page { text, next } = page(list.trim_end(), start, tokens);
    let listed: Vec<_> = files
        .iter()
        .take(MOST_LISTED)
        .map(|file| json!({"path": file.path, "bytes": file.stamp.size}))
        .collect();
    json!({"result": text, "documents": listed, "next_start": next})
}

/// A note about the documents that could not be read.
fn unread(opened: &[Opened]) -> String {
    let errors: Vec<_> =
        opened.iter().filter_map(|(_, document)| Some(document.as_ref().err()?.message.as_str())).collect();
    match errors.len() {
        0 => String::new(),
        count => format!(
            "\n\n({count} of {} documents could not be read: {})",
            opened.len(),
            errors[..count.min(UNREAD)].join("; ")
        ),
    }
}
