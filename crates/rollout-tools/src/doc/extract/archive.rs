//! Documents that are archives: their content is measured before it is used.

use std::io::{self, Cursor, Read};

use zip::ZipArchive;

use super::{ExtractError, ExtractLimits};

/// Opens an archive after checking that its unpacked content is within the limits. Its headers are trusted only
/// if they announce too much; parts that share their bytes are counted separately.
pub(super) fn open<'a>(
    bytes: &'a [u8],
    limits: &ExtractLimits,
) -> Result<ZipArchive<Cursor<&'a [u8]>>, ExtractError> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(ExtractError::malformed)?;
    if archive.len() > limits.entries {
        return Err(ExtractError::Entries(limits.entries));
    }
    if archive.decompressed_size().is_some_and(|size| size > u128::from(limits.unpacked_bytes)) {
        return Err(ExtractError::Unpacked(limits.unpacked_bytes));
    }
    let mut left = limits.unpacked_bytes;
    for nth in 0..archive.len() {
        let entry = archive.by_index(nth).map_err(ExtractError::malformed)?;
        let unpacked = io::copy(&mut entry.take(left.saturating_add(1)), &mut io::sink())
            .map_err(ExtractError::malformed)?;
        left = left.checked_sub(unpacked).ok_or(ExtractError::Unpacked(limits.unpacked_bytes))?;
    }
    Ok(archive)
}
