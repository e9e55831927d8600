//! The pages, one module each: what a template shows, computed from a job.

pub(crate) mod compare;
mod conversation;
pub(crate) mod file;
pub(crate) mod grid;
pub(crate) mod job;
pub(crate) mod jobs;
pub(crate) mod trial;
pub(crate) mod trials;

use askama::Template;
use jiff::Timestamp;

use crate::{
    error::ViewError,
    links::{Address, Delivery},
};

/// What is shown for an unknown value.
pub(crate) const NOTHING: &str = "—";

/// The parts that all pages have.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) title: String,
    /// The path to the root of all pages.
    pub(crate) root: String,
    pub(crate) is_exported: bool,
    /// The address of the events that announce changes of this page.
    pub(crate) events: Option<&'static str>,
    /// The pages above this one.
    pub(crate) above: Vec<Link>,
}

/// A link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) text: String,
    pub(crate) href: String,
}

/// Where a page is, for its links to others.
#[derive(Debug, Clone)]
pub(crate) struct Here {
    root: String,
    pub(crate) delivery: Delivery,
}

impl Here {
    pub(crate) fn new(address: &Address, delivery: Delivery) -> Self {
        Self { root: address.root(delivery), delivery }
    }

    pub(crate) fn is_exported(&self) -> bool {
        self.delivery == Delivery::Exported
    }

    /// The address of another page, relative to this one.
    pub(crate) fn to(&self, address: &Address) -> String {
        format!("{}{}", self.root, address.path(self.delivery))
    }

    /// A path below the root of all pages, relative to this one.
    pub(crate) fn root_of(&self, path: &str) -> String {
        format!("{}{path}", self.root)
    }

    pub(crate) fn link(&self, text: impl Into<String>, address: &Address) -> Link {
        Link { text: text.into(), href: self.to(address) }
    }

    pub(crate) fn frame(&self, title: impl Into<String>, above: Vec<Link>, is_live: bool) -> Frame {
        Frame {
            title: title.into(),
            root: self.root.clone(),
            is_exported: self.is_exported(),
            events: (is_live && !self.is_exported()).then_some("events"),
            above,
        }
    }
}

fn or_nothing(text: Option<String>) -> String {
    text.unwrap_or_else(|| NOTHING.to_owned())
}

fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

fn render(template: &impl Template) -> Result<String, ViewError> {
    Ok(template.render()?)
}

/// A page that says why another one cannot be shown.
#[derive(Debug, Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    frame: Frame,
    message: String,
}

/// Renders the page of an error.
pub(crate) fn problem(message: String, here: &Here) -> Result<String, ViewError> {
    render(&ProblemPage { frame: here.frame("Error", Vec::new(), false), message })
}

/// Links to the pages before and after one of several.
#[derive(Debug, Default)]
pub(crate) struct Pager {
    pub(crate) first: Option<String>,
    pub(crate) previous: Option<String>,
    pub(crate) next: Option<String>,
    pub(crate) last: Option<String>,
    pub(crate) page: usize,
    pub(crate) pages: usize,
}

impl Pager {
    pub(crate) fn new(page: usize, pages: usize, href: impl Fn(usize) -> String) -> Self {
        Self {
            first: (page > 2).then(|| href(1)),
            previous: (page > 1).then(|| href(page - 1)),
            next: (page < pages).then(|| href(page + 1)),
            last: (page + 1 < pages).then(|| href(pages)),
            page,
            pages,
        }
    }
}
