//! Problems of rubrics, parsers and tools of interactions, as their authors see them.

use super::interaction_problems::{but_for, interaction};

#[test]
fn a_rubric_says_how_it_scores() {
    insta::assert_snapshot!(interaction("\
dataset: [{question: 1 + 1?}]
independent_scoring: true
rubric:
  - {match: exactly}
  - {match: exact, weight: .nan}
  - {match: exact}
  - {weight: 1}
  - {match: exact, command: [x]}
  - {name: reward, match: contains}
  - {match: numeric, group: true, parser: xlm}
  - {command: ./score.sh}
  - {name: empty, command: []}
  - {name: group, command: [x], group: true}
  - {judge: {prompt: hi}}
  - {judge: {model: {name: j}}}
"), @"
    error: `datasets.0.interaction.rubric.0.match` cannot be `exactly`
     --> job.yaml:8:17
      |
    8 |       - {match: exactly}
      |                 ^^^^^^^
      |
      = help: it can be one of `exact`, `contains`, `numeric`, `math`

    error: `datasets.0.interaction.rubric.1.weight` must be a finite number, not NaN
     --> job.yaml:9:32
      |
    9 |       - {match: exact, weight: .nan}
      |                                ^^^^

    error: two entries of the rubric are named `exact`
      --> job.yaml:10:9
       |
     9 |       - {match: exact, weight: .nan}
       |         - the first one
    10 |       - {match: exact}
       |         ^
       |
       = help: give one of them another `name:`; metrics are found by it

    error: `match` is missing in `datasets.0.interaction.rubric.3`
      --> job.yaml:11:9
       |
    11 |       - {weight: 1}
       |         ^
       |
       = help: an entry has a `match:`, a `judge:` or a `command:`

    error: `match` and `command` exclude each other
      --> job.yaml:12:24
       |
    12 |       - {match: exact, command: [x]}
       |          -----         ^^^^^^^
       |          |
       |          also given here
       |
       = help: keep one of them

    error: `reward` cannot be the name of a metric
      --> job.yaml:13:16
       |
    13 |       - {name: reward, match: contains}
       |                ^^^^^^
       |
       = help: results have a column of that name

    error: `group` has no meaning beside `match`
      --> job.yaml:14:26
       |
    14 |       - {match: numeric, group: true, parser: xlm}
       |                          ^^^^^
       |
       = help: leave `group` out

    error: there is no parser `xlm`
      --> job.yaml:14:47
       |
    14 |       - {match: numeric, group: true, parser: xlm}
       |                                               ^^^
       |
       = help: it can be one of `plain`, `think`, `maybe_think`, `boxed`, or `{xml: [fields]}`

    error: `datasets.0.interaction.rubric.7.command` must be a list, not a string
      --> job.yaml:15:19
       |
    15 |       - {command: ./score.sh}
       |                   ^^^^^^^^^^
       |
       = help: write the program and its arguments as a list, such as `[python3, tool.py]`

    error: `datasets.0.interaction.rubric.8.command` is empty
      --> job.yaml:16:32
       |
    16 |       - {name: empty, command: []}
       |                                ^
       |
       = help: write the program and its arguments as a list, such as `[python3, tool.py]`

    error: a command over groups cannot score each rollout by itself
      --> job.yaml:17:44
       |
    17 |       - {name: group, command: [x], group: true}
       |                                            ^^^^
       |
       = help: leave `independent_scoring` or `group` out

    error: `model` is missing in `datasets.0.interaction.rubric.10.judge`
      --> job.yaml:18:17
       |
    18 |       - {judge: {prompt: hi}}
       |                 ^
       |
       = help: write who judges, as the `model:` of an agent is written

    error: `base_url` is missing in `datasets.0.interaction.rubric.11.judge.model`
      --> job.yaml:19:25
       |
    19 |       - {judge: {model: {name: j}}}
       |                         ^
       |
       = help: write where the server answers, such as `https://api.openai.com/v1`
    ");
}

#[test]
fn a_parser_is_one_of_a_few() {
    insta::assert_snapshot!(but_for("parser: thinking\n"), @"
    error: there is no parser `thinking`
     --> job.yaml:7:13
      |
    7 |     parser: thinking
      |             ^^^^^^^^
      |
      = help: it can be one of `plain`, `think`, `maybe_think`, `boxed`, or `{xml: [fields]}`
    ");
    insta::assert_snapshot!(but_for("parser: [xml]\n"), @"
    error: `datasets.0.interaction.parser` must be a word or a mapping, not a list
     --> job.yaml:7:13
      |
    7 |     parser: [xml]
      |             ^
      |
      = help: it can be one of `plain`, `think`, `maybe_think`, `boxed`, or `{xml: [fields]}`
    ");
    insta::assert_snapshot!(but_for("parser: {xml: [think, <b>], answer_field: c}\n"), @"
    error: `<b>` cannot be a tag
     --> job.yaml:7:27
      |
    7 |     parser: {xml: [think, <b>], answer_field: c}
      |                           ^^^
      |
      = help: write letters, digits, `_` and `-`, without brackets

    error: the answer is looked for in `c`, which is not a field
     --> job.yaml:7:47
      |
    7 |     parser: {xml: [think, <b>], answer_field: c}
      |                                               ^
      |
      = help: write `answer_field:` with one of `think`
    ");
    insta::assert_snapshot!(but_for("parser: {xml: [think, reply]}\n"), @"
    error: the answer is looked for in `answer`, which is not a field
     --> job.yaml:7:19
      |
    7 |     parser: {xml: [think, reply]}
      |                   ^
      |
      = help: write `answer_field:` with one of `think`, `reply`
    ");
}

#[test]
fn tools_say_what_they_are() {
    insta::assert_snapshot!(but_for("\
tools:
  - {name: x}
  - {command: [t], mcp: {command: [s]}}
  - {command: [t]}
  - {command: [t], name: a b, description: d, parameters: {a: number}}
  - {command: [t], name: t, description: d}
  - {command: [t], name: t, description: d, timeout_sec: 0}
  - {mcp: {}}
  - {mcp: {command: [s], url: http://x}}
  - {mcp: {url: nowhere}, name: m}
  - {container: [bash, shell, bash]}
  - {container: []}
"), @"
    error: `environment` is missing in `datasets.0.interaction`
     --> job.yaml:5:5
      |
    5 |     dataset: [{question: 1 + 1?}]
      |     ^
      |
      = help: tools of a container need one: write its `docker_image:` or `path:`

    error: `command` is missing in `datasets.0.interaction.tools.0`
     --> job.yaml:8:9
      |
    8 |       - {name: x}
      |         ^
      |
      = help: a tool has a `command:`, an `mcp:` server, or is of a `container:`

    error: `command` and `mcp` exclude each other
     --> job.yaml:9:24
      |
    9 |       - {command: [t], mcp: {command: [s]}}
      |          -------       ^^^
      |          |
      |          also given here
      |
      = help: keep one of them

    error: `name` is missing in `datasets.0.interaction.tools.2`
      --> job.yaml:10:9
       |
    10 |       - {command: [t]}
       |         ^
       |
       = help: write what the model calls it by, such as `name: add`

    error: `description` is missing in `datasets.0.interaction.tools.2`
      --> job.yaml:10:9
       |
    10 |       - {command: [t]}
       |         ^
       |
       = help: write what it does, so that the model knows when to call it

    error: `a b` cannot be the name of a tool
      --> job.yaml:11:30
       |
    11 |       - {command: [t], name: a b, description: d, parameters: {a: number}}
       |                              ^^^
       |
       = help: write at most 64 letters, digits, `_` and `-`

    error: `datasets.0.interaction.tools.3.parameters` must be the JSON Schema of an object
      --> job.yaml:11:63
       |
    11 |       - {command: [t], name: a b, description: d, parameters: {a: number}}
       |                                                               ^
       |
       = help: write `type: object` and the arguments under `properties:`

    error: two tools are named `t`
      --> job.yaml:13:30
       |
    12 |       - {command: [t], name: t, description: d}
       |                              - the first one
    13 |       - {command: [t], name: t, description: d, timeout_sec: 0}
       |                              ^
       |
       = help: a model calls tools by their names, so each has its own

    error: `datasets.0.interaction.tools.5.timeout_sec` must be more than 0, not 0
      --> job.yaml:13:62
       |
    13 |       - {command: [t], name: t, description: d, timeout_sec: 0}
       |                                                              ^

    error: `command` is missing in `datasets.0.interaction.tools.6.mcp`
      --> job.yaml:14:15
       |
    14 |       - {mcp: {}}
       |               ^
       |
       = help: an MCP server has a `command:` that starts it, or a `url:`

    error: `command` and `url` exclude each other
      --> job.yaml:15:30
       |
    15 |       - {mcp: {command: [s], url: http://x}}
       |                -------       ^^^
       |                |
       |                also given here
       |
       = help: keep one of them

    error: `datasets.0.interaction.tools.8.mcp.url` must be an `http` or `https` URL
      --> job.yaml:16:21
       |
    16 |       - {mcp: {url: nowhere}, name: m}
       |                     ^^^^^^^
       |
       = help: such as `http://127.0.0.1:8000/v1`

    error: `name` has no meaning beside `mcp`
      --> job.yaml:16:31
       |
    16 |       - {mcp: {url: nowhere}, name: m}
       |                               ^^^^
       |
       = help: these tools describe themselves

    error: there is no tool `shell` for containers
      --> job.yaml:17:28
       |
    17 |       - {container: [bash, shell, bash]}
       |                            ^^^^^
       |
       = help: it can be any of `bash`, `read_file`, `write_file`, `apply_patch`

    error: two tools are named `bash`
      --> job.yaml:17:35
       |
    17 |       - {container: [bash, shell, bash]}
       |                      ----         ^^^^
       |                      |
       |                      the first one
       |
       = help: a model calls tools by their names, so each has its own

    error: `datasets.0.interaction.tools.10.container` is empty
      --> job.yaml:18:21
       |
    18 |       - {container: []}
       |                     ^
       |
       = help: it can be any of `bash`, `read_file`, `write_file`, `apply_patch`
    ");
}
