//! The commands, one module each.

use std::io::{self, Write as _};

pub(crate) mod init;

/// Writes text and a newline to standard output, with colours where they are wanted.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}
