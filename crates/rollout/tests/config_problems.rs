//! What people see when a job or task file is wrong: every problem at once, each at its place.
#![expect(clippy::unwrap_used, reason = "a helper that cannot set up its files fails its test")]

use std::path::Path;

use proptest::prelude::*;

use rollout::config::{Code, Override, Problems, load_job, load_job_text, load_task_config};

fn refused(text: &str) -> Problems {
    let vars = |name: &str| (name == "SET").then(|| "value".to_owned());
    load_job_text(Path::new("job.yaml"), text, &[], &vars).unwrap_err()
}

fn job(text: &str) -> String {
    refused(text).render(false)
}

/// A job with one more thing in it, which makes it wrong.
fn job_with(more: &str) -> String {
    job(&format!("agents: [{{name: oracle}}]\ndatasets: [{{path: src}}]\n{more}"))
}

fn agents(text: &str) -> String {
    job(&format!("datasets: [{{path: src}}]\nagents:\n{text}"))
}

fn datasets(text: &str) -> String {
    job(&format!("agents: [{{name: oracle}}]\ndatasets:\n{text}"))
}

fn task(text: &str) -> String {
    load_task_config(Path::new("task.toml"), text).unwrap_err().render(false)
}

fn task_warnings(text: &str) -> String {
    let (_, warnings) = load_task_config(Path::new("task.toml"), text).unwrap();
    warnings.iter().map(|warning| warning.render(false)).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_problem_of_a_file_is_told_at_once() {
    insta::assert_snapshot!(job("\
n_attempt: 3
n_concurrent_trials: 0
timeout_multiplier: -1
environment:
  type: dokcer
  force_build: yes
agents:
  - name: a/b
    instal: pip install x
datasets: []
"), @"
    error: unknown key `n_attempt`
     --> job.yaml:1:1
      |
    1 | n_attempt: 3
      | ^^^^^^^^^
      |
      = help: did you mean `n_attempts`? known keys: `name`, `jobs_dir`, `n_attempts`, `n_concurrent_trials`, `timeout_multiplier`, `retry`, `log_level`, `instruction_path`, `compat`, `environment`, `verifier`, `metrics`, `agents`, `datasets`

    error: `n_concurrent_trials` must be at least 1, not 0
     --> job.yaml:2:22
      |
    2 | n_concurrent_trials: 0
      |                      ^

    error: `timeout_multiplier` must be more than 0, not -1
     --> job.yaml:3:21
      |
    3 | timeout_multiplier: -1
      |                     ^^

    error: `environment.type` cannot be `dokcer`
     --> job.yaml:5:9
      |
    5 |   type: dokcer
      |         ^^^^^^
      |
      = help: did you mean `docker`? it can be one of `native`, `docker`, `kubernetes`, `k8s`, `modal`, `fly`

    error: `environment.force_build` must be true or false, not a string
     --> job.yaml:6:16
      |
    6 |   force_build: yes
      |                ^^^
      |
      = help: write true

    error: `execute` is missing in `agents.0`
     --> job.yaml:8:5
      |
    8 |   - name: a/b
      |     ^
      |
      = help: write the script under `execute:`, or its path under `execute_file:`; agents without scripts are `oracle` and `nop`

    error: `a/b` cannot be the name of an agent: a name becomes a directory, so it cannot be a path
     --> job.yaml:8:11
      |
    8 |   - name: a/b
      |           ^^^

    error: unknown key `instal` in `agents.0`
     --> job.yaml:9:5
      |
    9 |     instal: pip install x
      |     ^^^^^^
      |
      = help: did you mean `install`? known keys in `agents.0`: `name`, `description`, `install`, `install_file`, `install_sha256`, `execute`, `execute_file`, `execute_sha256`, `env`

    error: `datasets` is empty
      --> job.yaml:10:11
       |
    10 | datasets: []
       |           ^
       |
       = help: a job needs at least one dataset, such as `- path: ./tasks`
    ");
}

#[test]
fn an_empty_file_is_told_what_a_job_needs() {
    insta::assert_snapshot!(job(""), @"
    error: `agents` is missing
     --> job.yaml:1:1
      |
    1 |
      | ^
      |
      = help: a job needs at least one agent, such as `- name: oracle`

    error: `datasets` is missing
     --> job.yaml:1:1
      |
    1 |
      | ^
      |
      = help: a job needs at least one dataset, such as `- path: ./tasks`
    ");
}

#[test]
fn a_file_that_is_no_mapping_is_refused() {
    insta::assert_snapshot!(job("- just\n- a list\n"), @"
    error: the file must be a mapping of keys to values, not a list
     --> job.yaml:1:1
      |
    1 | - just
      | ^
    ");
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

#[test]
fn values_of_the_wrong_type_say_what_is_expected() {
    insta::assert_snapshot!(job_with("\
name: 2024
jobs_dir: [a]
n_attempts: \"3\"
timeout_multiplier: fast
retry: 3
log_level: true
environment:
  override_memory: [2]
  provider_config: none
verifier:
  disable: \"off\"
metrics: mean
"), @r#"
    error: `name` must be a string, not a whole number
     --> job.yaml:3:7
      |
    3 | name: 2024
      |       ^^^^
      |
      = help: write "2024" with quotes

    error: `jobs_dir` must be a string, not a list
     --> job.yaml:4:11
      |
    4 | jobs_dir: [a]
      |           ^

    error: `n_attempts` must be a whole number, not a string
     --> job.yaml:5:13
      |
    5 | n_attempts: "3"
      |             ^^^
      |
      = help: write 3 without quotes

    error: `timeout_multiplier` must be a number, not a string
     --> job.yaml:6:21
      |
    6 | timeout_multiplier: fast
      |                     ^^^^

    error: `retry` must be a mapping of keys to values, not a whole number
     --> job.yaml:7:8
      |
    7 | retry: 3
      |        ^

    error: `log_level` must be one of `error`, `warn`, `warning`, `info`, `debug`, `trace`, not a boolean
     --> job.yaml:8:12
      |
    8 | log_level: true
      |            ^^^^

    error: `environment.override_memory` must be a number or a quantity such as "2Gi", not a list
      --> job.yaml:10:20
       |
    10 |   override_memory: [2]
       |                    ^

    error: `environment.provider_config` must be a mapping of keys to values, not a string
      --> job.yaml:11:20
       |
    11 |   provider_config: none
       |                    ^^^^

    error: `verifier.disable` must be true or false, not a string
      --> job.yaml:13:12
       |
    13 |   disable: "off"
       |            ^^^^^
       |
       = help: write false

    error: `metrics` must be a list, not a string
      --> job.yaml:14:10
       |
    14 | metrics: mean
       |          ^^^^
    "#);
}

#[test]
fn values_out_of_range_are_refused() {
    insta::assert_snapshot!(job_with("\
name: ..
jobs_dir: ''
n_attempts: 99999999999
timeout_multiplier: .inf
instruction_path: tmp/x
retry: {max_attempts: 0, initial_delay_ms: 5000, max_delay_ms: 1000, multiplier: 0.5}
verifier: {override_timeout_sec: -1, max_timeout_sec: .nan}
"), @"
    error: `..` cannot be the name of a job: a name becomes a directory, so it cannot be a path
     --> job.yaml:3:7
      |
    3 | name: ..
      |       ^^

    error: `jobs_dir` must not be empty
     --> job.yaml:4:11
      |
    4 | jobs_dir: ''
      |           ^^

    error: `n_attempts` must be at most 4294967295, not 99999999999
     --> job.yaml:5:13
      |
    5 | n_attempts: 99999999999
      |             ^^^^^^^^^^^

    error: `timeout_multiplier` must be at most 1000000, not inf
     --> job.yaml:6:21
      |
    6 | timeout_multiplier: .inf
      |                     ^^^^

    error: `tmp/x` cannot hold the instruction
     --> job.yaml:7:19
      |
    7 | instruction_path: tmp/x
      |                   ^^^^^
      |
      = help: write the absolute path of a file in the environment, such as `/tmp/instruction.md`

    error: `retry.max_attempts` must be at least 1, not 0
     --> job.yaml:8:23
      |
    8 | retry: {max_attempts: 0, initial_delay_ms: 5000, max_delay_ms: 1000, multiplier: 0.5}
      |                       ^

    error: `max_delay_ms` (1000) is less than `initial_delay_ms` (5000)
     --> job.yaml:8:64
      |
    8 | retry: {max_attempts: 0, initial_delay_ms: 5000, max_delay_ms: 1000, multiplier: 0.5}
      |                                                                ^^^^

    error: `retry.multiplier` must be at least 1, not 0.5
     --> job.yaml:8:82
      |
    8 | retry: {max_attempts: 0, initial_delay_ms: 5000, max_delay_ms: 1000, multiplier: 0.5}
      |                                                                                  ^^^

    error: `verifier.override_timeout_sec` must be at least 0, not -1
     --> job.yaml:9:34
      |
    9 | verifier: {override_timeout_sec: -1, max_timeout_sec: .nan}
      |                                  ^^

    error: `verifier.max_timeout_sec` must be at least 0, not NaN
     --> job.yaml:9:55
      |
    9 | verifier: {override_timeout_sec: -1, max_timeout_sec: .nan}
      |                                                       ^^^^
    ");
}

#[test]
fn words_are_matched_with_the_nearest() {
    insta::assert_snapshot!(job_with("\
log_level: debgu
compat: habor
environment: {type: podman, preserve_env: on-failure}
verifier: {after_agent_error: ignore, agent_processes: kil}
metrics: [{type: median}, {type: men}, {}]
"), @"
    error: `log_level` cannot be `debgu`
     --> job.yaml:3:12
      |
    3 | log_level: debgu
      |            ^^^^^
      |
      = help: did you mean `debug`? it can be one of `error`, `warn`, `warning`, `info`, `debug`, `trace`

    error: `compat` cannot be `habor`
     --> job.yaml:4:9
      |
    4 | compat: habor
      |         ^^^^^
      |
      = help: did you mean `harbor`? it can be one of `harbor`

    error: `environment.type` cannot be `podman`
     --> job.yaml:5:21
      |
    5 | environment: {type: podman, preserve_env: on-failure}
      |                     ^^^^^^
      |
      = help: it can be one of `native`, `docker`, `kubernetes`, `k8s`, `modal`, `fly`

    error: `environment.preserve_env` cannot be `on-failure`
     --> job.yaml:5:43
      |
    5 | environment: {type: podman, preserve_env: on-failure}
      |                                           ^^^^^^^^^^
      |
      = help: did you mean `on_failure`? it can be one of `never`, `always`, `on_failure`

    error: `verifier.after_agent_error` cannot be `ignore`
     --> job.yaml:6:31
      |
    6 | verifier: {after_agent_error: ignore, agent_processes: kil}
      |                               ^^^^^^
      |
      = help: it can be one of `skip`, `run`

    error: `verifier.agent_processes` cannot be `kil`
     --> job.yaml:6:56
      |
    6 | verifier: {after_agent_error: ignore, agent_processes: kil}
      |                                                        ^^^
      |
      = help: did you mean `kill`? it can be one of `keep`, `kill`

    error: `metrics.0.type` cannot be `median`
     --> job.yaml:7:18
      |
    7 | metrics: [{type: median}, {type: men}, {}]
      |                  ^^^^^^
      |
      = help: it can be one of `sum`, `min`, `max`, `mean`

    error: `metrics.1.type` cannot be `men`
     --> job.yaml:7:34
      |
    7 | metrics: [{type: median}, {type: men}, {}]
      |                                  ^^^
      |
      = help: did you mean `min`? it can be one of `sum`, `min`, `max`, `mean`

    error: `type` is missing in `metrics.2`
     --> job.yaml:7:40
      |
    7 | metrics: [{type: median}, {type: men}, {}]
      |                                        ^
      |
      = help: write `type: mean`, or `sum`, `min`, `max`
    ");
}

#[test]
fn quantities_are_refused_with_the_likely_form() {
    insta::assert_snapshot!(job_with("\
environment:
  override_cpus: 0
  override_memory: 2GB
  override_storage_mb: -5
"), @r#"
    error: `environment.override_cpus` cannot be `0`: a quantity must be more than 0
     --> job.yaml:4:18
      |
    4 |   override_cpus: 0
      |                  ^

    error: `environment.override_memory` cannot be `2GB`: this is not a quantity
     --> job.yaml:5:20
      |
    5 |   override_memory: 2GB
      |                    ^^^
      |
      = help: did you mean "2G"?

    error: `environment.override_storage_mb` must be more than 0, not -5
     --> job.yaml:6:24
      |
    6 |   override_storage_mb: -5
      |                        ^^
    "#);
    insta::assert_snapshot!(job_with("\
environment:
  override_memory: 2Gi
  override_memory_mb: 2048
"), @"
    error: `override_memory` and `override_memory_mb` exclude each other
     --> job.yaml:5:3
      |
    4 |   override_memory: 2Gi
      |   --------------- also given here
    5 |   override_memory_mb: 2048
      |   ^^^^^^^^^^^^^^^^^^
      |
      = help: keep one of them
    ");
}

#[test]
fn both_spellings_of_preserve_must_agree() {
    insta::assert_snapshot!(job_with("environment: {preserveEnv: true, preserve_env: never}\n"), @"
    error: `preserve_env` and `preserveEnv` exclude each other
     --> job.yaml:3:15
      |
    3 | environment: {preserveEnv: true, preserve_env: never}
      |               ^^^^^^^^^^^        ------------ also given here
      |
      = help: keep one of them
    ");
    let same = "agents: [{name: nop}]\ndatasets: [{path: src}]\nenvironment: {preserveEnv: true, preserve_env: always}";
    assert!(load_job_text(Path::new("job.yaml"), same, &[], &|_| None).is_ok());
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
      = help: write the script under `execute:`, or its path under `execute_file:`; agents without scripts are `oracle` and `nop`

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
      = help: a dataset has a `path:`, or a `registry:` with a `name:`

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
       = help: a dataset with a `path:` is renamed with `name:`

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
      = help: did you mean `type`? known keys in `environment`: `type`, `force_build`, `preserve_env`, `preserveEnv`, `provider_config`, `override_cpus`, `override_memory`, `override_memory_mb`, `override_storage`, `override_storage_mb`

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
    let shown = agents("  - \"na\\eme\": \"x\"\n    \"\u{1b}[31mred\": y\n    execute: \"\u{9b}2J\"\n");
    assert!(!shown.contains(['\u{1b}', '\u{9b}']), "{shown:?}");
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
fn a_task_is_refused_with_every_problem() {
    insta::assert_snapshot!(task("\
version = true
source = 1
metadata = 3
[verifier]
timeout_sec = -1
env = { A = [1], B = \"x\", \"C=D\" = \"y\", E = \"\\u0000\" }
[agent]
timeout_sec = \"600\"
install_timeout_sec = inf
[environment]
docker_image = \"--privileged x\"
cpus = \"two\"
memory = \"2g\"
storage = 0
"), @r#"
    error: `version` must be a string, not a boolean
     --> task.toml:1:11
      |
    1 | version = true
      |           ^^^^
      |
      = help: write "true" with quotes

    error: `source` must be a string, not a whole number
     --> task.toml:2:10
      |
    2 | source = 1
      |          ^
      |
      = help: write "1" with quotes

    error: `metadata` must be a mapping of keys to values, not a whole number
     --> task.toml:3:12
      |
    3 | metadata = 3
      |            ^

    error: `verifier.timeout_sec` must be at least 0, not -1
     --> task.toml:5:15
      |
    5 | timeout_sec = -1
      |               ^^

    error: `verifier.env.A` must be a string, a number or a boolean, not a list
     --> task.toml:6:13
      |
    6 | env = { A = [1], B = "x", "C=D" = "y", E = "\u0000" }
      |             ^^^

    error: `C=D` cannot be the name of a variable
     --> task.toml:6:27
      |
    6 | env = { A = [1], B = "x", "C=D" = "y", E = "\u0000" }
      |                           ^^^^^

    error: `verifier.env.E` holds a NUL character
     --> task.toml:6:44
      |
    6 | env = { A = [1], B = "x", "C=D" = "y", E = "\u0000" }
      |                                            ^^^^^^^^

    error: `agent.timeout_sec` must be a number, not a string
     --> task.toml:8:15
      |
    8 | timeout_sec = "600"
      |               ^^^^^
      |
      = help: write 600 without quotes

    error: `agent.install_timeout_sec` must be at most 1000000000, not inf
     --> task.toml:9:23
      |
    9 | install_timeout_sec = inf
      |                       ^^^

    error: `--privileged x` cannot be the name of an image
      --> task.toml:11:16
       |
    11 | docker_image = "--privileged x"
       |                ^^^^^^^^^^^^^^^^
       |
       = help: write it as `registry/name:tag` or `name@sha256:…`

    error: `environment.cpus` cannot be `two`: this is not a quantity
      --> task.toml:12:8
       |
    12 | cpus = "two"
       |        ^^^^^
       |
       = help: write a number, with a unit if need be: `500m`, `2G`, `512Mi`

    error: `environment.memory` cannot be `2g`: this is not a quantity
      --> task.toml:13:10
       |
    13 | memory = "2g"
       |          ^^^^
       |
       = help: did you mean "2G"?

    error: `environment.storage` cannot be `0`: a quantity must be more than 0
      --> task.toml:14:11
       |
    14 | storage = 0
       |           ^
    "#);
}

#[test]
fn a_task_that_is_not_toml_is_shown_at_its_place() {
    insta::assert_snapshot!(task("[agent\ntimeout_sec = 1\n"), @"
    error: this is not TOML: unclosed table, expected `]`
     --> task.toml:1:7
      |
    1 | [agent
      |       ^
    ");
    insta::assert_snapshot!(task("[agent]\ntimeout_sec = 1\ntimeout_sec = 2\n"), @"
    error: this is not TOML: duplicate key
     --> task.toml:3:1
      |
    2 | timeout_sec = 1
      | ----------- first written here
    3 | timeout_sec = 2
      | ^^^^^^^^^^^
    ");
}

#[test]
fn a_huge_or_deep_task_is_refused() {
    insta::assert_snapshot!(task(&"#".repeat(2 << 20)), @"
    error: the file has 2097152 bytes, more than the 1048576 that are read
    --> task.toml
    ");
    assert!(load_task_config(Path::new("task.toml"), &format!("a = {}", "[".repeat(100_000))).is_err());
}

#[test]
fn task_keys_that_change_the_meaning_give_warnings() {
    insta::assert_snapshot!(task_warnings("\
schema_version = \"2.0\"
artifacts = [\"/out\"]
multi_step_reward_strategy = \"mean\"
[task]
name = \"org/name\"
[[steps]]
name = \"first\"
[environment]
gpus = 1
os = \"windows\"
network_mode = \"no-network\"
allow_internet = false
memory = \"2G\"
memory_mb = 4096
[environment.healthcheck]
command = \"true\"
[verifier]
environment_mode = \"separate\"
[solution.env]
X = \"1\"
"), @r#"
    warning: version `2.0` of the task format is not known here
     --> task.toml:1:18
      |
    1 | schema_version = "2.0"
      |                  ^^^^^
      |
      = help: the task is read as version 1.0
    warning: `artifacts` is not supported: only /logs is collected
     --> task.toml:2:1
      |
    2 | artifacts = ["/out"]
      | ^^^^^^^^^
    warning: `multi_step_reward_strategy` is not supported: rewards of several steps are not combined
     --> task.toml:3:1
      |
    3 | multi_step_reward_strategy = "mean"
      | ^^^^^^^^^^^^^^^^^^^^^^^^^^
    warning: `steps` is not supported: the task has several steps, and only its first instruction.md is attempted
     --> task.toml:6:3
      |
    6 | [[steps]]
      |   ^^^^^
    warning: `environment.gpus` is not supported: no GPU is given to the environment
     --> task.toml:9:1
      |
    9 | gpus = 1
      | ^^^^
    warning: `environment.os` is not supported: only Linux environments exist
      --> task.toml:10:1
       |
    10 | os = "windows"
       | ^^
    warning: `environment.network_mode` is not supported: the network is the provider's, whatever the task asks for
      --> task.toml:11:1
       |
    11 | network_mode = "no-network"
       | ^^^^^^^^^^^^
    warning: `environment.allow_internet` is not supported: the network is the provider's, whatever the task asks for
      --> task.toml:12:1
       |
    12 | allow_internet = false
       | ^^^^^^^^^^^^^^
    warning: `memory_mb` is 4Gi and `memory` is 2G: `memory` is used
      --> task.toml:14:13
       |
    14 | memory_mb = 4096
       |             ^^^^
       |
       = help: keep one of them
    warning: `environment.healthcheck` is not supported: the agent starts without waiting for a health check
      --> task.toml:15:14
       |
    15 | [environment.healthcheck]
       |              ^^^^^^^^^^^
    warning: `verifier.environment_mode` is not supported: the tests run where the agent worked
      --> task.toml:18:1
       |
    18 | environment_mode = "separate"
       | ^^^^^^^^^^^^^^^^
    warning: `solution.env` is not supported: the solution runs without these variables
      --> task.toml:19:11
       |
    19 | [solution.env]
       |           ^^^
    "#);
}

#[test]
fn task_keys_that_ask_for_nothing_give_no_warnings() {
    insta::assert_snapshot!(task_warnings("\
schema_version = \"1.4\"
artifacts = []
my_own_key = true
[environment]
gpus = 0
os = \"linux\"
network_mode = \"public\"
allow_internet = true
mcp_servers = []
memory_mb = 2048
[verifier]
environment_mode = \"shared\"
[solution.env]
"), @"");
}

/// Values of any shape under keys that mean something.
fn any_value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        prop::sample::select(vec![
            "oracle",
            "docker",
            "mean",
            "src",
            "2Gi",
            "${SET}",
            "${X:-é}",
            "${",
            "[redacted]"
        ])
        .prop_map(Into::into),
        "\\PC{0,12}".prop_map(Into::into),
    ];
    let keys = vec![
        "name",
        "n_attempts",
        "timeout_multiplier",
        "retry",
        "environment",
        "verifier",
        "metrics",
        "agents",
        "datasets",
        "type",
        "preserve_env",
        "preserveEnv",
        "provider_config",
        "override_memory",
        "max_delay_ms",
        "override_timeout_sec",
        "env",
        "execute",
        "install",
        "install_file",
        "path",
        "registry",
        "url",
        "version",
        "metadata",
        "agent",
        "timeout_sec",
        "memory",
        "memory_mb",
        "cpus",
        "docker_image",
        "solution",
        "ключ",
    ];
    leaf.prop_recursive(5, 64, 8, move |inner| {
        let key = prop::sample::select(keys.clone()).prop_map(str::to_owned);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::vec((key, inner), 0..8)
                .prop_map(|entries| serde_json::Value::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_job_is_read_or_refused_with_places(value in any_value()) {
        let text = value.to_string();
        let vars = |name: &str| (name == "SET").then(|| "value".to_owned());
        if let Err(problems) = load_job_text(Path::new("job.yaml"), &text, &[], &vars) {
            prop_assert!(!problems.diagnostics().is_empty());
            prop_assert!(problems.render(true).len() >= problems.render(false).len());
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[-a-z:{}\\[\\]'\"#&*!|>%@`?, \n\t\ré=\\.0-9]{0,60}") {
        let job = load_job_text(Path::new("job.yaml"), &text, &[], &|_| None);
        let _ = job.map_err(|problems| problems.render(false));
        let task = load_task_config(Path::new("task.toml"), &text);
        let _ = task.map_err(|problems| problems.render(false));
    }

    #[test]
    fn any_override_is_applied_or_refused(key in "[a-z0-9.]{1,20}", value in "\\PC{0,20}") {
        let text = "agents: [{name: nop}]\ndatasets: [{path: src}]\n";
        let over = Override { key, value };
        let job = load_job_text(Path::new("job.yaml"), text, &[over], &|_| None);
        let _ = job.map_err(|problems| problems.render(false));
    }
}
