//! The command reference, docs/commands.md, from the declarations of the arguments.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use clap::{Arg, Command, CommandFactory as _};

use super::Cli;

const START: &str = "\
# Commands

This page lists every command with its arguments and options. `rollout COMMAND --help` prints the same text. A first
run:

```console
$ rollout init job my-eval
$ rollout my-eval/job.yaml
```

The page is generated from the code. `UPDATE_SCHEMAS=1 cargo nextest run schema` writes it.
";

/// The whole page.
fn page() -> String {
    let mut command = Cli::command();
    command.build();
    let mut page = START.to_owned();
    page += "\n| command | |\n| --- | --- |\n";
    for command in commands(&command) {
        let name = command.get_name();
        let _ = writeln!(page, "| [`rollout {name}`](#rollout-{name}) | {} |", sentence(command.get_about()));
    }
    let _ = write!(page, "\n```text\n{}\n```\n", plain(command.get_after_help()));
    for command in commands(&command) {
        describe(&mut page, command, "rollout", "##");
    }
    page
}

fn commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

fn describe(page: &mut String, command: &Command, parent: &str, heading: &str) {
    let name = format!("{parent} {}", command.get_name());
    let _ = write!(page, "\n{heading} `{name}`\n\n{}\n", sentence(command.get_about()));
    let usage = command.clone().render_usage().to_string();
    let _ = write!(page, "\n```text\n{}\n```\n", usage.trim_start_matches("Usage: "));

    let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help");
    let positional: Vec<_> = shown().filter(|arg| arg.is_positional()).collect();
    table(page, "argument", &positional);
    let mut headings: Vec<Option<&str>> = Vec::new();
    let mut options: BTreeMap<Option<&str>, Vec<&Arg>> = BTreeMap::new();
    for arg in shown().filter(|arg| !arg.is_positional()) {
        let heading = arg.get_help_heading();
        if !headings.contains(&heading) {
            headings.push(heading);
        }
        options.entry(heading).or_default().push(arg);
    }
    for heading in headings {
        let title = heading.map_or("option".to_owned(), |heading| format!("option: {}", lower(heading)));
        table(page, &title, &options[&heading]);
    }
    if let Some(help) = command.get_after_help() {
        let _ = write!(page, "\n```text\n{}\n```\n", plain(Some(help)));
    }
    for inner in commands(command) {
        describe(page, inner, &name, "###");
    }
}

fn table(page: &mut String, title: &str, args: &[&Arg]) {
    if args.is_empty() {
        return;
    }
    let _ = write!(page, "\n| {title} | default | meaning |\n| --- | --- | --- |\n");
    for arg in args {
        let _ = writeln!(page, "| {} | {} | {} |", name(arg), default(arg), cell(&meaning(arg)));
    }
}

/// How the argument is written, such as `` `-o`, `--out DIR` ``.
fn name(arg: &Arg) -> String {
    let value = match arg.get_action().takes_values() {
        true => arg.get_value_names().map(|names| names.join(" ")).unwrap_or_default(),
        false => String::new(),
    };
    let short = arg.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
    match arg.get_long() {
        Some(long) => cell(&format!("{short}`{}`", format!("--{long} {value}").trim_end())),
        None => cell(&format!("`{value}`")),
    }
}

fn default(arg: &Arg) -> String {
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    match arg.get_action().takes_values() {
        true if arg.is_required_set() => "required".to_owned(),
        true if !defaults.is_empty() => format!("`{}`", defaults.join(",")),
        _ => String::new(),
    }
}

/// The help, the variable that can hold the value, and the possible values.
fn meaning(arg: &Arg) -> String {
    let mut text = sentence(arg.get_long_help().or(arg.get_help()));
    if let Some(variable) = arg.get_env() {
        let _ = write!(text, " The variable `{}` sets it, too.", variable.to_string_lossy());
    }
    // The name of a shell, for one, needs no explanation.
    let values = match arg.get_action().takes_values() {
        true => arg.get_possible_values(),
        false => Vec::new(),
    };
    let listed: Vec<_> = values
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}`: {}", value.get_name(), lower(&help.to_string())),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    let explained = values.iter().any(|value| value.get_help().is_some());
    match listed.join(if explained { "; " } else { ", " }) {
        list if list.is_empty() => text,
        list if explained => format!("{text} {list}."),
        list => format!("{text} One of {list}."),
    }
}

fn plain(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}

/// Paragraphs as one line that ends with a full stop.
fn sentence(text: Option<&clap::builder::StyledStr>) -> String {
    let ended = |paragraph: &str| {
        let paragraph = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        if paragraph.ends_with('.') { paragraph } else { paragraph + "." }
    };
    plain(text).split("\n\n").map(ended).collect::<Vec<_>>().join(" ")
}

/// The text with a small first letter, unless its first word is all capitals.
fn lower(text: &str) -> String {
    let mut letters = text.chars();
    match (letters.next(), letters.clone().next()) {
        (Some(first), second) if !second.is_some_and(char::is_uppercase) => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.to_owned(),
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[test]
fn the_schema_of_the_command_line_is_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    let page = page();
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/commands.md does not match the code; update it with `UPDATE_SCHEMAS=1 cargo nextest run schema`"
    );
}
