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

#[cfg(test)]
mod tests {
    use super::*;

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
