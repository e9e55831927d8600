//! Log messages, which go to the job's `rollout.log`, and to stderr if there is no live display.

use std::{
    fs::File,
    io,
    path::Path,
    sync::{Arc, OnceLock},
};

use rollout::{config::LogLevel, record::redact::Redactor};
use tracing_subscriber::{
    EnvFilter, Layer as _, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// The environment variable that overrides the job's `log_level`, such as `rollout=debug`.
const FILTER_VARIABLE: &str = "ROLLOUT_LOG";

/// The log file of a job. It is opened after logging has started, when the job's directory is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogFile(Arc<OnceLock<File>>);

impl LogFile {
    /// Appends all following messages to a file.
    pub(crate) fn open(&self, path: &Path) -> io::Result<()> {
        let file = File::options().append(true).create(true).open(path)?;
        // A process runs one job. Messages of a second job would go to the first file.
        let _ = self.0.set(file);
        Ok(())
    }
}

impl io::Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.get() {
            Some(mut file) => file.write(bytes),
            None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A writer that redacts secrets. Each message arrives in one write.
struct Masked<W>(Arc<Redactor>, W);

impl<W: io::Write> io::Write for Masked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Self(redactor, writer) = self;
        match redactor.finds(bytes) {
            true => writer.write_all(redactor.text(&String::from_utf8_lossy(bytes)).as_bytes())?,
            false => writer.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.1.flush()
    }
}

/// Starts logging at a level, with these secrets redacted, and optionally also to stderr.
pub(crate) fn start<'a>(
    level: LogLevel,
    secrets: impl IntoIterator<Item = &'a String>,
    to_stderr: bool,
) -> LogFile {
    let redactor = Arc::new(Redactor::new(secrets.into_iter().map(String::as_str)));
    let file = LogFile::default();
    let (writer, masks) = (file.clone(), Arc::clone(&redactor));
    let to_file = fmt::layer()
        .with_ansi(false)
        .with_writer(move || Masked(Arc::clone(&masks), writer.clone()))
        .with_filter(filter(level));
    let to_stderr = to_stderr.then(|| {
        fmt::layer()
            .with_ansi(false)
            .without_time()
            .with_writer(move || Masked(Arc::clone(&redactor), io::stderr()))
            .with_filter(filter(level))
    });
    // This fails only if a subscriber exists already, as in a test of two commands in one process.
    let _ = tracing_subscriber::registry().with(to_file).with(to_stderr).try_init();
    file
}

/// Returns a filter for messages of Rollout at the level, and for errors of its dependencies.
fn filter(level: LogLevel) -> EnvFilter {
    if let Ok(filter) = EnvFilter::try_from_env(FILTER_VARIABLE) {
        return filter;
    }
    let level = match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    EnvFilter::new(format!("error,rollout={level},rollout_sandbox={level}"))
}
