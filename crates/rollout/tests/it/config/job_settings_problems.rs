//! What people see when a setting of a job is wrong.

use std::path::Path;

use rollout::config::load_job_text;

use super::{job_problems as job, job_problems_with as job_with};

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
      = help: did you mean `n_attempts`? known keys: `name`, `jobs_dir`, `n_attempts`, `n_concurrent_trials`, `timeout_multiplier`, `retry`, `log_level`, `eval_log`, `instruction_path`, `compat`, `environment`, `verifier`, `metrics`, `agents`, `datasets`

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
      = help: write the script under `execute:`, or its path under `execute_file:`, or a `model:`; agents that need neither are `oracle` and `nop`

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
      = help: did you mean `install`? known keys in `agents.0`: `name`, `description`, `install`, `install_file`, `install_sha256`, `execute`, `execute_file`, `execute_sha256`, `model`, `system_prompt`, `limits`, `env`

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
