//! Questions one by one.

use rollout::{
    benchmark::{AgentRunner, BenchmarkItem, QuickError, QuickOptions, quick_rollout},
    config::RolloutConfig,
};
use rollout_testkit::{ModelReply, ModelServer};
use serde_json::json;

use super::support::Tools;

fn item(question: &str, answer: Option<&str>) -> BenchmarkItem {
    BenchmarkItem {
        id: "q1".to_owned(),
        question: question.to_owned(),
        answer: answer.map(str::to_owned),
        ..BenchmarkItem::default()
    }
}

#[tokio::test]
async fn a_runner_scores_questions_with_a_correct_answer() {
    let server = ModelServer::arithmetic();
    let config = RolloutConfig { base_url: server.url(), ..RolloutConfig::default() };
    let runner = AgentRunner::new(config.clone(), "custom_runner").start().await.unwrap();
    let result = runner.run_task(&item("What is 15 * 27?", Some("405"))).await.unwrap();
    assert_eq!((result.task_id.as_str(), result.predicted_answer.as_str()), ("q1", "405"));
    assert_eq!((result.score, result.success), (Some(1.0), true));
    assert_eq!(runner.run_task(&item("What is 1+1?", None)).await.unwrap().score, None);
    runner.stop().await;

    let config = RolloutConfig { evaluate_results: false, ..config };
    let runner = AgentRunner::new(config, "custom_runner").start().await.unwrap();
    assert_eq!(runner.run_task(&item("What is 1+1?", Some("2"))).await.unwrap().score, None);
}

#[tokio::test]
async fn the_sessions_of_a_runner_have_its_name() {
    let (tools, sandbox_server_url) = Tools::willing().await;
    let server = ModelServer::always(ModelReply::text("42"));
    let config = RolloutConfig {
        base_url: server.url(),
        sandbox_server_url,
        resource_types: vec!["doc".to_owned()],
        ..RolloutConfig::default()
    };
    let runner = AgentRunner::new(config, "mine").start().await.unwrap();
    runner.run_task(&item("well?", None)).await.unwrap();
    runner.stop().await;
    assert_eq!(tools.paths(), ["tools", "warmup", "session/create", "worker/disconnect"]);
    let worker = tools.heard()[2].1["worker_id"].as_str().unwrap().to_owned();
    assert!(worker.starts_with("mine-") && worker.len() == "mine-".len() + 32, "{worker}");
}

#[tokio::test]
async fn a_quick_question_opens_sessions_for_the_kinds_of_its_tools() {
    let (tools, sandbox_url) = Tools::willing().await;
    let server = ModelServer::turns([
        ModelReply::tool_call("web-search", &json!({"query": "France"})),
        ModelReply::text("Paris"),
    ]);
    let options = QuickOptions {
        tools: ["web:search", "web:browse", "doc:read"].map(str::to_owned).to_vec(),
        base_url: server.url(),
        sandbox_url,
        ..QuickOptions::default()
    };
    let result = quick_rollout("What is the capital of France?", options).await.unwrap();
    assert_eq!((result.answer.as_str(), result.success, result.error), ("Paris", true, None));
    let trajectory = result.trajectory.unwrap();
    assert_eq!((trajectory.task_id.as_str(), trajectory.tool_calls.len()), ("quick_task", 1));
    let kinds: Vec<_> = tools
        .heard()
        .into_iter()
        .filter(|(path, _)| path == "session/create")
        .map(|(_, body)| body["resource_type"].clone())
        .collect();
    assert_eq!(kinds, ["web", "doc"]);
    assert_eq!(server.requests()[0].model(), "gpt-4.1-2025-04-14");
}

#[tokio::test]
async fn a_failed_quick_question_reports_the_reason() {
    let server = ModelServer::always(ModelReply::error(400, "not today"));
    let options = QuickOptions { base_url: server.url(), ..QuickOptions::default() };
    let result = quick_rollout("Well?", options.clone()).await.unwrap();
    assert_eq!((result.answer.as_str(), result.success), ("", false));
    assert!(result.error.unwrap().contains("not today"));

    let refusing = ModelServer::always(ModelReply::unauthorized());
    let refused = quick_rollout("Well?", QuickOptions { base_url: refusing.url(), ..options }).await;
    assert!(matches!(refused, Err(QuickError::Rollout(_))));
}

#[tokio::test]
async fn an_invalid_configuration_is_reported_before_the_first_question() {
    let error = quick_rollout("Well?", QuickOptions::default()).await.unwrap_err().to_string();
    assert!(error.contains("`base_url` is missing"), "{error}");
    let server = ModelServer::arithmetic();
    let config = RolloutConfig { base_url: server.url(), trajectory_only: true, ..RolloutConfig::default() };
    let runner = AgentRunner::new(config, "custom_runner").start().await.unwrap();
    let result = runner.run_task(&item("What is 1+1?", Some("2"))).await.unwrap();
    assert_eq!((result.predicted_answer.as_str(), result.score), ("2", None));
}

#[tokio::test]
async fn a_runner_retries_infrastructure_failures_of_a_question() {
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let (_, sandbox_server_url) =
        Tools::start(move |_, _| match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => json!("no envelope"),
            _ => json!({"code": 0, "data": "well"}),
        })
        .await;
    let server =
        ModelServer::turns([ModelReply::tool_call("web-search", &json!({})), ModelReply::text("42")]);
    let config = RolloutConfig {
        base_url: server.url(),
        sandbox_server_url,
        available_tools: vec!["web:search".to_owned()],
        ..RolloutConfig::default()
    };
    let runner = AgentRunner::new(config, "mine").start().await.unwrap();
    assert!(runner.run_task(&item("Well?", None)).await.unwrap().success);
}
