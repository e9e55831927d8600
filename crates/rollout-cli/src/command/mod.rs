//! The commands, one module each.

pub(crate) mod agents;
pub(crate) mod ask;
pub(crate) mod check;
pub(crate) mod clean;
pub(crate) mod compare;
mod dataset_argument;
pub(crate) mod datasets;
pub(crate) mod doctor;
pub(crate) mod eval;
pub(crate) mod export;
pub(crate) mod flakes;
pub(crate) mod gateway;
mod guard;
mod hub_questions;
pub(crate) mod import;
pub(crate) mod init;
pub(crate) mod investigate;
pub(crate) mod list;
pub(crate) mod load;
pub(crate) mod logs;
pub(crate) mod note;
mod open_files;
mod plan;
mod preflight;
mod progress;
mod quick;
pub(crate) mod regrade;
pub(crate) mod reproduce;
pub(crate) mod resume;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod score;
pub(crate) mod serve;
pub(crate) mod shell;
pub(crate) mod show;
mod sources;
mod task_trials;
pub(crate) mod tools;
mod trial_path;
pub(crate) mod validate;
pub(crate) mod view;
mod warnings;

use std::{
    io::{self, Write as _},
    path::Path,
};

use clap::CommandFactory as _;

use crate::{
    args::{Cli, Completions},
    exit::{Exit, Failure},
};

/// Returns the name if it is free in the directory, else the first free name of the form `<name>-2`, `<name>-3`.
fn free_name(dir: &Path, whole: &str) -> String {
    let mut name = whole.to_owned();
    let mut number = 1;
    while dir.join(&name).exists() {
        number += 1;
        name = format!("{whole}-{number}");
    }
    name
}

/// Writes text and a newline to stdout, with colours if stdout supports them.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// `rollout completions`: prints a completion script for a shell.
pub(crate) fn completions(args: &Completions) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "rollout", &mut script);
    print(String::from_utf8_lossy(&script).trim_end())?;
    Ok(Exit::Success)
}
