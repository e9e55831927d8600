//! What people see when an agent, a variable or a dataset of a job is wrong.

use super::job_problems as job;

fn agents(text: &str) -> String {
    job(&format!("datasets: [{{path: src}}]\nagents:\n{text}"))
}

fn datasets(text: &str) -> String {
    job(&format!("agents: [{{name: oracle}}]\ndatasets:\n{text}"))
}

#[test]
fn agents_without_scripts_and_reserved_agents_with_them_are_refused() {
    insta::assert_snapshot!(agents("\
- name: mine
- name: oracle
  execute: ./run
- name: nop
  install_file: x.sh
- description: no name
  execute: ./run
- name: blank
  execute: ' '
- both
"), @"
    error: `execute` is missing in `agents.0`
     --> job.yaml:3:3
      |
    3 | - name: mine
      |   ^
      |
      = help: write the script under `execute:`, or its path under `execute_file:`, or a `model:`; agents that need neither are `oracle` and `nop`

    error: the agent `oracle` runs the task's own solution, so it cannot have `execute`
     --> job.yaml:5:3
      |
    5 |   execute: ./run
      |   ^^^^^^^
      |
      = help: remove `execute`, or give the agent another name

    error: the agent `nop` does nothing, so it cannot have `install_file`
     --> job.yaml:7:3
      |
    7 |   install_file: x.sh
      |   ^^^^^^^^^^^^
      |
      = help: remove `install_file`, or give the agent another name

    error: `name` is missing in `agents.3`
     --> job.yaml:8:3
      |
    8 | - description: no name
      |   ^
      |
      = help: every agent has a `name:`

    error: the script of `agents.4.execute` is empty
      --> job.yaml:11:12
       |
    11 |   execute: ' '
       |            ^^^

    error: `agents.5` must be a mapping of keys to values, not a string
      --> job.yaml:12:3
       |
    12 | - both
       |   ^^^^
    ");
}

#[test]
fn scripts_are_given_in_one_way() {
    insta::assert_snapshot!(agents("\
- name: mine
  install: a
  install_file: b
  execute_file: no/such/file.sh
"), @"
    error: `install` and `install_file` exclude each other
     --> job.yaml:5:3
      |
    4 |   install: a
      |   ------- also given here
    5 |   install_file: b
      |   ^^^^^^^^^^^^
      |
      = help: keep one of them

    error: `agents.0.execute_file`: cannot read this file: No such file or directory (os error 2)
     --> job.yaml:6:17
      |
    6 |   execute_file: no/such/file.sh
      |                 ^^^^^^^^^^^^^^^
      |
      = help: the path is relative to the job file
    ");
}

#[test]
fn two_agents_of_one_name_are_refused() {
    insta::assert_snapshot!(agents("\
- name: mine
  execute: a
- name: mine
  execute: b
"), @"
    error: two agents are named `mine`
     --> job.yaml:5:9
      |
    3 | - name: mine
      |         ---- the first one
    4 |   execute: a
    5 | - name: mine
      |         ^^^^
      |
      = help: give one of them another `name:`; results are grouped by it
    ");
}

#[test]
fn variables_are_texts() {
    insta::assert_snapshot!(agents("\
- name: mine
  execute: echo ${UNSET_IN_SCRIPTS_IS_THE_SHELLS_BUSINESS}
  env:
    A: null
    B: [1]
    C: ${MISSING}
    D: \"x ${SET} ${ALSO_MISSING} y\"
    E: ${SET-x}
    F: ${SET
    G=H: x
"), @r#"
    error: `agents.0.env.A` must be a string, a number or a boolean, not nothing
     --> job.yaml:6:8
      |
    6 |     A: null
      |        ^^^^

    error: `agents.0.env.B` must be a string, a number or a boolean, not a list
     --> job.yaml:7:8
      |
    7 |     B: [1]
      |        ^

    error: the variable `MISSING` is not set
     --> job.yaml:8:8
      |
    8 |     C: ${MISSING}
      |        ^^^^^^^^^^
      |
      = help: set it, or write `${MISSING:-default}`

    error: the variable `ALSO_MISSING` is not set
     --> job.yaml:9:18
      |
    9 |     D: "x ${SET} ${ALSO_MISSING} y"
      |                  ^^^^^^^^^^^^^^^
      |
      = help: set it, or write `${ALSO_MISSING:-default}`

    error: `${SET-x}` is not understood
      --> job.yaml:10:8
       |
    10 |     E: ${SET-x}
       |        ^^^^^^^^
       |
       = help: write `${NAME}` or `${NAME:-default}`

    error: a `${` is not closed
      --> job.yaml:11:8
       |
    11 |     F: ${SET
       |        ^^
       |
       = help: close it with `}`

    error: `G=H` cannot be the name of a variable
      --> job.yaml:12:5
       |
    12 |     G=H: x
       |     ^^^
    "#);
}

#[test]
fn datasets_have_one_source() {
    insta::assert_snapshot!(datasets("\
- name: neither
- path: src
  registry: {path: Cargo.toml}
- registry: {}
  name: x
- registry: {path: Cargo.toml, url: https://example.org}
  name: y
- registry: {path: Cargo.toml}
- path: no/such/dir
- path: src
  version: 1
  rename: z
- registry: {path: no.json}
  name: w
- registry: {url: ftp://example.org/x}
  name: v
- registry: {url: https://example.org/x}
  name: org/dataset
"), @"
    error: `path` is missing in `datasets.0`
     --> job.yaml:3:3
      |
    3 | - name: neither
      |   ^
      |
      = help: a dataset has a `path:`, a `registry:` with a `name:`, or an `interaction:`

    error: `path` and `registry` exclude each other
     --> job.yaml:5:3
      |
    4 | - path: src
      |   ---- also given here
    5 |   registry: {path: Cargo.toml}
      |   ^^^^^^^^
      |
      = help: keep one of them

    error: `path` is missing in `datasets.2.registry`
     --> job.yaml:6:13
      |
    6 | - registry: {}
      |             ^
      |
      = help: a registry has a `path:` or a `url:`

    error: `path` and `url` exclude each other
     --> job.yaml:8:32
      |
    8 | - registry: {path: Cargo.toml, url: https://example.org}
      |              ----              ^^^
      |              |
      |              also given here
      |
      = help: keep one of them

    error: `name` is missing in `datasets.4`
      --> job.yaml:10:3
       |
    10 | - registry: {path: Cargo.toml}
       |   ^
       |
       = help: write the `name:` that the dataset has in the registry

    error: `no/such/dir` is not a directory
      --> job.yaml:11:9
       |
    11 | - path: no/such/dir
       |         ^^^^^^^^^^^
       |
       = help: write the directory of a task, or one that holds tasks, relative to the job file

    error: `version` has no meaning beside `path`
      --> job.yaml:13:3
       |
    13 |   version: 1
       |   ^^^^^^^
       |
       = help: versions exist only in a registry

    error: `rename` has no meaning beside `path`
      --> job.yaml:14:3
       |
    14 |   rename: z
       |   ^^^^^^
       |
       = help: a dataset that is not in a registry is renamed with `name:`

    error: `no.json` does not exist
      --> job.yaml:15:20
       |
    15 | - registry: {path: no.json}
       |                    ^^^^^^^
       |
       = help: the path is relative to the job file

    error: `registry.url` must be an `http` or `https` URL
      --> job.yaml:17:19
       |
    17 | - registry: {url: ftp://example.org/x}
       |                   ^^^^^^^^^^^^^^^^^^^
       |
       = help: a file on this machine goes under `path:`

    error: `org/dataset` cannot be the name of a dataset: a name becomes a directory, so it cannot be a path
      --> job.yaml:20:9
       |
    20 |   name: org/dataset
       |         ^^^^^^^^^^^
       |
       = help: name its directory in the results with `rename:`
    ");
}

#[test]
fn two_datasets_of_one_name_are_told_how_to_rename() {
    insta::assert_snapshot!(datasets("\
- path: src
- path: ./src/../src/
- registry: {url: https://example.org/r.json}
  name: bench
  version: 1
- registry: {url: https://example.org/r.json}
  name: bench
  version: 2
"), @"
    error: two datasets are named `src`
     --> job.yaml:4:9
      |
    3 | - path: src
      |         --- the first one
    4 | - path: ./src/../src/
      |         ^^^^^^^^^^^^^
      |
      = help: give this one another name with `name:`; results are grouped by it

    error: two datasets are named `bench`
     --> job.yaml:9:9
      |
    6 |   name: bench
      |         ----- the first one
    ...
    9 |   name: bench
      |         ^^^^^
      |
      = help: give this one another name with `rename:`; results are grouped by it
    ");
}
