//! A task whose tests ask a model to judge the result: the one in examples/judged-task.

use rollout_testkit::{ModelReply, ModelServer, TestJob, TestTask};

use super::{native, result};

const KEY: &str = "a-key-of-the-judge";

fn letter() -> TestTask {
    TestTask::new("letter")
        .config(include_str!("../../../../../examples/judged-task/letter/task.toml"))
        .solution(include_str!("../../../../../examples/judged-task/letter/solution/solve.sh"))
        .tests(include_str!("../../../../../examples/judged-task/letter/tests/test.sh"))
        .file("tests/judge.py", include_str!("../../../../../examples/judged-task/letter/tests/judge.py"))
        .file(
            "tests/rubric.json",
            include_str!("../../../../../examples/judged-task/letter/tests/rubric.json"),
        )
}

fn judged_by(server: &ModelServer) -> TestJob {
    native()
        .task(letter())
        .env("JUDGE_URL", &server.url())
        .env("JUDGE_MODEL", "a-judge")
        .env("JUDGE_API_KEY", KEY)
}

#[test]
fn a_model_judges_by_a_rubric() {
    let server = ModelServer::scripted(|request| {
        let asked = request.body.to_string();
        ModelReply::text(if asked.contains("Is the letter polite?") { "No." } else { "Yes" })
    })
    .key(KEY);
    let finished = judged_by(&server).oracle().run().expect(0);
    let result = result(&finished, "letter");
    assert_eq!(result["reward"], 0.75, "{result:#}");
    assert_eq!(result["rewards"]["polite"], 0.0, "{result:#}");
    assert_eq!(result["rewards"]["reason"], 1.0, "{result:#}");
    let requests = server.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|request| request.body.to_string().contains("my train leaves at noon")));
    assert!(requests.iter().all(|request| request.body["model"] == "a-judge"));
    assert!(!finished.file("config.json").contains(KEY));
}

#[test]
fn the_agent_does_not_see_the_judge_and_an_empty_answer_needs_none() {
    let server = ModelServer::always(ModelReply::text("Yes"));
    let job = judged_by(&server).script("env | grep JUDGE && touch /app/letter.txt; ls /tests; true");
    let finished = job.run().expect(0);
    assert_eq!(finished.trial("agent/set/letter__1")["reward"], 0.0);
    assert_eq!(finished.file("agent/set/letter__1/command/stdout.txt"), "");
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn a_judge_that_fails_is_an_error_and_not_a_reward_of_zero() {
    for reply in [ModelReply::text("It depends."), ModelReply::error(500, "overloaded")] {
        let server = ModelServer::always(reply);
        let result = result(&judged_by(&server).oracle().run().expect(1), "letter");
        assert_eq!(result["error"]["type"], "verifier_reward_missing", "{result:#}");
        assert!(result["reward"].is_null(), "{result:#}");
    }
}
