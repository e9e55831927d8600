//! JSON Schemas of models and of interaction files.

use serde_json::{Value as Json, json};

use super::{
    load_interaction as interaction, load_model as model, load_rubric as rubric, load_task,
    load_tools as tools,
    reader::MAX_TIMEOUT_SEC,
    schema::{described, env, flag, object, one_of, quantity, required, text, titled, word},
};
use rollout_core::quantity::Cpus;
use rollout_model::rubric::Command;

/// The JSON Schema of interaction files.
pub fn interaction_schema() -> Json {
    titled("Rollout interaction", interaction())
}

/// An interaction, in its file or in a job.
pub(super) fn interaction() -> Json {
    let string_list = |text: &str| described(text, json!({ "type": "array", "items": { "type": "string" } }));
    let example = described(
        "An example: a `question` or a `prompt`, an `answer`, and whatever else is known of it.",
        json!({ "type": "object", "anyOf": [{ "required": ["question"] }, { "required": ["prompt"] }] }),
    );
    let environment = one_of(
        &["docker_image", "path"],
        object(
            "The container that each rollout gets, for tools of a container.",
            &interaction::ENVIRONMENT_KEYS,
            json!({
                "docker_image": text("A prebuilt image."),
                "path": text("A directory with a Dockerfile, relative to this file."),
                "cpus": with_default(quantity("Its CPUs."), Cpus { millis: 1000 }.to_string()),
                "memory": with_default(quantity("Its memory."), load_task::MEMORY.to_string()),
            }),
        ),
    );
    let schema = object(
        "An interaction: examples, how a model is led through one, and how that is scored.",
        &interaction::KEYS,
        json!({
            "directory": text("Where relative paths are found and commands run; the directory of this file when absent."),
            "dataset": described(
                "The examples: the path of a file of JSON lines or of a JSON list, or the list itself.",
                json!({ "anyOf": [{ "type": "string" }, { "type": "array", "minItems": 1, "items": example }] }),
            ),
            "dataset_sha256": described(
                "The hash that the file of examples must have, as config.json records it.",
                json!({ "type": "string", "pattern": "^sha256:[0-9a-f]{64}$" }),
            ),
            "num_examples": whole("How many of the examples are attempted; all when absent.", 1, u32::MAX.into(), None),
            "shuffle": flag("Shuffles the examples before they are counted off."),
            "shuffle_seed": whole("What the order depends on.", 0, u64::MAX, Some(0)),
            "system_prompt": text("The first message of every example that has none of its own."),
            "few_shot": described(
                "Messages between the system prompt and the question.",
                json!({ "type": "array", "items": message() }),
            ),
            "type": word(
                "How the conversation goes; `tool_use` if there are tools, else `single_turn` when absent.",
                &interaction::KINDS,
                None,
            ),
            "max_turns": whole("The most turns that the model takes.", 1, u32::MAX.into(), None),
            "tools": described("What the model may call.", json!({ "type": "array", "items": tool() })),
            "environment": environment,
            "rubric": described(
                "What scores a rollout: the reward is the sum of all scores, each times its weight.",
                json!({ "type": "array", "minItems": 1, "items": rubric_entry() }),
            ),
            "parser": parser("How the answer is found in what the model said."),
            "limits": limits("When a rollout has to end."),
            "state_columns": string_list("Fields of the state that are saved with each rollout."),
            "independent_scoring": flag("Scores each rollout by itself, not together with the others of its example."),
            "pass_threshold": described(
                "The least reward that counts as passed.",
                json!({ "type": "number", "default": interaction::PASS_THRESHOLD }),
            ),
        }),
    );
    required(&["dataset", "rubric"], schema)
}

/// The `model` of an agent or a judge.
pub(super) fn model() -> Json {
    let map = |text: &str| described(text, json!({ "type": "object" }));
    let schema = object(
        "A model and how it is reached.",
        &model::KEYS,
        json!({
            "name": text("The server's name for it."),
            "base_url": described(
                "Where the server answers, or a list of servers that are all the same. `${VAR}` is expanded.",
                json!({ "anyOf": [
                    { "type": "string" },
                    { "type": "array", "minItems": 1, "items": { "type": "string" } },
                ] }),
            ),
            "api_key": text("What the server knows its clients by. Write it as `${VAR}`."),
            "dialect": word(
                "What the server understands: OpenAI's chat completions or Anthropic's messages.",
                &model::DIALECTS,
                Some("chat"),
            ),
            "sampling": map("How the model is sampled: `temperature`, `max_tokens`, and whatever else the server takes."),
            "extra_body": map("Goes into the body of each request as it is."),
            "headers": described(
                "Headers of each request. `${VAR}` is expanded.",
                json!({ "type": "object", "additionalProperties": { "type": "string" } }),
            ),
            "stream": flag("Asks for responses piece by piece."),
            "token_ids": flag("Asks the server for the ids and the probabilities of tokens."),
            "max_seq_len": whole("The longest sequence that training takes, in tokens.", 1, u32::MAX.into(), None),
            "timeout_sec": positive_seconds("Seconds that a response may take.", Some(model::TIMEOUT_SEC)),
            "connect_timeout_sec": positive_seconds(
                "Seconds that a connection may take.",
                Some(model::CONNECT_TIMEOUT_SEC),
            ),
            "max_retries": whole(
                "How often a request is repeated that failed for the moment.",
                0,
                model::MOST_RETRIES,
                Some(model::MAX_RETRIES.into()),
            ),
            "rate_limit": object(
                "How much the server takes in a minute.",
                &model::RATE_LIMIT_KEYS,
                json!({
                    "requests_per_minute": whole("Requests.", 1, u32::MAX.into(), None),
                    "tokens_per_minute": whole("Tokens, read and written.", 1, u32::MAX.into(), None),
                }),
            ),
            "prices": prices(),
        }),
    );
    required(&["name", "base_url"], schema)
}

fn prices() -> Json {
    let price =
        |text: &str| described(text, json!({ "type": "number", "minimum": 0, "maximum": model::MAX_PRICE }));
    let own = required(
        &["input", "output"],
        object(
            "What tokens cost, in US dollars for a million.",
            &model::PRICE_KEYS,
            json!({
                "input": price("Tokens that the model reads."),
                "output": price("Tokens that the model writes."),
                "cached_input": price("Tokens that come from a cache; as `input` when absent."),
                "cache_write": price("Tokens that go into a cache; as `input` when absent."),
            }),
        ),
    );
    let list = json!({ "type": "object", "additionalProperties": own.clone() });
    described(
        "What tokens cost: prices, prices by the name of the model, or the path of a file with either.",
        json!({ "anyOf": [{ "type": "string" }, own, list] }),
    )
}

/// When a rollout has to end.
pub(super) fn limits(description: &str) -> Json {
    object(
        description,
        &model::LIMIT_KEYS,
        json!({
            "max_turns": whole("Turns of the model.", 1, u32::MAX.into(), None),
            "max_completion_tokens": whole("Tokens that the model writes, over all turns.", 1, u64::MAX, None),
            "max_total_tokens": whole("Tokens that the model reads and writes, over all turns.", 1, u64::MAX, None),
            "max_cost": described(
                "US dollars, where the cost is known.",
                json!({ "type": "number", "exclusiveMinimum": 0, "maximum": model::MAX_PRICE }),
            ),
            "timeout_sec": positive_seconds("Seconds from the start; this one also ends a turn under way.", None),
        }),
    )
}

fn tool() -> Json {
    let mcp = one_of(
        &["command", "url"],
        object(
            "An MCP server, with all of its tools.",
            &tools::MCP_KEYS,
            json!({
                "command": command("The program that is the server, and its arguments."),
                "env": env("Variables of that program. `${VAR}` is expanded."),
                "url": text("Where the server answers. `${VAR}` is expanded."),
                "headers": described(
                    "Headers of each request to it. `${VAR}` is expanded.",
                    json!({ "type": "object", "additionalProperties": { "type": "string" } }),
                ),
            }),
        ),
    );
    let names: Vec<&str> = tools::CONTAINER_TOOLS.iter().map(|(name, _)| *name).collect();
    let mut schema = one_of(
        &["command", "mcp", "container"],
        object(
            "A command of this machine, the tools of an MCP server, or tools that work in a container.",
            &tools::KEYS,
            json!({
                "command": command(
                    "A program and its arguments. It gets the arguments of a call as JSON on its standard input, \
                     and what it prints is the result.",
                ),
                "name": described("The model's name for it.", json!({ "type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$" })),
                "description": text("What it does, for the model."),
                "parameters": described("The JSON Schema of its arguments.", json!({ "type": "object" })),
                "timeout_sec": positive_seconds("Seconds that a call may take.", Some(tools::COMMAND_TIMEOUT.as_secs_f64())),
                "mcp": mcp,
                "container": described(
                    "Tools that work in the container of the rollout.",
                    json!({ "type": "array", "minItems": 1, "items": { "enum": names } }),
                ),
            }),
        ),
    );
    schema["dependentRequired"] = json!({ "command": ["name", "description"] });
    schema
}

fn rubric_entry() -> Json {
    let judge = required(
        &["model"],
        object(
            "A model that is asked whether the answer is right.",
            &rubric::JUDGE_KEYS,
            json!({
                "model": model(),
                "prompt": text("What it is asked. `{question}`, `{answer}` and `{response}` are filled in."),
            }),
        ),
    );
    one_of(
        &["match", "judge", "command"],
        object(
            "A function that scores rollouts.",
            &rubric::KEYS,
            json!({
                "name": text("The name of its metric; its kind when absent."),
                "weight": described(
                    "How much its score counts; with 0 it is a metric only.",
                    json!({ "type": "number", "default": 1.0 }),
                ),
                "match": word("Compares the answer with that of the example.", &rubric::MATCHES, None),
                "judge": judge,
                "command": command("A program that scores, and its arguments."),
                "group": flag("The command scores all rollouts of an example together."),
                "timeout_sec": positive_seconds("Seconds that the command may take.", Some(Command::TIMEOUT.as_secs_f64())),
                "parser": parser("How the answer is found; as the interaction says when absent."),
            }),
        ),
    )
}

fn parser(description: &str) -> Json {
    let tag = json!({ "type": "string", "pattern": "^[\\w-]+$" });
    let xml = required(
        &["xml"],
        object(
            "The answer is in a tag.",
            &rubric::XML_KEYS,
            json!({
                "xml": described(
                    "The tags that are expected, in order; a list stands for one tag of several names.",
                    json!({ "type": "array", "minItems": 1, "items": {
                        "anyOf": [tag.clone(), { "type": "array", "minItems": 1, "items": tag }],
                    } }),
                ),
                "answer_field": described("The tag with the answer.", json!({ "type": "string", "default": "answer" })),
            }),
        ),
    );
    described(description, json!({ "anyOf": [{ "enum": rubric::PARSERS }, xml] }))
}

fn message() -> Json {
    let roles = ["system", "user", "assistant", "tool", "text"];
    json!({
        "description": "A message.",
        "type": "object",
        "properties": { "role": { "description": "Who speaks.", "enum": roles } },
        "required": ["role"],
    })
}

fn command(description: &str) -> Json {
    described(
        description,
        json!({ "type": "array", "minItems": 1, "items": { "type": "string", "minLength": 1 } }),
    )
}

fn whole(description: &str, least: u64, most: u64, default: Option<u64>) -> Json {
    let mut schema = described(description, json!({ "type": "integer", "minimum": least, "maximum": most }));
    if let Some(default) = default {
        schema["default"] = json!(default);
    }
    schema
}

fn positive_seconds(description: &str, default: Option<f64>) -> Json {
    let mut schema = described(
        description,
        json!({ "type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_SEC }),
    );
    if let Some(default) = default {
        schema["default"] = json!(default);
    }
    schema
}

fn with_default(mut schema: Json, default: String) -> Json {
    schema["default"] = json!(default);
    schema
}
