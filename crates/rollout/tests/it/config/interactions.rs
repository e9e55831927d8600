//! What a job file says about interactions, and what of it is recorded.

use std::fs;

use rollout::{
    config::{
        ContainerImage, ContainerTool, ExamplesConfig, InteractionKind, McpConfig, ParserConfig, ScoreConfig,
        ToolConfig, UserKind, load_job_record,
    },
    model::{Advantage, Limits, rubric::Match},
};

use super::models::{Files, MATH, MODEL, agent, interaction, with_file};
use super::variables;

#[test]
fn an_interaction_has_the_documented_defaults() {
    let loaded = with_file(MATH);
    assert_eq!(loaded.config.datasets[0].name.as_str(), "math");
    let interaction = interaction(&loaded);
    assert_eq!(interaction.kind, InteractionKind::SingleTurn);
    assert_eq!(interaction.limits, Limits::default());
    assert_eq!((interaction.shuffle, interaction.shuffle_seed, interaction.num_examples), (false, 0, None));
    assert_eq!(interaction.pass_threshold, 0.5);
    assert!(!interaction.independent_scoring);
    assert_eq!((interaction.advantage, interaction.include_errors), (Advantage::GroupMean, false));
    assert!(matches!(&interaction.dataset, ExamplesConfig::Inline(rows) if rows[0]["answer"] == "2"));
    insta::assert_json_snapshot!(loaded.record["datasets"][0], @r#"
    {
      "interaction": {
        "directory": null,
        "dataset": [
          {
            "question": "1 + 1?",
            "answer": "2"
          }
        ],
        "dataset_sha256": null,
        "num_examples": null,
        "shuffle": false,
        "shuffle_seed": 0,
        "system_prompt": null,
        "few_shot": [],
        "type": "single_turn",
        "tools": [],
        "environment": null,
        "rubric": [
          {
            "match": "exact",
            "name": "exact",
            "weight": 1.0
          }
        ],
        "parser": null,
        "limits": {
          "max_turns": null,
          "max_completion_tokens": null,
          "max_total_tokens": null,
          "max_cost": null,
          "timeout_sec": null
        },
        "state_columns": [],
        "independent_scoring": false,
        "pass_threshold": 0.5
      },
      "name": "math"
    }
    "#);
}

#[test]
fn every_setting_of_an_interaction_is_read() {
    let loaded = with_file(
        "
dataset: data.jsonl
num_examples: 100
shuffle: true
shuffle_seed: 7
system_prompt: Think first.
few_shot:
  - {role: user, content: 2 + 2?}
  - {role: assistant, content: '4'}
max_turns: 5
tools:
  - command: [python3, add.py]
    name: add
    description: Adds two numbers.
    parameters: {type: object, properties: {a: {type: number}}}
  - mcp: {command: [server, --stdio], env: {TOKEN: '${MY_API_KEY}'}}
  - mcp: {url: 'http://127.0.0.1:9000/mcp', headers: {Authorization: 'Bearer ${MY_API_KEY}'}}
  - container: [bash, read_file, write_file, apply_patch]
environment: {docker_image: 'python:3.13', cpus: 2, memory: 4G}
rubric:
  - {match: math, parser: boxed}
  - {name: close, weight: 0.5, match: numeric}
  - judge: {model: {name: j, base_url: 'http://judge/v1', api_key: '${MY_API_KEY}'}, prompt: 'Right? {response}'}
    weight: 2
  - {name: rank, command: [python3, rank.py], group: true}
parser: {xml: [think, [answer, result]], answer_field: answer}
limits: {max_total_tokens: 5000, max_cost: 1, timeout_sec: 30}
state_columns: [board]
pass_threshold: 0.9
",
    );
    let interaction = interaction(&loaded);
    assert_eq!(interaction.kind, InteractionKind::ToolUse);
    assert_eq!(interaction.limits.max_turns, Some(5));
    assert_eq!(
        interaction.few_shot.iter().map(|message| message.text()).collect::<Vec<_>>(),
        ["2 + 2?", "4"]
    );
    assert!(
        matches!(&interaction.dataset, ExamplesConfig::File { path, .. } if path.ends_with("data.jsonl"))
    );
    let [
        ToolConfig::Command(add),
        ToolConfig::Mcp(stdio),
        ToolConfig::Mcp(http),
        ToolConfig::Container(tools),
    ] = &interaction.tools[..]
    else {
        panic!("{:?}", interaction.tools)
    };
    assert_eq!(
        (add.name.as_str(), &add.command[..]),
        ("add", &["python3".to_owned(), "add.py".to_owned()][..])
    );
    assert!(matches!(stdio, McpConfig::Command { env, .. } if env["TOKEN"].value == "sk-very-secret"));
    assert!(matches!(http, McpConfig::Url { headers, .. } if headers["Authorization"].secret));
    assert_eq!(
        tools[..],
        [ContainerTool::Bash, ContainerTool::ReadFile, ContainerTool::WriteFile, ContainerTool::ApplyPatch]
    );
    assert_eq!(
        interaction.environment.as_ref().unwrap().image,
        ContainerImage::Name("python:3.13".to_owned())
    );
    let rubric: Vec<_> = interaction.rubric.iter().map(|entry| (entry.name.as_str(), entry.weight)).collect();
    assert_eq!(rubric, [("math", 1.0), ("close", 0.5), ("judge", 2.0), ("rank", 1.0)]);
    assert!(matches!(
        interaction.rubric[0].score,
        ScoreConfig::Match { how: Match::Math, parser: Some(ParserConfig::Boxed) }
    ));
    assert!(matches!(interaction.rubric[3].score, ScoreConfig::Command { group: true, .. }));
    let fields = vec![vec!["think".to_owned()], vec!["answer".to_owned(), "result".to_owned()]];
    assert_eq!(interaction.parser, Some(ParserConfig::Xml { fields, answer_field: "answer".to_owned() }));
    assert!(loaded.config.needs_environment());
    assert!(!format!("{loaded:?}{:?}", loaded.config).contains("sk-very-secret"));
    insta::assert_json_snapshot!(loaded.record["datasets"][0], {
        ".interaction.dataset_sha256" => "[sha256]"
    }, @r#"
    {
      "interaction": {
        "directory": null,
        "dataset": "data.jsonl",
        "dataset_sha256": "[sha256]",
        "num_examples": 100,
        "shuffle": true,
        "shuffle_seed": 7,
        "system_prompt": "Think first.",
        "few_shot": [
          {
            "role": "user",
            "content": "2 + 2?"
          },
          {
            "role": "assistant",
            "content": "4"
          }
        ],
        "type": "tool_use",
        "tools": [
          {
            "command": [
              "python3",
              "add.py"
            ],
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {
              "type": "object",
              "properties": {
                "a": {
                  "type": "number"
                }
              }
            }
          },
          {
            "mcp": {
              "command": [
                "server",
                "--stdio"
              ],
              "env": {
                "TOKEN": "${MY_API_KEY}"
              }
            }
          },
          {
            "mcp": {
              "url": "http://127.0.0.1:9000/mcp",
              "headers": {
                "Authorization": "Bearer ${MY_API_KEY}"
              }
            }
          },
          {
            "container": [
              "bash",
              "read_file",
              "write_file",
              "apply_patch"
            ]
          }
        ],
        "environment": {
          "docker_image": "python:3.13",
          "path": null,
          "cpus": "2",
          "memory": "4G"
        },
        "rubric": [
          {
            "match": "math",
            "parser": "boxed",
            "name": "math",
            "weight": 1.0
          },
          {
            "name": "close",
            "weight": 0.5,
            "match": "numeric"
          },
          {
            "judge": {
              "model": {
                "name": "j",
                "base_url": "http://judge/v1",
                "api_key": "${MY_API_KEY}",
                "dialect": "chat",
                "sampling": {},
                "extra_body": {},
                "headers": {},
                "stream": false,
                "token_ids": false,
                "max_seq_len": null,
                "timeout_sec": 3600.0,
                "connect_timeout_sec": 5.0,
                "max_retries": 10,
                "rate_limit": {
                  "requests_per_minute": null,
                  "tokens_per_minute": null
                },
                "prices": null
              },
              "prompt": "Right? {response}"
            },
            "weight": 2.0,
            "name": "judge"
          },
          {
            "name": "rank",
            "command": [
              "python3",
              "rank.py"
            ],
            "group": true,
            "weight": 1.0
          }
        ],
        "parser": {
          "xml": [
            "think",
            [
              "answer",
              "result"
            ]
          ],
          "answer_field": "answer"
        },
        "limits": {
          "max_turns": 5,
          "max_completion_tokens": null,
          "max_total_tokens": 5000,
          "max_cost": 1.0,
          "timeout_sec": 30.0
        },
        "state_columns": [
          "board"
        ],
        "independent_scoring": false,
        "pass_threshold": 0.9
      },
      "name": "math"
    }
    "#);
}

#[test]
fn an_interaction_can_stand_in_the_job_itself() {
    let files = Files::new(&[]);
    let loaded = files.load(&format!(
        "{MODEL}datasets: [{{name: sums, interaction: {{dataset: [{{question: 1 + 1?}}], rubric: [{{match: exact}}]}}}}]\n"
    ));
    assert_eq!(loaded.config.datasets[0].name.as_str(), "sums");
    assert!(!loaded.config.needs_environment());
}

#[test]
fn paths_in_an_interaction_file_are_relative_to_that_file() {
    let files = Files::new(&[
        ("sets/math/math.yaml", "dataset: data.jsonl\nrubric: [{match: exact}]\n"),
        ("sets/math/data.jsonl", "{\"question\": \"?\"}\n"),
    ]);
    let loaded = files.load(&format!("{MODEL}datasets: [{{interaction: sets/math/math.yaml}}]\n"));
    assert_eq!(interaction(&loaded).directory, files.path().join("sets/math"));
    assert_eq!(loaded.record["datasets"][0]["interaction"]["directory"], "sets/math");
}

#[test]
fn a_record_is_the_same_job_again_without_its_interaction_file() {
    let files = Files::new(&[
        (
            "sets/math.yaml",
            "dataset: data.jsonl\n\
             tools: [{command: [t], name: t, description: d}, {mcp: {command: [s], env: {A_KEY: '${MY_API_KEY}'}}}]\n\
             rubric: [{judge: {model: {name: j, base_url: http://j, prices: prices.yaml}}}]\n\
             stop: [{name: done, matches: 'DONE|END'}, {called: t}, {python: 's.py:f', timeout_sec: 2}]\n\
             stop_errors: [ToolParseError]\n\
             max_turns: 3\n",
        ),
        (
            "sets/talk.yaml",
            "dataset: data.jsonl\n\
             rubric: [{match: exact}]\n\
             user: {model: {name: j, base_url: http://u, api_key: '${MY_API_KEY}', prices: prices.yaml}, prompt: Ask.}\n",
        ),
        ("sets/data.jsonl", "{\"question\": \"?\"}\n"),
        ("sets/prices.yaml", "j: {input: 1, output: 2}\n"),
    ]);
    let text = "
agents:
  - name: gpt
    model: {name: m, base_url: http://x, api_key: '${MY_API_KEY}', headers: {Authorization: 'Bearer ${MY_API_KEY}'}}
datasets: [{interaction: sets/math.yaml}, {interaction: sets/talk.yaml}]
";
    let loaded = files.load(text);
    fs::remove_file(files.path().join("sets/math.yaml")).unwrap();
    fs::remove_file(files.path().join("sets/talk.yaml")).unwrap();
    fs::remove_file(files.path().join("sets/prices.yaml")).unwrap();
    let again = load_job_record(&files.path().join("job.yaml"), &loaded.record, &[], &variables)
        .unwrap_or_else(|problems| panic!("{}", problems.render(false)));
    assert_eq!(again.record, loaded.record);
    assert_eq!(again.hash, loaded.hash);
    assert_eq!(interaction(&again), interaction(&loaded));
}

#[test]
fn the_hash_covers_everything_that_can_change_a_result() {
    let interaction = "dataset: data.jsonl\nrubric: [{match: exact}]\n";
    let hash = |model: &str, interaction: &str, data: &str, prices: &str| {
        let files = Files::new(&[("math.yaml", interaction), ("data.jsonl", data), ("prices.yaml", prices)]);
        let loaded = files.load(&format!(
            "agents: [{{name: a, model: {{name: m, prices: prices.yaml, {model}}}}}]\n\
             datasets: [{{interaction: math.yaml}}]\n"
        ));
        loaded.hash
    };
    let (model, data, prices) = ("base_url: 'http://x'", "{\"question\": \"?\"}\n", "input: 1\noutput: 2\n");
    let same = hash(model, interaction, data, prices);
    let other = [
        hash("base_url: 'http://x', sampling: {temperature: 0}", interaction, data, prices),
        hash(model, &interaction.replace("exact", "numeric"), data, prices),
        hash(model, interaction, "{\"question\": \"!\"}\n", prices),
        hash(model, interaction, data, "input: 1\noutput: 3\n"),
    ];
    assert!(other.iter().all(|hash| *hash != same));
    // How a model is reached may change between two runs; what the author says about it may, too.
    assert_eq!(hash("base_url: 'http://y', api_key: k, max_retries: 1", interaction, data, prices), same);
    assert_eq!(hash(model, &format!("# harder\n{interaction}shuffle: false\n"), data, prices), same);
}

#[test]
fn the_model_that_plays_the_user_may_move_but_not_change() {
    let hash = |user: &str| {
        let talk = format!("dataset: [{{question: q}}]\nrubric: [{{match: exact}}]\nuser: {{{user}}}\n");
        with_file(&talk).hash
    };
    let same = hash("model: {name: u, base_url: 'http://u'}, prompt: Ask.");
    assert_eq!(hash("model: {name: u, base_url: 'http://v', api_key: k}, prompt: Ask."), same);
    assert_ne!(hash("model: {name: v, base_url: 'http://u'}, prompt: Ask."), same);
    assert_ne!(hash("model: {name: u, base_url: 'http://u'}, prompt: Answer."), same);
}

#[test]
fn a_user_makes_a_conversation_of_several_turns() {
    let loaded = with_file(&format!("{MATH}user: {{command: [cat], end: BYE}}\n"));
    let interaction = interaction(&loaded);
    assert_eq!((interaction.kind, interaction.limits.max_turns), (InteractionKind::MultiTurn, None));
    let user = interaction.user.as_ref().unwrap();
    assert!(matches!(&user.played_by, UserKind::Command { command, .. } if command[..] == ["cat"]));
    assert_eq!(user.end, "BYE");
}

#[test]
fn settings_reach_into_interaction_files() {
    let files = Files::new(&[("math.yaml", MATH), ("other.yaml", &format!("{MATH}max_turns: 1\n"))]);
    let job = format!("{MODEL}datasets: [{{interaction: math.yaml}}]\n");
    let loaded =
        files.load_with(&job, &["datasets.0.interaction.shuffle=true", "agents.0.model.sampling.top_p=1"]);
    assert!(interaction(&loaded).shuffle);
    assert_eq!(agent(&loaded).model.sampling["top_p"], 1);
    let loaded = files.load_with(&job, &["datasets.0.interaction=other.yaml"]);
    assert_eq!(interaction(&loaded).limits.max_turns, Some(1));
    assert_eq!(loaded.config.datasets[0].name.as_str(), "other");
}

#[test]
fn overrides_of_the_job_reach_the_containers_of_interactions() {
    let text =
        format!("{MATH}tools: [{{container: [bash]}}]\nenvironment: {{docker_image: a, memory: 1G}}\n");
    let files = Files::new(&[("math.yaml", &text)]);
    let job = format!("{MODEL}datasets: [{{interaction: math.yaml}}]\n");
    let container = |overrides: &[&str]| {
        let loaded = files.load_with(&job, overrides);
        let container = interaction(&loaded).environment.clone().unwrap();
        (container.cpus.to_string(), container.memory.to_string())
    };
    assert_eq!(container(&[]), ("1".to_owned(), "1G".to_owned()));
    let replaced = container(&["environment.override_cpus=4", "environment.override_memory=2G"]);
    assert_eq!(replaced, ("4".to_owned(), "2G".to_owned()));
}

#[test]
fn only_jobs_with_containers_need_an_environment() {
    let files = Files::new(&[("math.yaml", MATH)]);
    let needs =
        |datasets: &str| files.load(&format!("{MODEL}datasets: {datasets}\n")).config.needs_environment();
    assert!(!needs("[{interaction: math.yaml}]"));
    assert!(needs("[{path: tasks}]"));
    assert!(needs("[{interaction: math.yaml}, {path: tasks}]"));
}

#[test]
fn advantages_are_chosen_by_name_and_recorded_where_they_are_written() {
    let text = format!("{MATH}advantage: leave_one_out\ninclude_errors: true\n");
    let loaded = with_file(&text);
    let interaction = interaction(&loaded);
    assert_eq!((interaction.advantage, interaction.include_errors), (Advantage::LeaveOneOut, true));
    let record = &loaded.record["datasets"][0]["interaction"];
    assert_eq!((&record["advantage"], &record["include_errors"]), (&"leave_one_out".into(), &true.into()));
}
