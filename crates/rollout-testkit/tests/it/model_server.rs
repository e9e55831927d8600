//! The scripted model server as a process of its own.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

fn start(arguments: &[&str]) -> (Child, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_model-server"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the program");
    let mut url = String::new();
    let stdout = child.stdout.as_mut().expect("its output is a pipe");
    BufReader::new(stdout).read_line(&mut url).expect("read its address");
    (child, url.trim_end().to_owned())
}

#[tokio::test]
async fn it_prints_its_address_and_ends_with_its_input() {
    let (mut child, url) = start(&["--port", "0", "--script", "arithmetic", "--key", "k"]);
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "What is 20+3?"}]});
    let client = reqwest::Client::new();
    let request = client.post(format!("{url}/chat/completions")).bearer_auth("k").json(&body);
    let reply: Value = request.send().await.unwrap().json().await.unwrap();
    assert_eq!(reply["choices"][0]["message"]["content"], "23");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn it_names_its_scripts_when_asked_for_another() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_model-server")).args(["--script", "chess"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    insta::assert_snapshot!(String::from_utf8(output.stderr).unwrap(), @"
    unknown script `chess`
    usage: model-server [--port PORT] [--script NAME] [--key KEY]
    scripts: arithmetic, echo, examples, fixed, fixed-tools, guess, judge, tools
    ");
}
