//! The web viewer: the jobs of a directory as pages, served to a browser or written as files.
//!
//! ```text
//! job directory ──saved──▶ library ──▶ pages ──▶ server (and events for changes)
//!                                         └────▶ export
//! ```
//!
//! `library` finds jobs and keeps a few numbers of each trial, `pages` computes what the templates show, and `site` finds
//! the page of an address. [`Viewer`] serves pages, and [`export()`] writes them. Everything is read through
//! [`rollout_record::saved`], as in exports. Only notes are written, by [`rollout_record::notes`].
//!
//! What agents and models wrote is hostile. Templates escape all text, markup is the type `Html`, which only this crate
//! creates, and the content-security-policy of pages allows no script but our own.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use rollout_view::{ViewOptions, Viewer};
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let viewer = Viewer::open(Path::new("jobs"), "127.0.0.1:0".parse()?, ViewOptions::default()).await?;
//! let url = viewer.url();
//! viewer.serve(CancellationToken::new()).await?;
//! # Ok(())
//! # }
//! ```
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

mod ansi;
mod diff;
mod error;
mod export;
mod files;
mod html;
mod job;
mod library;
mod links;
mod live;
mod options;
mod pages;
mod server;
mod site;
mod svg;

pub use error::ViewError;
pub use export::{ExportedPages, export};
pub use options::{LiveMessages, ViewOptions};
pub use server::Viewer;
