//! Parses the text of a Dockerfile into stages of instructions, each with its line number.
//!
//! The grammar is that of `parse-dockerfile`. This module adds here-documents anywhere in a `RUN` (the crate
//! supports them only as the first word), and joins the shell form into one line without continuations and
//! comments. Nothing is expanded yet.

use std::fmt;

use parse_dockerfile as crate_parser;

use super::error::ImageBuildError;
use super::lines::{
    collect_bodies, first_line, join_continuations, logical_line, markers, mask_here_documents, shorten,
    strip_tabs, words,
};

/// The position of an instruction: its line number and text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The line of the Dockerfile, counted from 1.
    pub line: usize,
    /// The first line of the instruction, shortened if it is long.
    pub text: String,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dockerfile line {}", self.line)?;
        if !self.text.is_empty() { write!(f, " `{}`", self.text) } else { Ok(()) }
    }
}

/// A parsed Dockerfile.
#[derive(Debug)]
pub(crate) struct Dockerfile {
    pub(crate) escape: char,
    /// The arguments of each `ARG` before the first `FROM`.
    pub(crate) global_args: Vec<(Location, String)>,
    pub(crate) stages: Vec<Stage>,
}

/// One `FROM` and the instructions that follow it.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) at: Location,
    pub(crate) flags: Vec<Flag>,
    pub(crate) image: String,
    pub(crate) name: Option<String>,
    pub(crate) instructions: Vec<Instruction>,
}

/// One instruction of a stage.
#[derive(Debug)]
pub(crate) struct Instruction {
    pub(crate) at: Location,
    pub(crate) kind: Kind,
}

/// The kind of an instruction, unexpanded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Arg(String),
    Env(String),
    Label(String),
    Workdir(String),
    User(String),
    Shell(Vec<String>),
    Volume(Vec<String>),
    Run {
        flags: Vec<Flag>,
        command: RunCommand,
    },
    Copy {
        add: bool,
        flags: Vec<Flag>,
        sources: Vec<Source>,
        target: String,
    },
    Cmd(CommandLine),
    Entrypoint(CommandLine),
    /// The words, unexpanded.
    Expose(String),
    Healthcheck {
        flags: Vec<Flag>,
        /// None for `HEALTHCHECK NONE`.
        command: Option<CommandLine>,
    },
    Stopsignal(String),
    /// An instruction for images that are built from this one.
    Onbuild(String),
    /// `MAINTAINER`, which is not part of the configuration.
    NoEffect,
}

/// A command in one of its two forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CommandLine {
    /// A JSON array.
    Exec(Vec<String>),
    /// A line for the shell.
    Shell(String),
}

impl CommandLine {
    fn parse(text: &str) -> CommandLine {
        match serde_json::from_str(text) {
            Ok(list) => CommandLine::Exec(list),
            Err(_) => CommandLine::Shell(text.to_owned()),
        }
    }
}

/// `--name=value` or `--name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flag {
    pub(crate) name: String,
    pub(crate) value: Option<String>,
}

/// The command of a `RUN`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RunCommand {
    /// A JSON array.
    Exec(Vec<String>),
    /// A line for the shell, followed by the bodies of its here-documents.
    Shell(String),
    /// `RUN <<EOF`: the here-document is itself the script.
    Script(String),
}

/// A source of `COPY` or `ADD`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Path(String),
    /// A here-document: the file's name, its text, and whether variables in it are expanded.
    Inline {
        name: String,
        text: String,
        expand: bool,
    },
}

/// Parses a Dockerfile.
pub(crate) fn parse(text: &str) -> Result<Dockerfile, ImageBuildError> {
    let text = text.trim_start_matches('\u{feff}');
    let masked = mask_here_documents(text)?;
    let parsed = crate_parser::parse(&masked).map_err(|error| {
        let line = error.line();
        let shown = line.checked_sub(1).and_then(|n| text.lines().nth(n)).unwrap_or_default();
        let at = Location { line: line.max(1), text: shorten(shown.trim()) };
        // The alternate form omits the position, which is already in `at`.
        ImageBuildError::Syntax { at, message: format!("{error:#}") }
    })?;
    let escape = parsed.parser_directives.escape.as_ref().map_or('\\', |directive| directive.value.value);
    let source = SourceText { text, escape };
    let mut dockerfile = Dockerfile { escape, global_args: Vec::new(), stages: Vec::new() };
    let (mut line, mut counted) = (1, 0);
    for instruction in &parsed.instructions {
        let start = keyword(instruction).span.start;
        line += text[counted..start].matches('\n').count();
        counted = start;
        let at = Location { line, text: first_line(&text[start..], escape) };
        match (instruction, dockerfile.stages.last_mut()) {
            (crate_parser::Instruction::From(from), _) => dockerfile.stages.push(Stage {
                at,
                flags: flags(&from.options),
                image: from.image.value.to_string(),
                name: from.as_.as_ref().map(|(_, name)| name.value.to_lowercase()),
                instructions: Vec::new(),
            }),
            (crate_parser::Instruction::Arg(arg), None) => {
                dockerfile.global_args.push((at, arg.arguments.value.to_string()));
            }
            (_, Some(stage)) => {
                stage.instructions.push(Instruction { kind: source.kind(instruction), at });
            }
            // The crate rejects every other instruction before the first FROM.
            (_, None) => {}
        }
    }
    Ok(dockerfile)
}

/// The original text, for spans into it.
struct SourceText<'a> {
    text: &'a str,
    escape: char,
}

impl SourceText<'_> {
    fn kind(&self, instruction: &crate_parser::Instruction<'_>) -> Kind {
        use crate_parser::Instruction as Parsed;
        match instruction {
            Parsed::Arg(arg) => Kind::Arg(arg.arguments.value.to_string()),
            Parsed::Env(env) => Kind::Env(env.arguments.value.to_string()),
            Parsed::Label(label) => Kind::Label(label.arguments.value.to_string()),
            Parsed::Workdir(workdir) => Kind::Workdir(workdir.arguments.value.to_string()),
            Parsed::User(user) => Kind::User(user.arguments.value.to_string()),
            Parsed::Shell(shell) => Kind::Shell(strings(&shell.arguments)),
            Parsed::Volume(volume) => Kind::Volume(match &volume.arguments {
                crate_parser::JsonOrStringArray::Json(list) => strings(&list.value),
                crate_parser::JsonOrStringArray::String(list) => strings(list),
            }),
            Parsed::Run(run) => Kind::Run { flags: flags(&run.options), command: self.run_command(run) },
            Parsed::Copy(copy) => Kind::Copy {
                add: false,
                flags: flags(&copy.options),
                sources: copy.src.iter().map(|source| self.source(source)).collect(),
                target: copy.dest.value.to_string(),
            },
            Parsed::Add(add) => Kind::Copy {
                add: true,
                flags: flags(&add.options),
                sources: add.src.iter().map(|source| self.source(source)).collect(),
                target: add.dest.value.to_string(),
            },
            Parsed::Cmd(cmd) => Kind::Cmd(CommandLine::parse(&self.rest(&cmd.cmd))),
            Parsed::Entrypoint(entrypoint) => {
                Kind::Entrypoint(CommandLine::parse(&self.rest(&entrypoint.entrypoint)))
            }
            Parsed::Expose(expose) => Kind::Expose(self.rest(&expose.expose)),
            Parsed::Healthcheck(check) => self.healthcheck(check),
            Parsed::Stopsignal(signal) => Kind::Stopsignal(signal.arguments.value.to_string()),
            Parsed::Onbuild(onbuild) => Kind::Onbuild(self.rest(&onbuild.onbuild)),
            _ => Kind::NoEffect,
        }
    }

    /// What follows a keyword, as one line.
    fn rest(&self, keyword: &crate_parser::Keyword) -> String {
        let rest = &self.text[keyword.span.end..];
        join_continuations(&rest[..logical_line(rest, self.escape)], self.escape)
    }

    fn healthcheck(&self, check: &crate_parser::HealthcheckInstruction<'_>) -> Kind {
        let line = self.rest(&check.healthcheck);
        let mut command = line.as_str();
        while command.starts_with("--") {
            command = command.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim_start());
        }
        let (word, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let command = word.eq_ignore_ascii_case("CMD").then(|| CommandLine::parse(rest.trim()));
        Kind::Healthcheck { flags: flags(&check.options), command }
    }

    fn source(&self, source: &crate_parser::Source<'_>) -> Source {
        match source {
            crate_parser::Source::HereDoc(document) => Source::Inline {
                name: self.text[document.span.end..].lines().next().unwrap_or_default().trim().to_owned(),
                text: document.value.to_string(),
                expand: document.expand,
            },
            crate_parser::Source::Path(path) => Source::Path(path.value.to_string()),
            _ => unreachable!("the grammar has no other source"),
        }
    }

    fn run_command(&self, run: &crate_parser::RunInstruction<'_>) -> RunCommand {
        if let crate_parser::Command::Exec(list) = &run.arguments {
            return RunCommand::Exec(strings(&list.value));
        }
        let header = Header::of(self.text, run);
        let line = join_continuations(&self.text[header.start..header.end], self.escape);
        let markers = markers(&line);
        if markers.is_empty() {
            return RunCommand::Shell(line);
        }
        // Unclosed here-documents were rejected by the masking.
        let bodies = collect_bodies(self.text, header.body, &markers).unwrap_or_default();
        if let ([marker], [body]) = (markers.as_slice(), bodies.as_slice())
            && words(&line).len() == 1
        {
            let text = &self.text[body.start..body.end];
            return RunCommand::Script(if marker.strip_tabs { strip_tabs(text) } else { text.to_owned() });
        }
        let end = bodies.last().map_or(header.body, |body| body.after);
        RunCommand::Shell(format!("{line}\n{}", &self.text[header.body..end]))
    }
}

/// The extent of a `RUN` without its here-documents.
struct Header {
    start: usize,
    end: usize,
    /// The start of the line after the instruction.
    body: usize,
}

impl Header {
    fn of(text: &str, run: &crate_parser::RunInstruction<'_>) -> Header {
        let start = run.options.last().map_or(run.run.span.end, |flag| flag.span().end);
        let end = match &run.arguments {
            crate_parser::Command::Shell(line) => line.span.end.max(start),
            _ => start,
        };
        let body = text[end..].find('\n').map_or(text.len(), |newline| end + newline + 1);
        Header { start, end, body }
    }
}

fn keyword<'a>(instruction: &'a crate_parser::Instruction<'_>) -> &'a crate_parser::Keyword {
    use crate_parser::Instruction as Parsed;
    match instruction {
        Parsed::Add(add) => &add.add,
        Parsed::Arg(arg) => &arg.arg,
        Parsed::Cmd(cmd) => &cmd.cmd,
        Parsed::Copy(copy) => &copy.copy,
        Parsed::Entrypoint(entrypoint) => &entrypoint.entrypoint,
        Parsed::Env(env) => &env.env,
        Parsed::Expose(expose) => &expose.expose,
        Parsed::From(from) => &from.from,
        Parsed::Healthcheck(healthcheck) => &healthcheck.healthcheck,
        Parsed::Label(label) => &label.label,
        Parsed::Maintainer(maintainer) => &maintainer.maintainer,
        Parsed::Onbuild(onbuild) => &onbuild.onbuild,
        Parsed::Run(run) => &run.run,
        Parsed::Shell(shell) => &shell.shell,
        Parsed::Stopsignal(stopsignal) => &stopsignal.stopsignal,
        Parsed::User(user) => &user.user,
        Parsed::Volume(volume) => &volume.volume,
        Parsed::Workdir(workdir) => &workdir.workdir,
        _ => unreachable!("the grammar has no other instruction"),
    }
}

fn flags(flags: &[crate_parser::Flag<'_>]) -> Vec<Flag> {
    flags
        .iter()
        .map(|flag| Flag {
            name: flag.name.value.to_lowercase(),
            value: flag.value.as_ref().map(|value| value.value.to_string()),
        })
        .collect()
}

fn strings(list: &[crate_parser::UnescapedString<'_>]) -> Vec<String> {
    list.iter().map(|item| item.value.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kinds(text: &str) -> Vec<(usize, Kind)> {
        let dockerfile = parse(text).unwrap();
        dockerfile.stages.into_iter().flat_map(|s| s.instructions).map(|i| (i.at.line, i.kind)).collect()
    }

    fn shell(line: &str) -> Kind {
        Kind::Run { flags: vec![], command: RunCommand::Shell(line.to_owned()) }
    }

    #[test]
    fn a_shell_form_becomes_one_line_without_comments_and_continuations() {
        let text = "FROM x\nRUN a && \\\n    # why\n\n    b \\  \n  && c\nRUN d\n";
        assert_eq!(kinds(text), [(2, shell("a &&     b   && c")), (7, shell("d"))]);
    }

    #[test]
    fn the_escape_directive_changes_the_continuation() {
        assert_eq!(kinds("# escape=`\nFROM x\nRUN a `\n b\\\n"), [(3, shell("a  b\\"))]);
    }

    #[test]
    fn here_documents_are_found_anywhere_in_a_run() {
        let text = "FROM x\n\
            RUN cat <<EOF > /a && cat <<-'END' > /b\nRUN not <<AN instruction\nEOF\n\t$x\n\tEND\n\
            RUN <<EOF\necho one\necho two\nEOF\n\
            RUN <<A cat\nbody\nA\n\
            RUN echo $((1<<2)) '<<EOF'\n";
        assert_eq!(
            kinds(text),
            [
                (
                    2,
                    shell(
                        "cat <<EOF > /a && cat <<-'END' > /b\nRUN not <<AN instruction\nEOF\n\t$x\n\tEND\n"
                    )
                ),
                (
                    7,
                    Kind::Run {
                        flags: vec![],
                        command: RunCommand::Script("echo one\necho two\n".to_owned())
                    }
                ),
                (11, shell("<<A cat\nbody\nA\n")),
                (14, shell("echo $((1<<2)) '<<EOF'")),
            ]
        );
    }

    #[test]
    fn a_here_document_of_copy_has_the_name_of_its_delimiter() {
        let text = "FROM x\nCOPY <<one.txt <<'two.txt' /d/\n1 $A\none.txt\n2\ntwo.txt\n";
        let inline = |name: &str, text: &str, expand| Source::Inline {
            name: name.to_owned(),
            text: text.to_owned(),
            expand,
        };
        assert_eq!(
            kinds(text),
            [(
                2,
                Kind::Copy {
                    add: false,
                    flags: vec![],
                    sources: vec![inline("one.txt", "1 $A\n", true), inline("two.txt", "2\n", false)],
                    target: "/d/".to_owned()
                }
            )]
        );
    }

    #[test]
    fn stages_flags_and_global_arguments_are_kept() {
        let text = "ARG V=1\nFROM --platform=linux/amd64 a:$V AS First\nRUN --mount=type=cache,target=/c [\"a\", \"b c\"]\nCMD x\nFROM first\n";
        let parsed = parse(text).unwrap();
        assert_eq!(parsed.global_args[0].1, "V=1");
        assert_eq!(
            (parsed.stages[0].image.as_str(), parsed.stages[0].name.as_deref()),
            ("a:$V", Some("first"))
        );
        assert_eq!(
            parsed.stages[0].flags,
            [Flag { name: "platform".to_owned(), value: Some("linux/amd64".to_owned()) }]
        );
        assert_eq!(
            parsed.stages[0].instructions[0].kind,
            Kind::Run {
                flags: vec![Flag {
                    name: "mount".to_owned(),
                    value: Some("type=cache,target=/c".to_owned())
                }],
                command: RunCommand::Exec(vec!["a".to_owned(), "b c".to_owned()])
            }
        );
        assert_eq!(parsed.stages[0].instructions[1].kind, Kind::Cmd(CommandLine::Shell("x".to_owned())));
        assert_eq!(parsed.stages[1].image, "first");
    }

    #[test]
    fn a_syntax_error_names_its_line_once() {
        let error = |text: &str| parse(text).map(|_| ()).unwrap_err().to_string();
        insta::assert_snapshot!(error("FROM x\n\nRUM ls\n"), @"Dockerfile line 3 `RUM ls`: unknown instruction 'RUM'");
        insta::assert_snapshot!(error("# nothing\n"), @"Dockerfile line 1: expected at least one FROM instruction");
        insta::assert_snapshot!(error("RUN ls\n"), @"Dockerfile line 1 `RUN ls`: expected FROM");
        insta::assert_snapshot!(error("FROM x\nRUN cat <<EOF\nls\n"), @"Dockerfile line 2 `RUN cat <<EOF`: a here-document is not closed by its delimiter on a line of its own");
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_rejected_without_panic(text in "(FROM x\n|RUN |<<E|E\n|COPY a b|\\\\\n|#|\"|\\[|ENV a|=|-|\n|é){0,20}") {
            let _ = parse(&text);
        }
    }
}
