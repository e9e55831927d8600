//! Exports whose rows are trials, steps, rollouts or conversations, through the command.

mod read_back;
mod scale;
mod sft;
mod tables;
mod verifiers;

use rollout_testkit::{ModelReply, ModelServer, TestJob, TestTask};
use serde_json::{Value, json};

/// Says everything that a reader of tables may stumble over.
const HOSTILE: &str = "=HYPERLINK(\"http://x\",\"a\"),\r\n'quoted' \"twice\"\u{0}\u{2028}\n;\tend é 好";

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
}

fn model(server: &ModelServer) -> Value {
    json!({"name": "model", "model": {"name": "scripted", "base_url": server.url(), "max_retries": 0}})
}

/// Tasks that pass and fail, attempted by a model and by the oracle.
fn containers(server: &ModelServer) -> TestJob {
    let about = "[metadata]\ncategory = \"files\"\ndifficulty = \"easy\"\ntags = [\"a\", \"b\"]\n";
    job()
        .task(TestTask::new("broken").tests("echo '=1+1' >&2; exit 1\n"))
        .task(TestTask::new("plain").config(about))
        .agent(model(server))
        .oracle()
        .set("n_concurrent_trials", json!(1))
}

/// Makes the file that the task asks for, and says something.
fn diligent() -> ModelServer {
    let call =
        ModelReply::tool_call("bash", &json!({"command": "touch /app/done; echo made"})).call_id("call-1");
    ModelServer::turns([call, ModelReply::text(HOSTILE)])
}

/// Two attempts at each of two sums: one right, one wrong.
fn rollouts(server: &ModelServer) -> TestJob {
    let rows =
        json!([{"question": "What is 1+1?", "answer": "2"}, {"question": "What is 2+2?", "answer": "4"}]);
    let interaction =
        json!({"dataset": rows, "rubric": [{"match": "numeric"}], "state_columns": ["trajectory"]});
    job()
        .agent(model(server))
        .set("n_attempts", json!(2))
        .set("n_concurrent_trials", json!(1))
        .set("retry", json!({"max_attempts": 1}))
        .set("datasets", json!([{"name": "sums", "interaction": interaction}]))
}

fn benchmark(server: &ModelServer) -> TestJob {
    let config = json!({
        "data_path": "questions.jsonl", "output_dir": "jobs/job", "base_url": server.url(),
        "model_name": "m", "max_retries": 0,
    });
    let questions = "{\"id\": \"q1\", \"question\": \"What is 2+2?\", \"answer\": \"4\"}\n\
                     {\"id\": \"q2\", \"question\": \"What is 3+4?\", \"answer\": \"8\"}\n";
    job().file("questions.jsonl", questions).file("config.json", &config.to_string())
}
