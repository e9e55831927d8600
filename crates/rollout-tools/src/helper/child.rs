//! The helper's own side: it limits itself, reads its standard input, and answers.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, setrlimit};
use serde::Serialize;

use super::{Failure, Request, Work};
use crate::doc::extract;
use crate::sql;

/// Descriptors that a helper for databases may have: the standard ones, the database and its log, and those of the
/// look at its own descriptors.
const SQL_DESCRIPTORS: u64 = 16;

/// Does what a helper process does. The arguments are those of the process.
pub fn helper_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match args
        .into_iter()
        .nth(2)
        .ok_or_else(|| io::Error::other("no request"))
        .and_then(|request| work(&request))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell if this fails, too.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn work(request: &OsString) -> io::Result<()> {
    let Request { work, limits } = serde_json::from_slice(request.as_encoded_bytes())?;
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    // A document needs nothing but what is open; SQLite opens its files, and shares an index to a log.
    let (descriptors, written) =
        if matches!(work, Work::Sql(_)) { (SQL_DESCRIPTORS, 4 << 20) } else { (3, 0) };
    for (resource, most) in [
        (Resource::As, limits.memory),
        // A query ends by itself after so many seconds, and says so.
        (Resource::Cpu, limits.seconds + 1),
        (Resource::Core, 0),
        (Resource::Nofile, descriptors),
        (Resource::Fsize, written),
    ] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    match work {
        Work::Extract { format, limits } => {
            answer(extract::extract(format, input, &limits).map_err(Failure::from))
        }
        Work::Sql(question) => answer(sql::query::answer(&question, &input, limits.seconds)),
    }
}

fn answer<T: Serialize>(answer: Result<T, Failure>) -> io::Result<()> {
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    serde_json::to_writer(&mut stdout, &answer)?;
    stdout.flush()
}
