//! Extracts the text of files safely.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::extract::{DocumentFormat, DocumentSection, ExtractError, ExtractLimits, Extraction, extract};
use crate::helper::Helper;
use crate::helper::{Bounds, Failure, HelperError};
use crate::resource::{ErrorCode, ToolError};
use crate::seed::{self, SeedFile};

/// Reads documents.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    helper: Helper,
    limits: ExtractLimits,
    memory: u64,
    seconds: u64,
    /// Limits the number of documents that are read in this process.
    reading: Arc<Semaphore>,
}

/// Why a document could not be read.
#[derive(Debug)]
pub(crate) struct ReadFailure {
    /// The error to report.
    pub(crate) error: ToolError,
    /// Whether the same file would always fail in the same way.
    pub(crate) is_lasting: bool,
}

impl Reader {
    /// Creates a reader with these limits.
    pub(crate) fn new(helper: Helper, limits: ExtractLimits, memory: u64, seconds: u64) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { helper, limits, memory, seconds, reading: Arc::new(Semaphore::new(cores.max(2))) }
    }

    /// The sections of a document.
    pub(crate) async fn sections(&self, file: &SeedFile) -> Result<Vec<DocumentSection>, ReadFailure> {
        if file.stamp.size > self.limits.file_bytes {
            let refused = Failure::from(ExtractError::File(self.limits.file_bytes));
            return Err(ReadFailure::of(file, HelperError::from(refused)));
        }
        let listed = file.clone();
        let opened = seed::blocking(move || listed.open()).await;
        let (input, stamp) =
            opened.map_err(|error| ReadFailure { error: error.into(), is_lasting: false })?;
        if stamp != file.stamp {
            let message = format!("`{}` changed while it was being read; try again", file.path);
            return Err(ReadFailure {
                error: ToolError::new(ErrorCode::ExecutionError, message),
                is_lasting: false,
            });
        }
        let (format, limits) = (DocumentFormat::of(&file.path), self.limits);
        let sections = if format.needs_a_process(file.stamp.size) {
            // JSON may encode a byte of text as six bytes.
            let output = (limits.text_bytes as u64).saturating_mul(8);
            let bounds = Bounds { memory: self.memory, seconds: self.seconds, output };
            self.helper.run(Extraction { format, limits }, input, bounds).await
        } else {
            // The semaphore is never closed, so waiting cannot fail.
            let _reading = self.reading.acquire().await;
            let read = seed::blocking(move || extract(format, input, &limits)).await;
            read.map_err(|error| Failure::from(error).into())
        };
        sections.map_err(|error| ReadFailure::of(file, error))
    }
}

impl ReadFailure {
    fn of(file: &SeedFile, cause: HelperError) -> Self {
        let is_lasting = cause.is_lasting();
        let mut error = ToolError::from(cause);
        error.message = format!("`{}`: {}", file.path, error.message);
        Self { error, is_lasting }
    }
}
