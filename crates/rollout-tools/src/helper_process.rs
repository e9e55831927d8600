//! The helper process: limits itself, reads its standard input, and answers.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, setrlimit};
use serde::Serialize;

use crate::doc::extract::{self, Extraction};
use crate::helper::{Bounds, Failure, Request, Work as _};
use crate::sql::query::{self, Question};

/// The number of descriptors of a helper for databases: the standard ones, the database and its log, and those
/// for listing its own descriptors.
const SQL_DESCRIPTORS: u64 = 16;

/// Runs the helper process with the arguments of the process.
pub fn helper_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter().skip(2);
    let done = match (args.next(), args.next()) {
        (Some(name), Some(request)) => work(&name, request.as_encoded_bytes()),
        _ => Err(io::Error::other("no request")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If this fails too, there is no other way to report it.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn work(name: &OsStr, request: &[u8]) -> io::Result<()> {
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    if name == Extraction::NAME {
        let Request { work, limits } = serde_json::from_slice::<Request<Extraction>>(request)?;
        // A document needs only the open descriptors.
        limit(limits, 3, 0)?;
        answer(extract::extract(work.format, input, &work.limits).map_err(Failure::from))
    } else if name == Question::NAME {
        let Request { work, limits } = serde_json::from_slice::<Request<Question>>(request)?;
        // SQLite opens its files, and shares an index of a log.
        limit(limits, SQL_DESCRIPTORS, 4 << 20)?;
        answer(query::answer(&work, &input, limits.seconds))
    } else {
        Err(io::Error::other("unknown work"))
    }
}

fn limit(limits: Bounds, descriptors: u64, written: u64) -> io::Result<()> {
    for (resource, most) in [
        (Resource::As, limits.memory),
        // A query ends by itself after this many seconds, with an error.
        (Resource::Cpu, limits.seconds.saturating_add(1)),
        (Resource::Core, 0),
        (Resource::Nofile, descriptors),
        (Resource::Fsize, written),
    ] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

fn answer<T: Serialize>(answer: Result<T, Failure>) -> io::Result<()> {
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    serde_json::to_writer(&mut stdout, &answer)?;
    stdout.flush()
}
