//! Tables as plain text. A column is as wide as its widest cell.

use super::text::fit_end;

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    /// Names.
    Left,
    /// Numbers.
    Right,
}

/// Renders rows with columns two spaces apart. The first row is the heading.
pub(crate) fn lines(columns: &[Align], rows: &[Vec<String>]) -> Vec<String> {
    let mut table = Table::new(columns.iter().copied());
    rows.iter().for_each(|row| table.push(row.iter().map(String::as_str)));
    table.rows().map(|row| row.line()).collect()
}

/// What is between two columns.
const GAP: &str = "  ";

/// A table of any number of rows. All cells are in one text, because there may be hundreds of thousands.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    text: String,
    /// Where the cells end, row by row.
    ends: Vec<usize>,
}

#[derive(Debug)]
struct Column {
    align: Align,
    /// The width of the widest cell.
    width: usize,
    /// The width to which cells are cut at their start.
    most: usize,
    is_hidden: bool,
}

/// A row of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'t> {
    table: &'t Table,
    number: usize,
}

impl Table {
    /// A table without rows.
    pub(crate) fn new(columns: impl IntoIterator<Item = Align>) -> Self {
        let column = |align| Column { align, width: 0, most: usize::MAX, is_hidden: false };
        let columns = columns.into_iter().map(column).collect();
        Self { columns, text: String::new(), ends: Vec::new() }
    }

    /// Adds a row. Cells that are missing are empty.
    pub(crate) fn push<'c>(&mut self, cells: impl IntoIterator<Item = &'c str>) {
        let cells = cells.into_iter().chain(std::iter::repeat(""));
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            column.width = column.width.max(cell.chars().count());
            self.text.push_str(cell);
            self.ends.push(self.text.len());
        }
    }

    /// The width of the widest cell of a column.
    pub(crate) fn width(&self, column: usize) -> usize {
        self.columns[column].width
    }

    /// The width of the longest line.
    pub(crate) fn line_width(&self) -> usize {
        let widths =
            self.columns.iter().filter(|column| !column.is_hidden).map(|column| column.width + GAP.len());
        widths.sum::<usize>().saturating_sub(GAP.len())
    }

    /// Leaves out a column.
    pub(crate) fn hide(&mut self, column: usize) {
        self.columns[column].is_hidden = true;
    }

    /// Cuts the cells of a column at their start.
    pub(crate) fn cut(&mut self, column: usize, width: usize) {
        let column = &mut self.columns[column];
        (column.width, column.most) = (column.width.min(width), width);
    }

    /// The rows in order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let rows = self.ends.len() / self.columns.len().max(1);
        (0..rows).map(|number| Row { table: self, number })
    }
}

impl<'t> Row<'t> {
    /// The cells, uncut.
    pub(crate) fn cells(self) -> impl Iterator<Item = &'t str> {
        let Table { columns, text, ends } = self.table;
        let first = self.number * columns.len();
        let start = first.checked_sub(1).map_or(0, |before| ends[before]);
        ends[first..first + columns.len()].iter().scan(start, |start, end| {
            let cell = &text[*start..*end];
            *start = *end;
            Some(cell)
        })
    }

    /// The row as a line of text.
    pub(crate) fn line(self) -> String {
        let mut line = String::new();
        for (cell, column) in self.cells().zip(&self.table.columns).filter(|(_, column)| !column.is_hidden) {
            if !line.is_empty() {
                line.push_str(GAP);
            }
            let length = cell.chars().count();
            let space = std::iter::repeat_n(' ', column.width.saturating_sub(length));
            if column.align == Align::Right {
                line.extend(space.clone());
            }
            match length > column.most {
                true => line.push_str(&fit_end(cell, column.most)),
                false => line.push_str(cell),
            }
            if column.align == Align::Left {
                line.extend(space);
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// The width that the last column needs at least, where it may be cut.
const MIN_LAST: usize = 12;

/// Removes columns until the lines fit into a width: those with these headings, in this order. The last column may be
/// cut, so only the start of it has to fit.
pub(crate) fn narrow(columns: &mut Vec<Align>, rows: &mut [Vec<String>], width: usize, expendable: &[&str]) {
    for name in expendable {
        if fits(rows, width) {
            return;
        }
        let Some(column) = rows.first().and_then(|heading| heading.iter().position(|cell| cell == name))
        else {
            continue;
        };
        columns.remove(column);
        rows.iter_mut().for_each(|row| drop(row.remove(column)));
    }
}

/// Whether the lines fit into a width, with at least the start of the last column.
pub(crate) fn fits(rows: &[Vec<String>], width: usize) -> bool {
    let columns = rows.first().map_or(0, Vec::len);
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let widths: Vec<usize> = (0..columns)
        .map(|column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    let Some((last, others)) = widths.split_last() else { return true };
    others.iter().map(|width| width + GAP.len()).sum::<usize>() + (*last).min(MIN_LAST) <= width
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_important_columns_give_way_on_a_narrow_terminal() {
        let rows =
            [["name", "started", "rate", "agents"], ["a-job", "2026-01-15", "50.0%", "one, two and three"]]
                .map(|row| row.map(str::to_owned).to_vec());
        let narrowed = |width| {
            let (mut columns, mut rows) = (vec![Align::Left; 4], rows.to_vec());
            narrow(&mut columns, &mut rows, width, &["started", "agents", "name"]);
            assert_eq!(columns.len(), rows[1].len());
            rows[0].join(" ")
        };
        assert_eq!(narrowed(usize::MAX), "name started rate agents");
        assert_eq!(narrowed(38), "name started rate agents");
        assert_eq!(narrowed(37), "name rate agents");
        assert_eq!(narrowed(20), "name rate");
        assert_eq!(narrowed(3), "rate");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows =
            [["agent", "trials"], ["oracle", "12"], ["日本", "3"]].map(|row| row.map(str::to_owned).to_vec());
        insta::assert_snapshot!(lines(&[Align::Left, Align::Right], &rows).join("\n"), @r"
        agent   trials
        oracle      12
        日本           3
        ");
    }
}
