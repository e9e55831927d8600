//! Tables as plain text. A column is as wide as its widest cell.

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
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    rows.iter()
        .map(|row| {
            let mut line = String::new();
            for ((cell, align), width) in row.iter().zip(columns).zip(&widths) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                match align {
                    Align::Left => line.push_str(&format!("{cell:<width$}")),
                    Align::Right => line.push_str(&format!("{cell:>width$}")),
                }
            }
            line.truncate(line.trim_end().len());
            line
        })
        .collect()
}

/// The width that the last column needs at least, where it may be cut.
const MIN_LAST: usize = 12;

/// Removes columns until the lines fit into a width: those with these headings, in this order. The last column may be
/// cut, so only the start of it has to fit.
pub(crate) fn narrow(columns: &mut Vec<Align>, rows: &mut [Vec<String>], width: usize, expendable: &[&str]) {
    for name in expendable {
        let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
        let widths: Vec<usize> = (0..columns.len())
            .map(|column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0))
            .collect();
        let Some((last, others)) = widths.split_last() else { return };
        if others.iter().map(|width| width + 2).sum::<usize>() + (*last).min(MIN_LAST) <= width {
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
