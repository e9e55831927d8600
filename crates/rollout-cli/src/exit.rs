//! The exit status of the command, and its error messages.

use std::{
    error::Error,
    io::{self, Write as _},
    process::ExitCode,
};

use crate::report::text::{BAD, BOLD, paint};

/// The exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Every trial completed, or the command succeeded.
    Success,
    /// A trial failed, or a bound was not met.
    Unmet,
    /// Nothing ran: the command, the configuration or the engine has a problem.
    Wrong,
    /// The job was cancelled.
    Cancelled,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Success => 0,
            Exit::Unmet => 1,
            Exit::Wrong => 2,
            Exit::Cancelled => 130,
        })
    }
}

/// An error that ends the command, with an optional hint.
#[derive(Debug)]
pub(crate) struct Failure {
    error: Box<dyn Error + Send + Sync>,
    /// Diagnostics with their source lines, printed above the error.
    details: Option<String>,
    hint: Option<String>,
    exit: Exit,
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { error: error.into(), details: None, hint: None, exit: Exit::Wrong }
    }
}

/// Converts errors with hints to failures.
pub(crate) fn hinted<E, H>(hint: impl Fn(&E) -> Option<H>) -> impl Fn(E) -> Failure
where
    E: Into<Box<dyn Error + Send + Sync>>,
    H: Into<String>,
{
    move |error| {
        let hint = hint(&error);
        Failure::from(error).hint(hint)
    }
}

impl Failure {
    /// Sets the hint.
    pub(crate) fn hint(mut self, hint: Option<impl Into<String>>) -> Self {
        self.hint = hint.map(Into::into);
        self
    }

    /// Sets the diagnostics above the error.
    pub(crate) fn details(mut self, details: impl Into<String>) -> Self {
        self.details = Some(details.into());
        self
    }

    /// Marks the failure as one that occurred after trials had run.
    pub(crate) fn while_running(mut self) -> Self {
        self.exit = Exit::Unmet;
        self
    }

    /// Prints the error, its causes and its hint, and returns the exit status.
    pub(crate) fn report(&self) -> Exit {
        if self.is_broken_pipe() {
            return Exit::Success;
        }
        // If stderr is closed too, the error cannot be reported.
        let _ = writeln!(anstream::stderr().lock(), "{}", self.text());
        self.exit
    }

    fn text(&self) -> String {
        let mut text = self.details.as_ref().map(|details| format!("{details}\n\n")).unwrap_or_default();
        text.push_str(&format!("{} {}", paint(BAD, "error:"), self.error));
        let mut source = self.error.source();
        while let Some(cause) = source {
            text.push_str(&format!("\n{} {cause}", paint(BOLD, "cause:")));
            source = cause.source();
        }
        if let Some(hint) = &self.hint {
            text.push_str(&format!("\n{} {hint}", paint(BOLD, "hint:")));
        }
        text
    }

    /// Whether the reader of the output closed it. Such an error has no outer error; a broken pipe inside another error
    /// has a different cause.
    fn is_broken_pipe(&self) -> bool {
        self.error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot write the report")]
    struct Outer(#[source] io::Error);

    #[test]
    fn an_error_shows_its_causes_then_its_hint() {
        let failure = Failure::from(Outer(io::Error::other("disk full"))).hint(Some("free some space"));
        insta::assert_snapshot!(anstream::adapter::strip_str(&failure.text()).to_string(), @"
        error: cannot write the report
        cause: disk full
        hint: free some space
        ");
    }

    #[test]
    fn a_closed_output_is_not_an_error_and_any_other_broken_pipe_is() {
        let of_the_output = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(of_the_output.report(), Exit::Success);
        let of_something_else = Failure::from(Outer(io::ErrorKind::BrokenPipe.into()));
        assert_eq!(of_something_else.report(), Exit::Wrong);
    }
}
