//! Workbooks: blocks of rows for each sheet.

use std::io::Cursor;

use calamine::{Data, DataRef, Reader as _, Xlsx, XlsxError};

use super::rows::Blocks;
use super::{ExtractError, Sections, archive};

/// The most columns of a sheet.
const MOST_COLUMNS: u32 = 16_384;

pub(super) fn read(bytes: &[u8], sections: &mut Sections<'_>) -> Result<(), ExtractError> {
    archive::open(bytes, sections.limits)?;
    let mut workbook: Xlsx<_> =
        Xlsx::new(Cursor::new(bytes)).map_err(|error: XlsxError| ExtractError::malformed(error))?;
    for name in workbook.sheet_names() {
        // Read cell by cell: a whole sheet is as large as its farthest cell.
        let Ok(mut cells) = workbook.worksheet_cells_reader(&name) else { continue };
        let mut blocks = Blocks::new(&name, sections);
        let mut row = Vec::new();
        let mut number = None;
        while let Some(cell) = cells.next_cell().map_err(ExtractError::malformed)? {
            let (at, column) = cell.get_position();
            if column >= MOST_COLUMNS {
                return Err(ExtractError::malformed("it has a cell outside of any sheet"));
            }
            if number != Some(at) {
                if number.is_some() {
                    blocks.row(row.drain(..))?;
                }
                number = Some(at);
            }
            let column = column as usize;
            if row.len() <= column {
                row.resize(column + 1, String::new());
            }
            row[column] = shown(cell.get_value());
        }
        if !row.is_empty() {
            blocks.row(row.drain(..))?;
        }
        blocks.end()?;
    }
    Ok(())
}

fn shown(value: &DataRef<'_>) -> String {
    match value {
        DataRef::DateTime(time) if !time.is_duration() => {
            let (year, month, day, hour, minute, second, _) = time.to_ymd_hms_milli();
            let date = format!("{year:04}-{month:02}-{day:02}");
            if (hour, minute, second) == (0, 0, 0) {
                date
            } else {
                format!("{date} {hour:02}:{minute:02}:{second:02}")
            }
        }
        value => Data::from(value.clone()).to_string(),
    }
}
