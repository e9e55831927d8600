//! Writes Markdown sequentially.

/// The deepest indentation of lists and quotes: each level is repeated on every line.
const MAX_CONTAINERS: usize = 8;

/// The most open marks.
const MAX_MARKS: usize = 8;

/// The most bytes that are written.
const MAX_BYTES: usize = 4 << 20;

/// A mark within a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mark {
    Strong,
    Emphasis,
    Code,
    Link(String),
}

#[derive(Debug)]
enum Container {
    Quote,
    /// An item of a list; its first line has the marker.
    Item {
        marker: Option<String>,
        indent: usize,
    },
}

#[derive(Debug, Default)]
struct Table {
    cells: Vec<String>,
    in_cell: bool,
    /// Whether it contains other tables and is only used for layout.
    is_layout: bool,
    /// The block number of its last row.
    last_row: Option<usize>,
}

/// Writes Markdown.
#[derive(Debug, Default)]
pub(super) struct Writer {
    out: String,
    /// The current block.
    line: String,
    /// The marks in it, with their start positions.
    marks: Vec<(Mark, usize)>,
    containers: Vec<Container>,
    /// The next number of each open ordered list.
    lists: Vec<Option<u64>>,
    tables: Vec<Table>,
    heading: usize,
    pre: usize,
    language: String,
    /// The number of blocks in `out`.
    blocks: usize,
    /// Whether the last block belongs to a list.
    after_item: bool,
    /// The number of bytes written into lines.
    taken: usize,
}

impl Writer {
    /// Whether the limit is reached, so that the rest can be omitted.
    pub(super) fn is_full(&self) -> bool {
        self.out.len().max(self.taken) > MAX_BYTES
    }

    pub(super) fn finish(mut self) -> String {
        while !self.tables.is_empty() {
            self.close_table();
        }
        self.pre = self.pre.min(1);
        if self.pre > 0 {
            self.close_pre();
        }
        self.end_block();
        self.out
    }

    pub(super) fn text(&mut self, text: &str) {
        self.taken += text.len();
        if self.pre > 0 {
            self.line.push_str(text);
            return;
        }
        for c in text.chars() {
            if !c.is_whitespace() {
                // Invisible hints for line breaks.
                if !matches!(c, '\u{ad}' | '\u{200b}') {
                    self.line.push(c);
                }
            } else if !self.line.is_empty() && !self.line.ends_with([' ', '\n']) {
                self.line.push(' ');
            }
        }
    }

    pub(super) fn line_break(&mut self) {
        if self.pre == 0 {
            self.line.truncate(self.line.trim_end_matches(' ').len());
            for (_, start) in &mut self.marks {
                *start = (*start).min(self.line.len());
            }
        }
        if self.pre > 0 || !self.line.is_empty() && !self.line.ends_with("\n\n") {
            self.line.push('\n');
        }
    }

    pub(super) fn rule(&mut self) {
        self.end_block();
        if !self.in_cell() {
            self.write("---");
        }
    }

    /// Shows an image by its description; one without a description is omitted.
    pub(super) fn image(&mut self, alt: &str, source: Option<&str>) {
        let alt = alt.split_whitespace().collect::<Vec<_>>().join(" ");
        if alt.is_empty() {
            return;
        }
        let text = source.map_or_else(|| alt.clone(), |source| format!("![{alt}]({source})"));
        self.taken += text.len();
        self.line.push_str(&text);
    }

    /// Opens a mark, unless too many are open.
    pub(super) fn open_mark(&mut self, mark: Mark) -> bool {
        let same = |(open, _): &(Mark, usize)| std::mem::discriminant(open) == std::mem::discriminant(&mark);
        let useless = self.pre > 0
            || self.heading > 0 && !matches!(mark, Mark::Link(_) | Mark::Code)
            || self.marks.len() == MAX_MARKS
            || self.marks.iter().any(same);
        if !useless {
            self.marks.push((mark, self.line.len()));
        }
        !useless
    }

    pub(super) fn close_mark(&mut self) {
        if let Some((mark, start)) = self.marks.pop() {
            self.apply(&mark, start);
        }
    }

    /// Puts a mark around the text written since, without the white space at its ends.
    fn apply(&mut self, mark: &Mark, start: usize) {
        let marked = &self.line[start..];
        let content = marked.trim();
        if content.is_empty() {
            return;
        }
        let start = start + (marked.len() - marked.trim_start().len());
        let end = start + content.len();
        let (before, after) = match mark {
            Mark::Strong => ("**".to_owned(), "**".to_owned()),
            Mark::Emphasis => ("*".to_owned(), "*".to_owned()),
            Mark::Code => {
                let ticks = "`".repeat(longest_run(content, '`') + 1);
                (ticks.clone(), ticks)
            }
            Mark::Link(target) => ("[".to_owned(), format!("]({target})")),
        };
        self.taken += before.len() + after.len();
        self.line.insert_str(end, &after);
        self.line.insert_str(start, &before);
    }

    /// Applies the open marks, which continue in the next block.
    fn apply_open_marks(&mut self) {
        let mut marks = std::mem::take(&mut self.marks);
        for (mark, start) in marks.iter_mut().rev() {
            self.apply(mark, *start);
            *start = 0;
        }
        self.marks = marks;
    }

    fn in_cell(&self) -> bool {
        self.tables.last().is_some_and(|table| table.in_cell)
    }

    /// Ends the current block, if there is one.
    pub(super) fn end_block(&mut self) {
        if self.pre > 0 {
            if !self.line.is_empty() && !self.line.ends_with('\n') {
                self.line.push('\n');
            }
        } else if self.in_cell() {
            self.text(" ");
        } else {
            self.apply_open_marks();
            let mut block = std::mem::take(&mut self.line);
            if self.heading > 0 && !block.trim().is_empty() {
                block = format!("{} {}", "#".repeat(self.heading), block.trim().replace('\n', " "));
            }
            self.write(block.trim());
        }
    }

    pub(super) fn open_heading(&mut self, level: usize) {
        self.end_block();
        self.heading = if self.in_cell() { 0 } else { level };
    }

    pub(super) fn close_heading(&mut self) {
        self.end_block();
        self.heading = 0;
    }

    pub(super) fn open_quote(&mut self) {
        self.end_block();
        self.containers.push(Container::Quote);
    }

    /// Closes a quote or an item.
    pub(super) fn close_container(&mut self) {
        self.end_block();
        self.containers.pop();
    }

    pub(super) fn open_list(&mut self, first: Option<u64>) {
        self.end_block();
        self.lists.push(first);
    }

    pub(super) fn close_list(&mut self) {
        self.end_block();
        self.lists.pop();
    }

    pub(super) fn open_item(&mut self) {
        self.end_block();
        let marker = match self.lists.last_mut() {
            Some(Some(number)) => {
                let marker = format!("{number}. ");
                *number = number.saturating_add(1);
                marker
            }
            _ => "- ".to_owned(),
        };
        self.containers.push(Container::Item { indent: marker.len(), marker: Some(marker) });
    }

    pub(super) fn open_pre(&mut self, language: Option<&str>) {
        self.end_block();
        // A cell is a single line.
        if !self.in_cell() || self.pre > 0 {
            self.pre += 1;
            self.language = language.unwrap_or_default().to_owned();
        }
    }

    /// Sets the language of the open, empty code block.
    pub(super) fn name_language(&mut self, language: &str) {
        if self.pre > 0 && self.line.trim().is_empty() {
            self.language = language.to_owned();
        }
    }

    pub(super) fn close_pre(&mut self) {
        self.pre = self.pre.saturating_sub(1);
        if self.pre > 0 || self.in_cell() {
            return;
        }
        let code = std::mem::take(&mut self.line);
        for (_, start) in &mut self.marks {
            *start = 0;
        }
        let code = code.trim_end().trim_start_matches('\n');
        if !code.trim().is_empty() {
            let fence = "`".repeat(longest_run(code, '`').max(2) + 1);
            let block = format!("{fence}{}\n{code}\n{fence}", self.language);
            self.write(&block);
        }
    }

    pub(super) fn open_table(&mut self) {
        if self.in_cell() {
            self.lay_out();
        }
        self.end_block();
        self.tables.push(Table::default());
    }

    /// Writes the cells of a table that contains another table as blocks.
    fn lay_out(&mut self) {
        let Some(table) = self.tables.last_mut() else { return };
        table.in_cell = false;
        table.is_layout = true;
        for cell in std::mem::take(&mut table.cells) {
            self.write(&cell);
        }
    }

    pub(super) fn close_table(&mut self) {
        self.close_row();
        self.tables.pop();
    }

    pub(super) fn open_row(&mut self) {
        self.close_row();
    }

    pub(super) fn open_cell(&mut self) {
        self.close_cell();
        self.end_block();
        if let Some(table) = self.tables.last_mut() {
            table.in_cell = !table.is_layout && self.pre == 0;
        }
    }

    pub(super) fn close_cell(&mut self) {
        if !self.in_cell() {
            return self.end_block();
        }
        self.apply_open_marks();
        let cell = std::mem::take(&mut self.line);
        if let Some(table) = self.tables.last_mut() {
            table.in_cell = false;
            table.cells.push(cell.trim().replace('\n', " "));
        }
    }

    pub(super) fn close_row(&mut self) {
        self.close_cell();
        let Some(table) = self.tables.last_mut() else { return };
        let cells = std::mem::take(&mut table.cells);
        let filled = cells.iter().filter(|cell| !cell.is_empty()).count();
        // A row of one cell is a heading, or the table is only a frame.
        if cells.len() < 2 || filled == 0 {
            for cell in cells {
                self.write(&cell);
            }
            return;
        }
        let row: String = cells.iter().map(|cell| format!("| {} ", cell.replace('|', "\\|"))).collect();
        let mut row = format!("{row}|");
        let goes_on = table.last_row == Some(self.blocks);
        if !goes_on {
            row.push('\n');
            row.push_str(&"| --- ".repeat(cells.len()));
            row.push('|');
        }
        self.write_block(&row, goes_on);
        if let Some(table) = self.tables.last_mut() {
            table.last_row = Some(self.blocks);
        }
    }

    fn write(&mut self, block: &str) {
        if !block.is_empty() {
            let starts_item = matches!(self.containers.last(), Some(Container::Item { marker: Some(_), .. }));
            self.write_block(block, starts_item && self.after_item);
        }
    }

    fn write_block(&mut self, block: &str, is_tight: bool) {
        if !self.out.is_empty() {
            self.out.push_str(if is_tight { "\n" } else { "\n\n" });
        }
        for (number, line) in block.split('\n').enumerate() {
            if number > 0 {
                self.out.push('\n');
            }
            let start = self.out.len();
            for container in self.containers.iter_mut().take(MAX_CONTAINERS) {
                match container {
                    Container::Quote => self.out.push_str("> "),
                    Container::Item { marker, indent } => match marker.take() {
                        Some(marker) => self.out.push_str(&marker),
                        None => self.out.extend(std::iter::repeat_n(' ', *indent)),
                    },
                }
            }
            self.out.push_str(line);
            let kept = self.out[start..].trim_end().len();
            self.out.truncate(start + kept);
        }
        self.blocks += 1;
        self.after_item = self.containers.iter().any(|container| matches!(container, Container::Item { .. }));
    }
}

fn longest_run(text: &str, wanted: char) -> usize {
    let mut longest = 0;
    let mut run = 0;
    for c in text.chars() {
        run = if c == wanted { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}
