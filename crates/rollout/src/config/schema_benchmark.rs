//! The JSON Schema of the configuration of a benchmark.

use rollout_record::identity::PROMPT_HASH;
use serde_json::{Value as Json, json};

use super::{
    RolloutConfig,
    load_benchmark::KEYS,
    load_model::MOST_RETRIES,
    reader::MAX_TIMEOUT_SEC,
    schema::{described, object, text, titled},
};
use rollout_model::metric::Metric;

/// The JSON Schema of the configuration of a benchmark.
pub fn benchmark_schema() -> Json {
    let default = RolloutConfig::default();
    let secret = |what: &str| text(&format!("{what} Write it as `${{VAR}}`: keys are written to no output."));
    let flag = |what: &str, default: bool| described(what, json!({ "type": "boolean", "default": default }));
    let texts = |what: &str| described(what, json!({ "type": "array", "items": { "type": "string" } }));
    let count = |what: &str, least: u32, most: u64, default: u32| {
        described(what, json!({ "type": "integer", "minimum": least, "maximum": most, "default": default }))
    };
    let with_default = |mut schema: Json, default: Json| {
        schema["default"] = default;
        schema
    };
    let any = u64::from(u32::MAX);
    let mut schema = object(
        "A benchmark: questions for a model, the tools that it may use, and how its answers are scored.",
        &KEYS,
        json!({
            "data_path": text(
                "The file of the questions, .jsonl or .json, relative to this file or else to the working directory.",
            ),
            "output_dir": with_default(
                text("Where results go, relative to the working directory."),
                json!(default.results_dir()),
            ),
            "model_name": with_default(text("The server's name for the model."), json!(default.model_name)),
            "api_key": secret("The model's key; that of OPENAI_API_KEY when absent. A server on this machine needs none."),
            "base_url": text("The address of the model's server; that of OPENAI_BASE_URL when absent."),
            "max_turns": count("The most turns that a question takes.", 1, any, default.max_turns.get()),
            "max_retries": count("How often a request to the model is tried again.", 0, MOST_RETRIES, default.max_retries),
            "max_workers": count(
                "With `parallel`: how many questions are worked on at the same time.", 1, any, default.max_workers.get(),
            ),
            "available_tools": texts("The tools that the model may use: `web:search`, `vm:*`."),
            "system_prompt": described(
                "What the model is told before the question, as text or as lines. A text of Rollout's own when empty.",
                json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] }),
            ),
            "system_prompt_file": text("The file that it is read from instead; found as `data_path` is."),
            PROMPT_HASH: described(
                "The hash that the file must have, as config.json records it.",
                json!({ "type": "string", "pattern": "^sha256:[0-9a-f]{64}$" }),
            ),
            "evaluate_results": flag("Whether answers are scored.", default.evaluate_results),
            "evaluation_metric": described(
                "How answers are scored.",
                json!({ "enum": Metric::ALL.map(Metric::as_str), "default": default.evaluation_metric.as_str() }),
            ),
            "evaluator_model_name": text("The model that judges for `llm_judgement`; `model_name` when absent."),
            "evaluator_api_key": secret("The judge's key; `api_key` when absent."),
            "evaluator_base_url": text("The address of the judge's server; `base_url` when absent."),
            "evaluator_temperature": described(
                "The judge's temperature.",
                json!({ "type": "number", "minimum": 0, "maximum": 2, "default": default.evaluator_temperature }),
            ),
            "evaluator_max_retries": count(
                "How often the judge is asked again.", 0, MOST_RETRIES, default.evaluator_max_retries,
            ),
            "evaluator_extra_params": described("What else is sent to the judge.", json!({ "type": "object" })),
            "evaluator_include_question": flag(
                "Whether the judge is shown the question beside the answers.", default.evaluator_include_question,
            ),
            "resource_types": texts("The kinds of tools for which each question gets a session: `doc`, `code`."),
            "resource_init_configs": described(
                "What these sessions are opened with, by kind, under `content`.",
                json!({ "type": "object", "additionalProperties": { "type": "object" } }),
            ),
            "sandbox_server_url": with_default(text("The address of the tool server."), json!(default.sandbox_server_url)),
            "sandbox_token": secret("The token of the tool server, if it wants one."),
            "sandbox_auto_start": flag(
                "Whether the tool server is started if it does not answer.", default.sandbox_auto_start,
            ),
            "sandbox_config_path": text("What it is then started with; found as `data_path` is."),
            "sandbox_timeout": described(
                "Seconds that one call of a tool may take.",
                json!({
                    "type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_SEC,
                    "default": default.sandbox_timeout.as_secs(),
                }),
            ),
            "benchmark_name": text("Names the benchmark in results; the name of the file of questions when absent."),
            "number_of_tasks": described("At most this many questions.", json!({ "type": "integer", "minimum": 1 })),
            "task_ids": described(
                "Only the questions with these ids.",
                json!({ "type": "array", "items": { "type": ["string", "number"] } }),
            ),
            "parallel": flag("Whether several questions are worked on at the same time.", default.parallel),
            "save_results": flag("Whether answers are saved.", default.save_results),
            "save_trajectories": flag("Whether conversations are saved with them.", default.save_trajectories),
            "trajectory_only": flag(
                "Whether conversations are all that is saved. Nothing is scored then.", default.trajectory_only,
            ),
            "save_summary": flag("Whether a summary is saved.", default.save_summary),
        }),
    );
    for property in schema["properties"].as_object_mut().into_iter().flat_map(|all| all.values_mut()) {
        nullable(property);
    }
    // Other programs may have keys of their own in here, and comments begin with an underscore.
    schema["additionalProperties"] = json!(true);
    titled("Rollout benchmark", schema)
}

/// Null says the same as nothing.
fn nullable(schema: &mut Json) {
    if schema["type"].is_string() {
        schema["type"] = json!([schema["type"].take(), "null"]);
    }
    for key in ["enum", "anyOf"] {
        if let Some(list) = schema.get_mut(key).and_then(Json::as_array_mut) {
            list.push(if key == "enum" { Json::Null } else { json!({ "type": "null" }) });
        }
    }
}
