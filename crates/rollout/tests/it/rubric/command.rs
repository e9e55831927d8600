//! Programs that score.

use std::{path::Path, time::Duration};

use rollout::model::{
    Error, ErrorKind, Rubric,
    parser::{Boxed, Plain},
    rubric::{Command, Scene},
};
use rollout_testkit::long_enough_async;
use serde_json::json;

use super::{metrics, said};

fn sh(script: &str) -> Command {
    Command::new("sh", ["-c", script])
}

fn python(script: &str) -> Command {
    Command::new("python3", ["-c", script])
}

async fn failure(command: Command) -> String {
    let state = said("4");
    command.score(&Scene::new(&state, &Plain)).await.unwrap_err().to_string()
}

#[tokio::test]
async fn a_program_reads_a_rollout_and_writes_a_score() {
    let script =
        "import json, sys; s = json.load(sys.stdin); print(0.5 if s['response'] == s['answer'] else 0)";
    let rubric = Rubric::new().parser(Boxed).command("exact", 2.0, python(script));
    let mut states = [said(r"\boxed{4}"), said(r"\boxed{5}")];
    rubric.score_group(&mut states).await;
    assert_eq!(states.map(|state| state.reward.unwrap()), [1.0, 0.0]);
}

#[tokio::test]
async fn a_program_is_shown_all_of_the_state() {
    let dir = tempfile::tempdir().unwrap();
    let rubric = Rubric::new().metric("before", |_| 0.25).command(
        "kept",
        1.0,
        sh("cat > shown.json; echo 1").dir(dir.path()),
    );
    let mut state = said("4");
    state.set("board", json!([1, 2])).unwrap();
    state.set("prompt", json!("not the prompt")).unwrap_err();
    state.error = Some(Error::new(ErrorKind::Tool, "broke"));
    state.stop_condition = Some("has_error".to_owned());
    rubric.score_rollout(&mut state).await.unwrap();
    assert_eq!(metrics(&state), [("before", 0.25), ("kept", 1.0)]);
    let text = std::fs::read_to_string(dir.path().join("shown.json")).unwrap();
    let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
    insta::assert_json_snapshot!(shown, {".trajectory_id" => "[id]", ".timing.start_time" => "[time]"}, @r#"
    {
      "prompt": [
        {
          "role": "system",
          "content": "Be brief."
        },
        {
          "role": "user",
          "content": "What is 2+2?"
        }
      ],
      "completion": [
        {
          "role": "assistant",
          "content": "4"
        }
      ],
      "response": "4",
      "answer": "4",
      "info": {
        "level": 1
      },
      "task": "sums",
      "example_id": 3,
      "trajectory_id": "[id]",
      "model": "attempting",
      "is_completed": true,
      "is_truncated": false,
      "stop_condition": "has_error",
      "error": "ToolError",
      "num_turns": 1,
      "metrics": {
        "before": 0.25
      },
      "usage": {
        "input_tokens": 0.0,
        "output_tokens": 0.0
      },
      "timing": {
        "start_time": "[time]",
        "generation_ms": 5.0,
        "scoring_ms": 0.0,
        "total_ms": 0.0
      },
      "board": [
        1,
        2
      ],
      "source": "book"
    }
    "#);
}

#[tokio::test]
async fn a_program_scores_a_group_at_once() {
    let script =
        "import json, sys; g = json.load(sys.stdin); print(json.dumps([len(s['response']) for s in g]))";
    let rubric = Rubric::new().group_command("lengths", 1.0, python(script));
    assert!(rubric.needs_group());
    let mut states = [said("aaa"), said("a")];
    rubric.score_group(&mut states).await;
    assert_eq!(
        states.map(|state| (state.reward.unwrap(), state.advantage.unwrap())),
        [(3.0, 1.0), (1.0, -1.0)]
    );
}

#[tokio::test]
async fn a_group_gets_zeros_of_a_program_that_gives_no_array_or_a_wrong_one() {
    for script in ["echo 1", "echo '[1]'", "echo '[1, null]'", "exit 1"] {
        let mut states = [said("a"), said("b")];
        Rubric::new().group_command("scores", 1.0, sh(script)).score_group(&mut states).await;
        assert_eq!(states.map(|state| state.reward.unwrap()), [0.0, 0.0], "{script}");
    }
}

#[tokio::test]
async fn output_that_is_not_a_finite_number_is_an_error_that_shows_it() {
    let failures = [
        failure(sh("echo good; echo 'bad input' >&2")).await,
        failure(sh("echo nan")).await,
        failure(sh("echo inf")).await,
        failure(sh("echo 1 2")).await,
        failure(sh("true")).await,
        failure(sh("echo 1; echo 'no answer' >&2; exit 3")).await,
        failure(sh("kill -9 $$")).await,
        failure(Command::new("/nonexistent/scorer", [] as [&str; 0])).await,
    ];
    insta::assert_snapshot!(failures.join("\n"), @r#"
    the program wrote "good" instead of a finite number; stderr: bad input
    the program wrote "nan" instead of a finite number
    the program wrote "inf" instead of a finite number
    the program wrote "1 2" instead of a finite number
    the program wrote "" instead of a finite number
    the program failed: exit status: 3; stderr: no answer
    the program failed: signal: 9 (SIGKILL)
    cannot start `/nonexistent/scorer`; is it installed and executable?
    "#);
}

#[tokio::test]
async fn a_failed_program_scores_zero() {
    let mut state = said("4");
    Rubric::new().command("broken", 1.0, sh("exit 1")).score_rollout(&mut state).await.unwrap();
    assert_eq!(state.reward, Some(0.0));
}

#[tokio::test]
async fn no_shell_reads_the_arguments() {
    let dir = tempfile::tempdir().unwrap();
    let marker = dir.path().join("marker");
    let argument = format!("1; touch {}", marker.display());
    assert!(failure(Command::new("echo", [argument])).await.contains("instead of a finite number"));
    assert!(!marker.exists());
}

#[tokio::test]
async fn a_program_need_not_read_its_input() {
    let mut state = said(&"x".repeat(1 << 20));
    Rubric::new().command("deaf", 1.0, sh("exec <&-; echo 1")).score_rollout(&mut state).await.unwrap();
    assert_eq!(state.reward, Some(1.0));
}

#[tokio::test]
async fn output_is_bounded_and_the_end_of_errors_is_kept() {
    assert_eq!(failure(Command::new("yes", [] as [&str; 0])).await, "the program wrote more than 4096 bytes");
    let text = failure(sh("yes error | head -c 1000000 >&2; echo 'last words' >&2; exit 1")).await;
    assert!(text.len() < 4096 && text.ends_with("last words"), "{} bytes", text.len());
}

/// Waits until a process is gone, or is only waiting to be forgotten.
async fn is_gone(pid: &str) -> bool {
    let stat = Path::new("/proc").join(pid).join("stat");
    tokio::time::timeout(Duration::from_secs(600), async {
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .is_ok()
}

async fn written(path: &Path) -> String {
    loop {
        match std::fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

#[tokio::test]
async fn a_program_out_of_time_is_killed_with_all_that_it_started() {
    let dir = tempfile::tempdir().unwrap();
    long_enough_async(Duration::from_secs(1), async |timeout| {
        let command = sh("sleep 1000 & echo $! > pid; echo waiting >&2; wait").dir(dir.path());
        let text = failure(command.timeout(timeout)).await;
        let timed_out = format!("the program timed out after {}s", timeout.as_secs());
        if text == timed_out {
            return None;
        }
        assert_eq!(text, format!("{timed_out}; stderr: waiting"));
        Some(())
    })
    .await;
    assert!(is_gone(&written(&dir.path().join("pid")).await).await);
}

#[tokio::test]
async fn processes_that_a_program_leaves_behind_are_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = said("4");
    let command = sh("sleep 1000 & echo $! > pid; echo 1").dir(dir.path());
    Rubric::new().command("left", 1.0, command).score_rollout(&mut state).await.unwrap();
    assert_eq!(state.reward, Some(1.0));
    assert!(is_gone(&written(&dir.path().join("pid")).await).await);
}

#[tokio::test]
async fn scoring_that_is_given_up_kills_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let rubric = Rubric::new().command("long", 1.0, sh("sleep 1000 & echo $! > pid; wait").dir(dir.path()));
    let mut state = said("4");
    let file = dir.path().join("pid");
    let pid = tokio::select! {
        _ = rubric.score_rollout(&mut state) => panic!("the program waits"),
        pid = written(&file) => pid,
    };
    assert!(is_gone(&pid).await);
}
