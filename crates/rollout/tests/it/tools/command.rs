//! Commands of this machine as tools.

use std::{path::Path, sync::Arc, time::Duration};

use rollout::model::{
    Content, ToolDef,
    tool::{self, Tool},
};
use rollout_testkit::long_enough_async;
use serde_json::json;

use super::{call, gone, number_in};

fn script_in(directory: &Path, script: &str, timeout: Duration) -> Arc<dyn Tool> {
    let def = ToolDef {
        name: "script".to_owned(),
        description: "?".to_owned(),
        parameters: json!({"type": "object", "properties": {}}),
        strict: None,
    };
    tool::command(def, ["bash", "-c", script].map(str::to_owned).to_vec(), directory.to_owned(), timeout)
}

fn script(script: &str) -> Arc<dyn Tool> {
    script_in(Path::new("."), script, Duration::from_secs(60))
}

#[tokio::test]
async fn a_command_reads_its_arguments_as_json_and_prints_its_result() {
    let result = call(&script("cat; pwd -P >&2"), json!({"b": 1, "a": ["é"]})).await.unwrap();
    assert_eq!(result, Content::from(r#"{"b":1,"a":["é"]}"#));
}

#[tokio::test]
async fn a_command_runs_in_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("data"), "here\n").unwrap();
    let tool = script_in(dir.path(), "cat data", Duration::from_secs(60));
    assert_eq!(call(&tool, json!({})).await.unwrap(), Content::from("here"));
}

#[tokio::test]
async fn a_command_can_print_parts_of_a_message() {
    let part = r#"[{"type": "image_url", "image_url": {"url": "data:"}}]"#;
    let result = call(&script(&format!("echo '{part}'")), json!({})).await.unwrap();
    assert_eq!(result, serde_json::from_str(part).unwrap());
    let result = call(&script("echo '[1, 2]'"), json!({})).await.unwrap();
    assert_eq!(result, Content::from("[1, 2]"));
}

#[tokio::test]
async fn a_command_that_fails_reports_its_output() {
    let failure = call(&script("echo some; echo no luck >&2; exit 3"), json!({})).await.unwrap_err();
    assert_eq!(failure.name, "CommandError");
    insta::assert_snapshot!(failure, @"the command failed: exit status: 3; stderr: no luck");
    let missing = tool::command(
        script("").def().clone(),
        vec!["/nowhere/at/all".to_owned()],
        ".".into(),
        Duration::from_secs(60),
    );
    insta::assert_snapshot!(call(&missing, json!({})).await.unwrap_err(), @"cannot start the command `/nowhere/at/all`: No such file or directory (os error 2)");
}

#[tokio::test]
async fn a_command_need_not_read_its_arguments() {
    let large = "x".repeat(1 << 20);
    assert_eq!(call(&script("echo done"), json!({"large": large})).await.unwrap(), Content::from("done"));
}

#[tokio::test]
async fn output_without_end_is_a_failure() {
    let failure = call(&script("cat /dev/zero"), json!({})).await.unwrap_err();
    insta::assert_snapshot!(failure, @"the command printed more than 8388608 bytes");
}

#[tokio::test]
async fn processes_that_a_command_started_end_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let tool = script_in(dir.path(), "sleep 1000 & echo $! > pid; echo done", Duration::from_secs(60));
    assert_eq!(call(&tool, json!({})).await.unwrap(), Content::from("done"));
    gone(number_in(&dir.path().join("pid")).await).await;
}

#[tokio::test]
async fn a_command_that_times_out_is_killed_with_its_processes() {
    let dir = tempfile::tempdir().unwrap();
    let pid = dir.path().join("pid");
    long_enough_async(Duration::from_secs(1), async |timeout| {
        let tool = script_in(dir.path(), "sleep 1000 & echo $! > pid; sleep 1000", timeout);
        let failure = call(&tool, json!({})).await.unwrap_err();
        assert_eq!(failure.name, "TimeoutError");
        let expected = format!("the command timed out after {} seconds", timeout.as_secs());
        assert_eq!(failure.to_string(), expected);
        // Killed while it wrote the number, it started the process, but the test cannot find it.
        std::fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')).then_some(())
    })
    .await;
    gone(number_in(&pid).await).await;
}
