//! How problems are shown, whatever they are: syntax, files, overrides, floods.

use std::path::Path;

use rollout::config::{Code, Override, load_job, load_job_text};

use super::{job_problems as job, job_problems_with as job_with, refused};

#[test]
fn files_that_cannot_be_read_are_one_problem() {
    let dir = tempfile::tempdir().unwrap();
    let none = |_: &str| None;
    let show = |path: &Path| {
        let text = load_job(path, &[], &none).unwrap_err().render(false);
        text.replace(&dir.path().display().to_string(), "DIR")
    };
    insta::assert_snapshot!(show(&dir.path().join("job.yaml")), @"
    error: cannot read this file: No such file or directory (os error 2)
    --> DIR/job.yaml
    ");
    insta::assert_snapshot!(show(dir.path()), @"
    error: this is a directory, not a file
    --> DIR
    ");
    let path = dir.path().join("latin1.yaml");
    std::fs::write(&path, b"name: caf\xe9\n").unwrap();
    insta::assert_snapshot!(show(&path), @"
    error: this file is not UTF-8: the byte at offset 9 is wrong
    --> DIR/latin1.yaml
    ");
    let path = dir.path().join("big.yaml");
    std::fs::File::create(&path).unwrap().set_len(17 << 20).unwrap();
    insta::assert_snapshot!(show(&path), @"
    error: this file is larger than the 16 MiB that are read
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
        let shown = job_with(text);
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
    let shown = job_with(&format!("unknown: [{}]\n", "x, ".repeat(20_000)));
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
fn overrides_are_shown_as_they_were_given() {
    let overrides: Vec<Override> = [
        "n_attempts=many",
        "agents.3.name=x",
        "environment.typ=docker",
        "n_attempts.x=1",
        "verifier.env=[",
        "a..b=1",
    ]
    .iter()
    .map(|text| text.parse().unwrap())
    .collect();
    let text = "agents: [{name: nop}]\ndatasets: [{path: src}]\nn_attempts: 1\n";
    let problems = load_job_text(Path::new("job.yaml"), text, &overrides, &|_| None).unwrap_err();
    insta::assert_snapshot!(problems.render(false), @"
    error: `n_attempts` must be a whole number, not a string
     --> --set:1:12
      |
    1 | n_attempts=many
      |            ^^^^

    error: `3` is not an entry of this list
     --> --set:1:8
      |
    1 | agents.3.name=x
      |        ^
      |
      = help: entries are numbered from 0 to 0

    error: unknown key `typ` in `environment`
     --> --set:1:13
      |
    1 | environment.typ=docker
      |             ^^^
      |
      = help: did you mean `type`? known keys in `environment`: `type`, `force_build`, `cache_agent_install`, `preserve_env`, `preserveEnv`, `provider_config`, `override_cpus`, `override_memory`, `override_memory_mb`, `override_storage`, `override_storage_mb`

    error: `x` cannot be set inside a string
     --> --set:1:12
      |
    1 | n_attempts.x=1
      |            ^

    error: the value is not YAML: unclosed bracket '['
     --> --set:1:14
      |
    1 | verifier.env=[
      |              ^

    error: a part of the key is empty
     --> --set:1:1
      |
    1 | a..b=1
      | ^^^^
    ");
    insta::assert_snapshot!("no-equals-sign".parse::<Override>().unwrap_err(), @"`no-equals-sign` is not of the form key=value");
}

#[test]
fn bad_syntax_is_shown_at_its_place() {
    insta::assert_snapshot!(job("agents: [{name: oracle}\ndatasets:\n  - path: x\n"), @"
    error: this is not YAML: illegal placement of ':' indicator
     --> job.yaml:2:9
      |
    2 | datasets:
      |         ^
    ");
    insta::assert_snapshot!(job("name: x\n\tbad: tab\n"), @"
    error: this is not YAML: while scanning a plain scalar, found a tab
     --> job.yaml:1:7
      |
    1 | name: x
      |       ^
    ");
    insta::assert_snapshot!(job("name: x\n---\nname: y\n"), @"
    error: this is not YAML: a file can hold only one YAML document
     --> job.yaml:3:1
      |
    3 | name: y
      | ^
    ");
    insta::assert_snapshot!(job("agents: *nowhere\n"), @"
    error: this is not YAML: alias references unknown anchor
     --> job.yaml:1:9
      |
    1 | agents: *nowhere
      |         ^
    ");
}

#[test]
fn a_key_written_twice_is_shown_in_both_places() {
    insta::assert_snapshot!(job_with("name: one\nn_attempts: 2\nname: two\n"), @"
    error: the key `name` is written twice
     --> job.yaml:5:1
      |
    3 | name: one
      | ---- first written here
    4 | n_attempts: 2
    5 | name: two
      | ^^^^
      |
      = help: keep one of them
    ");
    insta::assert_snapshot!(job_with("environment: {provider_config: {a: {x: 1, x: 2}}}\n"), @"
    error: the key `x` is written twice
     --> job.yaml:3:43
      |
    3 | environment: {provider_config: {a: {x: 1, x: 2}}}
      |                                     -     ^
      |                                     |
      |                                     first written here
      |
      = help: keep one of them
    ");
}
