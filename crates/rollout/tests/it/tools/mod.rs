//! Tools that are processes or servers of their own.

mod command;
#[cfg(feature = "mcp")]
mod mcp;
mod python;

use std::{sync::Arc, time::Duration};

use rollout::model::{
    Client, Content, Model, RolloutInput, SamplingArgs, State,
    client::ClientConfig,
    tool::{Tool, ToolFailure},
};
use serde_json::Value;

/// The state of a rollout that never asks its model.
fn state() -> State {
    let model = Model {
        client: Client::new(ClientConfig::new("http://127.0.0.1:9/v1")).unwrap(),
        name: "test".to_owned(),
        sampling: SamplingArgs::new(),
        max_seq_len: None,
    };
    State::new(RolloutInput::default(), Arc::new(model), Arc::new([]))
}

async fn call(tool: &Arc<dyn Tool>, arguments: Value) -> Result<Content, ToolFailure> {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    tool.call(arguments, &mut state()).await
}

/// Waits until a process is gone.
async fn gone(pid: u32) {
    while std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The number in a file, as soon as it is written.
async fn number_in(path: &std::path::Path) -> u32 {
    loop {
        if let Ok(text) = std::fs::read_to_string(path)
            && let Some(line) = text.strip_suffix('\n')
        {
            return line.parse().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
