//! Python functions that score, through one process that stays.

use std::{path::Path, time::Duration};

use rollout::model::{
    PythonFunction, PythonWorker, Rubric,
    parser::Plain,
    rubric::{PythonReward, Scene},
};

use super::{metrics, said};

const FUNCTIONS: &str = r#"
import asyncio, os, sys, threading, time

def exact(response, answer):
    print("this is not an answer")
    return response == answer

async def later(completion, source, state):
    await asyncio.sleep(0)
    assert state["response"] == completion[-1]["content"] and source == "book"
    return 0.25

def process(**everything):
    return os.getpid()

def broken(answer):
    return int("x" + answer)

def nothing(answer):
    return None

def infinite(answer):
    return float("inf")

def unknown(no_such_thing):
    return 1

def leaves(response):
    sys.exit(3)

def crashes(response):
    if response == "crash":
        os.write(2, b"these are my last words\n")
        os._exit(7)
    return 1

def sleeps(response):
    if response == "sleep":
        time.sleep(1000)
    return 1

meeting = threading.Barrier(3)

def meets(response):
    meeting.wait(60)
    return 1

def reads(response):
    return len(sys.stdin.read())

def ranks(responses, answer, states):
    assert [state["response"] for state in states] == responses and len(answer) == len(responses)
    return [responses.index(each) for each in responses]

def too_few(response):
    return [1]
"#;

struct Files {
    worker: PythonWorker,
    _dir: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("rewards.py"), FUNCTIONS).unwrap();
        std::fs::write(dir.path().join("invalid.py"), "def f(:\n").unwrap();
        Self { worker: PythonWorker::new("python3", dir.path()), _dir: dir }
    }

    fn of(&self, file: impl AsRef<Path>, function: &str) -> PythonReward {
        let function = PythonFunction { file: file.as_ref().to_owned(), function: function.to_owned() };
        PythonReward::new(&self.worker, function)
    }

    fn reward(&self, function: &str) -> PythonReward {
        self.of("rewards.py", function)
    }

    async fn score(&self, function: &str, text: &str) -> Result<f64, String> {
        score(&self.reward(function), text).await
    }
}

async fn score(reward: &PythonReward, text: &str) -> Result<f64, String> {
    let state = said(text);
    reward.score(&Scene::new(&state, &Plain)).await.map_err(|error| error.to_string())
}

#[tokio::test]
async fn functions_get_the_arguments_of_their_parameters_in_one_process() {
    let files = Files::new();
    let rubric = Rubric::new()
        .python("exact", 2.0, files.reward("exact"))
        .python("later", 1.0, files.reward("later"))
        .python("one", 0.0, files.reward("process"))
        .python("other", 0.0, files.reward("process"));
    let mut states = [said("4"), said("5")];
    rubric.score_group(&mut states).await;
    assert_eq!(states.each_ref().map(|state| state.reward.unwrap()), [2.25, 0.25]);
    let processes: Vec<f64> = states
        .iter()
        .flat_map(|state| metrics(state)[2..4].iter().map(|(_, id)| *id).collect::<Vec<_>>())
        .collect();
    assert!(processes.iter().all(|id| *id == processes[0] && *id > 0.0), "{processes:?}");
}

#[tokio::test]
async fn a_group_is_scored_by_lists() {
    let files = Files::new();
    let rubric = Rubric::new().group_python("rank", 1.0, files.reward("ranks"));
    let mut states = [said("a"), said("b"), said("a")];
    rubric.score_group(&mut states).await;
    assert_eq!(states.each_ref().map(|state| state.reward.unwrap()), [0.0, 1.0, 0.0]);
    let (one, other) = (said("a"), said("b"));
    let scenes = [Scene::new(&one, &Plain), Scene::new(&other, &Plain)];
    let error = files.reward("too_few").score_group(&scenes).await.unwrap_err().to_string();
    assert!(
        error.contains("rewards.py:too_few` raised ValueError: it returned 1 numbers for 2 rollouts"),
        "{error}"
    );
}

#[tokio::test]
async fn a_call_that_ends_the_process_or_hangs_counts_as_zero_like_an_exception() {
    let files = Files::new();
    for (function, text) in [("crashes", "crash"), ("sleeps", "sleep"), ("broken", "4")] {
        let reward = match function {
            "sleeps" => files.reward(function).timeout(Duration::from_millis(200)),
            _ => files.reward(function),
        };
        let mut state = said(text);
        Rubric::new().python("scored", 1.0, reward).score_rollout(&mut state).await.unwrap();
        assert_eq!((state.reward, state.scoring_errors.len()), (Some(0.0), 1), "{function}");
        assert_eq!((state.is_excluded, state.failure().is_some()), (false, false), "{function}");
    }
}

#[tokio::test]
async fn errors_of_a_function_are_reported_with_their_line() {
    let files = Files::new();
    let error = files.score("broken", "4").await.unwrap_err();
    let place = "rewards.py\", line 17, in broken\n    return int(\"x\" + answer)";
    assert!(error.starts_with("`rewards.py:broken` raised ValueError: invalid literal for int()"), "{error}");
    assert!(error.contains(place), "{error}");
    for (function, expected) in [
        ("nothing", "`rewards.py:nothing` raised TypeError: it returned NoneType, not a number"),
        ("infinite", "`rewards.py:infinite` raised ValueError: it returned inf, which is not finite"),
        ("unknown", "`rewards.py:unknown` raised TypeError: unknown() missing 1 required"),
        ("leaves", "`rewards.py:leaves` raised SystemExit: 3"),
        ("absent", "cannot call `rewards.py:absent`: there is no function `absent` in "),
    ] {
        let error = files.score(function, "4").await.unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    for (file, expected) in [("none.py", "FileNotFoundError"), ("invalid.py", "SyntaxError")] {
        let error = score(&files.of(file, "f"), "4").await.unwrap_err();
        assert!(error.starts_with(&format!("`{file}:f` raised {expected}")), "{error}");
    }
    let nowhere = PythonWorker::new("/nowhere/python3", ".");
    let function = PythonFunction { file: "rewards.py".into(), function: "exact".into() };
    let error = score(&PythonReward::new(&nowhere, function), "4").await.unwrap_err();
    assert!(error.starts_with("cannot start `/nowhere/python3`"), "{error}");
    // The process is still there, and what functions print or read does not disturb it.
    assert_eq!(files.score("reads", "4").await, Ok(0.0));
    assert_eq!(files.score("exact", "4").await, Ok(1.0));
}

#[tokio::test]
async fn several_calls_run_at_once() {
    let files = Files::new();
    let calls = futures_util::future::join_all((0..3).map(|_| files.score("meets", "4"))).await;
    assert!(calls.iter().all(|call| *call == Ok(1.0)), "{calls:?}");
}

#[tokio::test]
async fn a_function_that_ends_the_process_is_found_and_the_others_are_called_again() {
    let files = Files::new();
    let before = files.score("process", "4").await.unwrap();
    let calls = ["4", "crash", "5", "6"].map(|text| files.score("crashes", text));
    let [first, crashed, third, fourth] = futures_util::future::join_all(calls).await.try_into().unwrap();
    assert_eq!([first, third, fourth], [Ok(1.0), Ok(1.0), Ok(1.0)]);
    let error = crashed.unwrap_err();
    assert_eq!(error, "`rewards.py:crashes` ended the Python process; stderr: these are my last words");
    let after = files.score("process", "4").await.unwrap();
    assert!(after != before, "another process took its place");
}

#[tokio::test]
async fn a_call_that_times_out_does_not_affect_others() {
    let files = Files::new();
    let slow = files.reward("sleeps").timeout(Duration::from_millis(500));
    // Python starts before the time runs.
    slow.check().await.unwrap();
    let error = score(&slow, "sleep").await.unwrap_err();
    assert_eq!(error, "`rewards.py:sleeps` timed out after 0.5s");
    let patient = files.reward("sleeps");
    assert_eq!(score(&patient, "4").await, Ok(1.0));
}
