//! Reads the parts of a page that the tests use: fenced blocks, and the comments before them.
//!
//! - The lines of a `console` block that begin with `$ ` are commands. The lines after a command are what it prints; a
//!   line `…` stands for any lines. A command that ends with `\` or `|` continues on the next line, and one with
//!   `<<'END'` to the line `END`.
//! - A command with the comment `# leave it running` runs until the page ends.
//! - `<!-- setup` … `-->` contains commands, one per line, that prepare the next blocks.
//! - `<!-- file: NAME -->` writes the next block to a file.
//! - `<!-- terminal: KEYS -->` runs the next block on a terminal, and types the keys.
//! - `<!-- exit status: N -->` expects this status of the next block's last command.
//! - `<!-- not run: REASON -->` leaves out the next block.

/// A fenced block.
#[derive(Debug, Default)]
pub(super) struct Block<'p> {
    /// The line of its opening fence, from 1.
    pub line: usize,
    pub language: &'p str,
    pub lines: Vec<&'p str>,
    pub before: Before<'p>,
}

/// The comments before a block.
#[derive(Debug, Default)]
pub(super) struct Before<'p> {
    pub setup: Vec<&'p str>,
    pub file: Option<&'p str>,
    pub terminal: Option<&'p str>,
    pub exit_status: Option<i32>,
    pub not_run: Option<&'p str>,
}

/// A command of a `console` block.
#[derive(Debug)]
pub(super) struct Shown<'p> {
    pub command: String,
    pub prints: Vec<&'p str>,
}

/// The fenced blocks of a page.
pub(super) fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut found = Vec::new();
    let mut before = Before::default();
    let mut lines = page.lines().enumerate();
    while let Some((place, line)) = lines.next() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            let inner = lines.by_ref().map(|(_, line)| line);
            let inner = inner.take_while(|line| !line.trim_start().starts_with("```")).collect();
            let before = std::mem::take(&mut before);
            found.push(Block { line: place + 1, language, lines: inner, before });
        } else if line == "<!-- setup" {
            let inner = lines.by_ref().map(|(_, line)| line);
            before.setup.extend(inner.take_while(|line| *line != "-->"));
        } else if let Some(comment) = line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->")) {
            match comment.split_once(": ") {
                Some(("file", name)) => before.file = Some(name),
                Some(("terminal", keys)) => before.terminal = Some(keys),
                Some(("exit status", status)) => before.exit_status = Some(status.parse().unwrap()),
                Some(("not run", reason)) => before.not_run = Some(reason),
                Some(("settings", _)) => {}
                None if ["agents", "end of agents", "end"].contains(&comment) => {}
                _ => panic!("an unknown comment in line {}: {comment}", place + 1),
            }
        }
    }
    found
}

/// The commands of a `console` block, each with its output.
pub(super) fn commands<'p>(block: &Block<'p>) -> Vec<Shown<'p>> {
    let mut shown: Vec<Shown<'p>> = Vec::new();
    let mut goes_on = false;
    let mut document: Option<&str> = None;
    for line in &block.lines {
        let command = line.strip_prefix("$ ").filter(|_| document.is_none());
        goes_on |= document.is_some();
        match (command, shown.last_mut()) {
            (Some(command), _) => shown.push(Shown { command: command.to_owned(), prints: Vec::new() }),
            (None, Some(last)) if goes_on => last.command = format!("{}\n{line}", last.command),
            (None, Some(last)) => last.prints.push(line),
            (None, None) => panic!("the block in line {} does not begin with a command", block.line),
        }
        let is_command = goes_on || command.is_some();
        document = match document {
            Some(end) => Some(end).filter(|end| line != end),
            None => line.split_once("<<'").filter(|_| is_command).and_then(|(_, end)| end.split('\'').next()),
        };
        goes_on = is_command && document.is_none() && (line.ends_with('\\') || line.ends_with('|'));
    }
    shown
}
