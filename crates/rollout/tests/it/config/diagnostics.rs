//! How problems are shown, whatever they are: files, floods, colours.

use std::path::Path;

use rollout::config::{Code, Override, Problems, load_job, load_job_text};

fn refused(text: &str) -> Problems {
    load_job_text(Path::new("job.yaml"), text, &[], &|_| None).unwrap_err()
}

/// A job with one more thing in it, which makes it wrong.
fn refused_with(more: &str) -> String {
    refused(&format!("agents: [{{name: oracle}}]\ndatasets: [{{path: src}}]\n{more}")).render(false)
}

#[test]
fn a_job_file_that_is_missing_is_reported_with_a_similar_name() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("job.yaml"), "").unwrap();
    std::fs::write(dir.path().join("notes.txt"), "").unwrap();
    let missing = |name: &str| load_job(&dir.path().join(name), &[], &|_| None).unwrap_err().to_string();
    let similar = format!("did you mean {}?", dir.path().join("job.yaml").display());
    assert!(missing("jobs.yaml").contains(&similar), "{}", missing("jobs.yaml"));
    assert!(!missing("notes.tx").contains("did you mean"), "{}", missing("notes.tx"));
}

#[test]
fn files_that_cannot_be_read_are_one_problem() {
    let dir = tempfile::tempdir().unwrap();
    let none = |_: &str| None;
    let show = |path: &Path| {
        let text = load_job(path, &[], &none).unwrap_err().render(false);
        text.replace(&dir.path().display().to_string(), "DIR")
    };
    insta::assert_snapshot!(show(&dir.path().join("job.yaml")), @"
    error: this file does not exist
    --> DIR/job.yaml
    ");
    insta::assert_snapshot!(show(dir.path()), @"
    error: this is a directory, not a file
    --> DIR
    ");
    let path = dir.path().join("latin1.yaml");
    std::fs::write(&path, b"name: caf\xe9\n").unwrap();
    insta::assert_snapshot!(show(&path), @"
    error: this file is not UTF-8: invalid byte at offset 9
    --> DIR/latin1.yaml
    ");
    let path = dir.path().join("big.yaml");
    std::fs::File::create(&path).unwrap().set_len(17 << 20).unwrap();
    insta::assert_snapshot!(show(&path), @"
    error: this file is larger than 16 MiB
    --> DIR/big.yaml
    ");
}

#[test]
fn nothing_in_a_file_reaches_the_terminal_as_a_command() {
    for text in [
        "\u{1b}[31mred: raw\n",
        "\"\\e[31mred\": escaped\n",
        "unknown: \"\u{9b}2J\u{202e}\"\n",
        "name: \"a/\\e[31m\"\n",
        "log_level: \"\\e[31m\"\n",
        "environment: {override_memory: \"\\e[31m\"}\n",
        "verifier: {env: {\"\\e[31m\": null}}\n",
    ] {
        let shown = refused_with(text);
        assert!(shown.contains("31m") || shown.contains("2J"), "{shown}");
        assert!(!shown.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{shown:?}");
    }
}

#[test]
fn a_flood_of_problems_is_cut() {
    let text = (0..5000).map(|index| format!("key{index}: 1\n")).collect::<String>();
    let problems = refused(&text);
    assert_eq!(problems.diagnostics().len(), 101);
    insta::assert_snapshot!(problems.diagnostics()[100].render(false), @"
    error: 4902 more problems are not shown
    --> job.yaml
    ");
}

#[test]
fn a_long_line_is_shown_in_part() {
    let shown = refused_with(&format!("unknown: [{}]\n", "x, ".repeat(20_000)));
    assert!(shown.len() < 2000, "{} characters", shown.len());
}

#[test]
fn problems_are_data_too() {
    let problems = refused("agents: [{name: oracle}]\ndatasets: [{path: src}]\nn_attempts: zero\n");
    assert_eq!(problems.diagnostics()[0].code, Code::WrongType);
    insta::assert_json_snapshot!(problems, @r#"
    [
      {
        "severity": "error",
        "code": "wrong_type",
        "message": "`n_attempts` must be a whole number, not a string",
        "file": "job.yaml",
        "line": 3,
        "column": 13,
        "span": {
          "start": 61,
          "end": 65
        },
        "hint": null
      }
    ]
    "#);
}

#[test]
fn colour_only_adds_to_the_text() {
    let problems = refused("agents: []\ndatasets: [{path: src}]\n");
    let coloured = problems.render(true);
    assert!(coloured.contains("\u{1b}["));
    assert!(!problems.render(false).contains('\u{1b}'));
    assert_eq!(problems.to_string(), problems.render(false));
}

#[test]
fn an_override_without_a_value_is_rejected() {
    insta::assert_snapshot!("no-equals-sign".parse::<Override>().unwrap_err(), @"`no-equals-sign` is not of the form key=value");
}
