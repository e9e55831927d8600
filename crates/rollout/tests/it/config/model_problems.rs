//! What people see when a model of a job is wrong.

use super::job_problems as job;

const INTERACTION: &str =
    "datasets: [{name: sums, interaction: {dataset: [{question: 1 + 1?}], rubric: [{match: exact}]}}]\n";

fn model(text: &str) -> String {
    let indented: String = text.lines().map(|line| format!("    {}\n", line.trim_start())).collect();
    job(&format!("{INTERACTION}agents:\n- name: mine\n  model:\n{indented}"))
}

#[test]
fn a_model_without_a_name_or_a_server_is_refused() {
    insta::assert_snapshot!(model("    sampling: {}\n"), @"
    error: `name` is missing in `agents.0.model`
     --> job.yaml:5:5
      |
    5 |     sampling: {}
      |     ^
      |
      = help: write the name that the server knows the model by

    error: `base_url` is missing in `agents.0.model`
     --> job.yaml:5:5
      |
    5 |     sampling: {}
      |     ^
      |
      = help: write where the server answers, such as `https://api.openai.com/v1`
    ");
}

#[test]
fn values_that_make_no_sense_are_refused() {
    insta::assert_snapshot!(model("\
    name: ' '
    base_url: [ftp://x, 7, '${NOPE}', 'http://']
    api_key: 5
    dialect: chats
    sampling: {temperature: .nan, n: 4, messages: []}
    headers: {'bad name': x, good: [1], split: \"a\\nb\"}
    stream: yes please
    max_seq_len: 0
    timeout_sec: 0
    max_retries: -1
    rate_limit: {requests_per_minute: 0, tokens: 5}
    prices: {input: -1}
    temprature: 0
"), @r#"
    error: `agents.0.model.name` must not be empty
     --> job.yaml:5:11
      |
    5 |     name: ' '
      |           ^^^

    error: `agents.0.model.base_url` must be an `http` or `https` URL
     --> job.yaml:6:16
      |
    6 |     base_url: [ftp://x, 7, '${NOPE}', 'http://']
      |                ^^^^^^^
      |
      = help: such as `http://127.0.0.1:8000/v1`

    error: `agents.0.model.base_url` must be a URL, not a whole number
     --> job.yaml:6:25
      |
    6 |     base_url: [ftp://x, 7, '${NOPE}', 'http://']
      |                         ^

    error: the variable `NOPE` is not set
     --> job.yaml:6:29
      |
    6 |     base_url: [ftp://x, 7, '${NOPE}', 'http://']
      |                             ^^^^^^^
      |
      = help: set it, or write `${NOPE:-default}`

    error: `agents.0.model.base_url` must be an `http` or `https` URL
     --> job.yaml:6:39
      |
    6 |     base_url: [ftp://x, 7, '${NOPE}', 'http://']
      |                                       ^^^^^^^^^
      |
      = help: such as `http://127.0.0.1:8000/v1`

    error: `agents.0.model.api_key` must be a string, not a whole number
     --> job.yaml:7:14
      |
    7 |     api_key: 5
      |              ^
      |
      = help: write "5" with quotes

    error: `agents.0.model.dialect` cannot be `chats`
     --> job.yaml:8:14
      |
    8 |     dialect: chats
      |              ^^^^^
      |
      = help: did you mean `chat`? it can be one of `chat`, `messages`

    error: `agents.0.model.sampling.temperature` has a number in it that JSON does not have
     --> job.yaml:9:29
      |
    9 |     sampling: {temperature: .nan, n: 4, messages: []}
      |                             ^^^^

    error: `agents.0.model.sampling.n` cannot be set here
     --> job.yaml:9:35
      |
    9 |     sampling: {temperature: .nan, n: 4, messages: []}
      |                                   ^
      |
      = help: for more than one response write `n_attempts:` in the job

    error: `agents.0.model.sampling.messages` cannot be set here
     --> job.yaml:9:41
      |
    9 |     sampling: {temperature: .nan, n: 4, messages: []}
      |                                         ^^^^^^^^
      |
      = help: the messages come from the examples

    error: `bad name` cannot be the name of a header
      --> job.yaml:10:15
       |
    10 |     headers: {'bad name': x, good: [1], split: "a\nb"}
       |               ^^^^^^^^^^

    error: `agents.0.model.headers.good` must be a string, not a list
      --> job.yaml:10:36
       |
    10 |     headers: {'bad name': x, good: [1], split: "a\nb"}
       |                                    ^

    error: `agents.0.model.headers.split` holds a control character
      --> job.yaml:10:48
       |
    10 |     headers: {'bad name': x, good: [1], split: "a\nb"}
       |                                                ^^^^^^

    error: `agents.0.model.stream` must be true or false, not a string
      --> job.yaml:11:13
       |
    11 |     stream: yes please
       |             ^^^^^^^^^^

    error: `agents.0.model.max_seq_len` must be at least 1, not 0
      --> job.yaml:12:18
       |
    12 |     max_seq_len: 0
       |                  ^

    error: `agents.0.model.timeout_sec` must be more than 0, not 0
      --> job.yaml:13:18
       |
    13 |     timeout_sec: 0
       |                  ^

    error: `agents.0.model.max_retries` must be at least 0, not -1
      --> job.yaml:14:18
       |
    14 |     max_retries: -1
       |                  ^^

    error: `agents.0.model.rate_limit.requests_per_minute` must be at least 1, not 0
      --> job.yaml:15:39
       |
    15 |     rate_limit: {requests_per_minute: 0, tokens: 5}
       |                                       ^

    error: unknown key `tokens` in `agents.0.model.rate_limit`
      --> job.yaml:15:42
       |
    15 |     rate_limit: {requests_per_minute: 0, tokens: 5}
       |                                          ^^^^^^
       |
       = help: known keys in `agents.0.model.rate_limit`: `requests_per_minute`, `tokens_per_minute`

    error: `output` is missing in `agents.0.model.prices`
      --> job.yaml:16:13
       |
    16 |     prices: {input: -1}
       |             ^
       |
       = help: prices are in US dollars for a million tokens

    error: `agents.0.model.prices.input` must be at least 0, not -1
      --> job.yaml:16:21
       |
    16 |     prices: {input: -1}
       |                     ^^

    error: unknown key `temprature` in `agents.0.model`
      --> job.yaml:17:5
       |
    17 |     temprature: 0
       |     ^^^^^^^^^^
       |
       = help: known keys in `agents.0.model`: `name`, `base_url`, `api_key`, `dialect`, `sampling`, `extra_body`, `headers`, `stream`, `token_ids`, `max_seq_len`, `timeout_sec`, `connect_timeout_sec`, `max_retries`, `rate_limit`, `prices`
    "#);
}

#[test]
fn a_model_has_no_scripts_and_others_have_no_limits() {
    insta::assert_snapshot!(job(&format!("{INTERACTION}\
agents:
- name: both
  model: {{name: m, base_url: http://x}}
  execute: ./run
- name: oracle
  model: {{name: m, base_url: http://x}}
- name: mine
  execute: ./run
  system_prompt: hello
  limits: {{max_turns: 1}}
- name: strict
  model: {{name: m, base_url: http://x}}
  limits: {{max_turns: 0, max_cost: 0, timeout: 5}}
")), @"
    error: `model` and `execute` exclude each other
     --> job.yaml:5:3
      |
    4 |   model: {name: m, base_url: http://x}
      |   ----- also given here
    5 |   execute: ./run
      |   ^^^^^^^
      |
      = help: keep one of them

    error: the agent `oracle` can attempt none of the datasets
     --> job.yaml:6:9
      |
    6 | - name: oracle
      |         ^^^^^^
      |
      = help: interactions are for agents with a `model:`, so leave this one out

    error: the agent `oracle` runs the task's own solution, so it cannot have `model`
     --> job.yaml:7:3
      |
    7 |   model: {name: m, base_url: http://x}
      |   ^^^^^
      |
      = help: remove `model`, or give the agent another name

    error: the agent `mine` can attempt none of the datasets
     --> job.yaml:8:9
      |
    8 | - name: mine
      |         ^^^^
      |
      = help: interactions are for agents with a `model:`, so leave this one out

    error: `system_prompt` has a meaning only beside `model`
      --> job.yaml:10:3
       |
    10 |   system_prompt: hello
       |   ^^^^^^^^^^^^^
       |
       = help: remove `system_prompt`

    error: `limits` has a meaning only beside `model`
      --> job.yaml:11:3
       |
    11 |   limits: {max_turns: 1}
       |   ^^^^^^
       |
       = help: remove `limits`

    error: `agents.3.limits.max_turns` must be at least 1, not 0
      --> job.yaml:14:23
       |
    14 |   limits: {max_turns: 0, max_cost: 0, timeout: 5}
       |                       ^

    error: `agents.3.limits.max_cost` must be more than 0, not 0
      --> job.yaml:14:36
       |
    14 |   limits: {max_turns: 0, max_cost: 0, timeout: 5}
       |                                    ^

    error: unknown key `timeout` in `agents.3.limits`
      --> job.yaml:14:39
       |
    14 |   limits: {max_turns: 0, max_cost: 0, timeout: 5}
       |                                       ^^^^^^^
       |
       = help: known keys in `agents.3.limits`: `max_turns`, `max_completion_tokens`, `max_total_tokens`, `max_cost`, `timeout_sec`
    ");
}

#[test]
fn an_agent_that_can_attempt_no_dataset_is_refused() {
    insta::assert_snapshot!(job(&format!("{INTERACTION}agents: [{{name: oracle}}, {{name: mine, execute: ./run}}]\n")), @"
    error: the agent `oracle` can attempt none of the datasets
     --> job.yaml:2:17
      |
    2 | agents: [{name: oracle}, {name: mine, execute: ./run}]
      |                 ^^^^^^
      |
      = help: interactions are for agents with a `model:`, so leave this one out

    error: the agent `mine` can attempt none of the datasets
     --> job.yaml:2:33
      |
    2 | agents: [{name: oracle}, {name: mine, execute: ./run}]
      |                                 ^^^^
      |
      = help: interactions are for agents with a `model:`, so leave this one out
    ");
}

#[test]
fn missing_price_lists_and_models_are_told() {
    insta::assert_snapshot!(model("    {name: m, base_url: http://x, prices: none.yaml}\n"), @"
    error: `agents.0.model.prices`: cannot read this file: No such file or directory (os error 2)
     --> job.yaml:5:43
      |
    5 |     {name: m, base_url: http://x, prices: none.yaml}
      |                                           ^^^^^^^^^
      |
      = help: the path is relative to the file that it is written in
    ");
    insta::assert_snapshot!(
        model("    {name: m, base_url: http://x, prices: {other: {input: 1, output: 2}}}\n"),
        @"
    error: there is no price for `m`
     --> job.yaml:5:43
      |
    5 |     {name: m, base_url: http://x, prices: {other: {input: 1, output: 2}}}
      |                                           ^
      |
      = help: there are prices for `other`
    "
    );
}
