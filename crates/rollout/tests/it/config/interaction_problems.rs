//! What people see when an interaction is wrong.

use std::fs;

use super::{job_in, job_problems as job};

pub(super) fn interaction(text: &str) -> String {
    let indented: String = text.lines().map(|line| format!("    {line}\n")).collect();
    job(&format!(
        "agents: [{{name: m, model: {{name: m, base_url: http://x}}}}]\n\
         datasets:\n- name: sums\n  interaction:\n{indented}"
    ))
}

/// What is wrong with an interaction that is good but for this.
pub(super) fn but_for(text: &str) -> String {
    interaction(&format!("dataset: [{{question: 1 + 1?}}]\nrubric: [{{match: exact}}]\n{text}"))
}

#[test]
fn an_interaction_without_examples_or_a_rubric_is_refused() {
    insta::assert_snapshot!(interaction("max_turns: 1\n"), @"
    error: `dataset` is missing in `datasets.0.interaction`
     --> job.yaml:5:5
      |
    5 |     max_turns: 1
      |     ^
      |
      = help: write the path of a file of JSON lines under `dataset:`, or a list of examples

    error: `rubric` is missing in `datasets.0.interaction`
     --> job.yaml:5:5
      |
    5 |     max_turns: 1
      |     ^
      |
      = help: such as `- match: exact`, which compares the answer with that of the example
    ");
    insta::assert_snapshot!(interaction("dataset: []\nrubric: []\n"), @r#"
    error: `datasets.0.interaction.dataset` has no examples
     --> job.yaml:5:14
      |
    5 |     dataset: []
      |              ^
      |
      = help: such as `- {question: 1 + 1?, answer: "2"}`

    error: `datasets.0.interaction.rubric` is empty
     --> job.yaml:6:13
      |
    6 |     rubric: []
      |             ^
      |
      = help: such as `- match: exact`, which compares the answer with that of the example
    "#);
    insta::assert_snapshot!(interaction("dataset: [{answer: 4}, 7]\nrubric: [{match: exact}]\n"), @"
    error: `question` is missing in `datasets.0.interaction.dataset.0`
     --> job.yaml:5:15
      |
    5 |     dataset: [{answer: 4}, 7]
      |               ^
      |
      = help: an example has a `question:`, or a `prompt:` of messages

    error: `datasets.0.interaction.dataset.1` must be a mapping of keys to values, not a whole number
     --> job.yaml:5:28
      |
    5 |     dataset: [{answer: 4}, 7]
      |                            ^
    ");
    insta::assert_snapshot!(interaction("dataset: none.jsonl\nrubric: exact\n"), @"
    error: `datasets.0.interaction.dataset`: cannot read this file: No such file or directory (os error 2)
     --> job.yaml:5:14
      |
    5 |     dataset: none.jsonl
      |              ^^^^^^^^^^
      |
      = help: write the path of a file of JSON lines, relative to the file that it is written in

    error: `datasets.0.interaction.rubric` must be a list, not a string
     --> job.yaml:6:13
      |
    6 |     rubric: exact
      |             ^^^^^
    ");
}

#[test]
fn numbers_out_of_range_and_unknown_keys_are_refused() {
    insta::assert_snapshot!(but_for("\
num_examples: 0
shuffle_seed: -1
max_turns: 0
pass_threshold: .inf
max_turn: 5
few_shot: [{role: person, content: hi}, {content: hi}, {role: user, tool_calls: 7}]
state_columns: [1]
"), @r#"
    error: `datasets.0.interaction.num_examples` must be at least 1, not 0
     --> job.yaml:7:19
      |
    7 |     num_examples: 0
      |                   ^

    error: `datasets.0.interaction.shuffle_seed` must be at least 0, not -1
     --> job.yaml:8:19
      |
    8 |     shuffle_seed: -1
      |                   ^^

    error: `datasets.0.interaction.max_turns` must be at least 1, not 0
     --> job.yaml:9:16
      |
    9 |     max_turns: 0
      |                ^

    error: `datasets.0.interaction.pass_threshold` must be a finite number, not inf
      --> job.yaml:10:21
       |
    10 |     pass_threshold: .inf
       |                     ^^^^

    error: unknown key `max_turn` in `datasets.0.interaction`
      --> job.yaml:11:5
       |
    11 |     max_turn: 5
       |     ^^^^^^^^
       |
       = help: did you mean `max_turns`? known keys in `datasets.0.interaction`: `directory`, `dataset`, `dataset_sha256`, `num_examples`, `shuffle`, `shuffle_seed`, `system_prompt`, `few_shot`, `type`, `max_turns`, `tools`, `environment`, `rubric`, `parser`, `limits`, `state_columns`, `independent_scoring`, `pass_threshold`

    error: `datasets.0.interaction.few_shot.0.role` cannot be `person`
      --> job.yaml:12:23
       |
    12 |     few_shot: [{role: person, content: hi}, {content: hi}, {role: user, tool_calls: 7}]
       |                       ^^^^^^
       |
       = help: it can be one of `system`, `user`, `assistant`, `tool`

    error: `role` is missing in `datasets.0.interaction.few_shot.1`
      --> job.yaml:12:45
       |
    12 |     few_shot: [{role: person, content: hi}, {content: hi}, {role: user, tool_calls: 7}]
       |                                             ^
       |
       = help: a message has a `role:` and a `content:`

    error: `datasets.0.interaction.few_shot.2` is not a message: invalid type: integer `7`, expected a sequence
      --> job.yaml:12:60
       |
    12 |     few_shot: [{role: person, content: hi}, {content: hi}, {role: user, tool_calls: 7}]
       |                                                            ^

    error: `datasets.0.interaction.state_columns.0` must be a string, not a whole number
      --> job.yaml:13:21
       |
    13 |     state_columns: [1]
       |                     ^
       |
       = help: write "1" with quotes
    "#);
}

#[test]
fn the_kind_of_an_interaction_fits_what_it_has() {
    insta::assert_snapshot!(but_for("type: single_turn\ntools: [{command: [t], name: t, description: d}]\n"), @"
    error: a single turn leaves no room for tools
     --> job.yaml:7:11
      |
    7 |     type: single_turn
      |           ^^^^^^^^^^^
      |
      = help: write `type: tool_use`, or leave `tools` out
    ");
    insta::assert_snapshot!(but_for("max_turns: 3\n"), @"
    error: a single turn is never more than one
     --> job.yaml:7:16
      |
    7 |     max_turns: 3
      |                ^
      |
      = help: write `type: multi_turn`, or `tools:`, or leave `max_turns` out
    ");
    insta::assert_snapshot!(but_for("type: tool_use\n"), @"
    error: there are no tools to use
     --> job.yaml:7:11
      |
    7 |     type: tool_use
      |           ^^^^^^^^
      |
      = help: write what the model may call under `tools:`
    ");
    insta::assert_snapshot!(but_for("type: multi_turn\n"), @"
    error: nothing would surely end this conversation
     --> job.yaml:7:11
      |
    7 |     type: multi_turn
      |           ^^^^^^^^^^
      |
      = help: write `max_turns:`, or `timeout_sec:` under `limits:`
    ");
    insta::assert_snapshot!(but_for("type: multiturn\nmax_turns: 2\nlimits: {max_turns: 3}\n"), @"
    error: `datasets.0.interaction.type` cannot be `multiturn`
     --> job.yaml:7:11
      |
    7 |     type: multiturn
      |           ^^^^^^^^^
      |
      = help: did you mean `multi_turn`? it can be one of `single_turn`, `multi_turn`, `tool_use`

    error: `max_turns` is given here and in `limits`
     --> job.yaml:8:16
      |
    8 |     max_turns: 2
      |                ^
      |
      = help: keep one of them
    ");
}

#[test]
fn tools_of_a_container_need_one() {
    insta::assert_snapshot!(but_for("tools: [{container: [bash]}]\n"), @"
    error: `environment` is missing in `datasets.0.interaction`
     --> job.yaml:5:5
      |
    5 |     dataset: [{question: 1 + 1?}]
      |     ^
      |
      = help: tools of a container need one: write its `docker_image:` or `path:`
    ");
    insta::assert_snapshot!(but_for("environment: {docker_image: a, path: b}\n"), @"
    error: nothing works in this environment
     --> job.yaml:7:18
      |
    7 |     environment: {docker_image: a, path: b}
      |                  ^
      |
      = help: write `tools: [{container: [bash]}]`, or leave `environment` out

    error: `docker_image` and `path` exclude each other
     --> job.yaml:7:36
      |
    7 |     environment: {docker_image: a, path: b}
      |                   ------------     ^^^^
      |                   |
      |                   also given here
      |
      = help: keep one of them
    ");
    insta::assert_snapshot!(but_for("tools: [{container: [bash]}]\nenvironment: {path: src, cpus: -1}\n"), @"
    error: there is no Dockerfile in `src`
     --> job.yaml:8:25
      |
    8 |     environment: {path: src, cpus: -1}
      |                         ^^^
      |
      = help: write a directory that has one, relative to the file that it is written in

    error: `datasets.0.interaction.environment.cpus` cannot be `-1`: a quantity must be more than 0
     --> job.yaml:8:36
      |
    8 |     environment: {path: src, cpus: -1}
      |                                    ^^
    ");
}

#[test]
fn an_interaction_in_a_job_needs_a_name() {
    insta::assert_snapshot!(job("\
agents: [{name: m, model: {name: m, base_url: http://x}}]
datasets:
- interaction: {dataset: [{question: 1 + 1?}], rubric: [{match: exact}]}
- {name: n, version: 1, rename: o, interaction: {dataset: [{question: 1 + 1?}], rubric: [{match: exact}]}}
- {path: src, interaction: none.yaml}
- {interaction: none.yaml}
"), @"
    error: `name` is missing in `datasets.0`
     --> job.yaml:3:3
      |
    3 | - interaction: {dataset: [{question: 1 + 1?}], rubric: [{match: exact}]}
      |   ^
      |
      = help: an interaction that has no file of its own has a `name:`

    error: `version` has no meaning beside `interaction`
     --> job.yaml:4:13
      |
    4 | - {name: n, version: 1, rename: o, interaction: {dataset: [{question: 1 + 1?}], rubric: [{match: exact}]}}
      |             ^^^^^^^
      |
      = help: versions exist only in a registry

    error: `rename` has no meaning beside `interaction`
     --> job.yaml:4:25
      |
    4 | - {name: n, version: 1, rename: o, interaction: {dataset: [{question: 1 + 1?}], rubric: [{match: exact}]}}
      |                         ^^^^^^
      |
      = help: a dataset that is not in a registry is renamed with `name:`

    error: `path` and `interaction` exclude each other
     --> job.yaml:5:15
      |
    5 | - {path: src, interaction: none.yaml}
      |    ----       ^^^^^^^^^^^
      |    |
      |    also given here
      |
      = help: keep one of them

    error: `datasets.2.interaction`: cannot read this file: No such file or directory (os error 2)
     --> job.yaml:5:28
      |
    5 | - {path: src, interaction: none.yaml}
      |                            ^^^^^^^^^
      |
      = help: the path is relative to the file that it is written in

    error: `datasets.3.interaction`: cannot read this file: No such file or directory (os error 2)
     --> job.yaml:6:17
      |
    6 | - {interaction: none.yaml}
      |                 ^^^^^^^^^
      |
      = help: the path is relative to the file that it is written in
    ");
}

#[test]
fn problems_in_an_interaction_file_are_shown_where_they_are() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("math.yaml"), "dataset: none.jsonl\nrubric:\n  - match: exakt\n").unwrap();
    fs::write(dir.path().join("bad.yaml"), "dataset: [\n").unwrap();
    let text = "agents: [{name: m, model: {name: m, base_url: http://x}}]\n\
                datasets: [{interaction: math.yaml}, {interaction: bad.yaml}]\n";
    let problems = job_in(dir.path(), text, &[]).unwrap_err().render(false);
    insta::assert_snapshot!(problems.replace(&dir.path().display().to_string(), "<dir>"), @"
    error: `datasets.0.interaction.dataset`: cannot read this file: No such file or directory (os error 2)
     --> <dir>/math.yaml:1:10
      |
    1 | dataset: none.jsonl
      |          ^^^^^^^^^^
      |
      = help: write the path of a file of JSON lines, relative to the file that it is written in

    error: `datasets.0.interaction.rubric.0.match` cannot be `exakt`
     --> <dir>/math.yaml:3:12
      |
    3 |   - match: exakt
      |            ^^^^^
      |
      = help: did you mean `exact`? it can be one of `exact`, `contains`, `numeric`, `math`

    error: this is not YAML: unclosed bracket '['
     --> <dir>/bad.yaml:1:10
      |
    1 | dataset: [
      |          ^
    ");
}
