//! Token ids and log-probabilities for training, and records of large responses.

use rollout_gateway::Dialect;
use rollout_testkit::{ModelReply, ModelServer};

use crate::support::{Setup, question, text_of};

fn reply() -> ModelReply {
    ModelReply::text("It is 4.").tokens(&[1, 2, 3], &[(10, -0.5), (11, -0.25), (12, -0.125)])
}

#[tokio::test]
async fn token_ids_are_recorded_and_the_agent_does_not_see_what_it_did_not_ask_for() {
    for stream in [false, true] {
        let server = ModelServer::always(reply());
        let setup = Setup::with(&server, Dialect::Chat, |_| (), |spec| spec.token_ids = true).await;
        let (_, body) = setup.ask(Dialect::Chat, stream).await;
        assert!(!body.contains("token_ids") && !body.contains("\"logprob\""), "{body}");
        let closed = setup.close().await;
        let tokens = closed.calls[0].tokens.as_ref().unwrap();
        assert_eq!(tokens.prompt_ids, [1, 2, 3]);
        assert_eq!(tokens.completion_ids, [10, 11, 12]);
        assert_eq!(tokens.completion_logprobs, [-0.5, -0.25, -0.125]);
    }
}

#[tokio::test]
async fn an_agent_that_asks_for_log_probabilities_gets_these_without_token_ids() {
    for stream in [false, true] {
        let server = ModelServer::always(reply());
        let setup = Setup::with(&server, Dialect::Chat, |_| (), |spec| spec.token_ids = true).await;
        let (path, mut body) = question(Dialect::Chat, stream);
        body["logprobs"] = true.into();
        let answer = setup.post(path, &body).send().await.unwrap().text().await.unwrap();
        assert!(answer.contains("-0.25") && !answer.contains("token_ids"), "{answer}");
        assert_eq!(setup.close().await.calls[0].tokens.as_ref().unwrap().completion_ids, [10, 11, 12]);
    }
}

#[tokio::test]
async fn log_probabilities_are_asked_for_where_the_dialect_has_them() {
    for dialect in [Dialect::Responses, Dialect::Gemini] {
        for stream in [false, true] {
            let server = ModelServer::always(reply());
            let setup = Setup::with(&server, dialect, |_| (), |spec| spec.token_ids = true).await;
            let (_, body) = setup.ask(dialect, stream).await;
            assert!(!body.contains("-0.25"), "{body}");
            let closed = setup.close().await;
            let call = &closed.calls[0];
            assert_eq!(
                call.tokens.as_ref().unwrap().completion_logprobs,
                [-0.5, -0.25, -0.125],
                "{dialect:?}"
            );
            assert_eq!(text_of(dialect, call.response.as_ref().unwrap()), "It is 4.");
        }
    }
}

#[tokio::test]
async fn token_ids_of_a_translated_call_are_recorded_too() {
    let server = ModelServer::always(reply());
    let setup = Setup::with(&server, Dialect::Chat, |_| (), |spec| spec.token_ids = true).await;
    let (_, body) = setup.ask(Dialect::Messages, true).await;
    assert!(body.contains("message_stop"), "{body}");
    let closed = setup.close().await;
    assert_eq!(closed.calls[0].tokens.as_ref().unwrap().completion_ids, [10, 11, 12]);
}

#[tokio::test]
async fn a_record_that_would_be_too_large_is_cut_and_says_so() {
    let server = ModelServer::always(ModelReply::text("word ".repeat(2000)));
    let small = |config: &mut rollout_gateway::GatewayConfig| config.max_record_bytes = 10_000;
    let setup = Setup::with(&server, Dialect::Chat, small, |_| ()).await;
    let (_, body) = setup.ask(Dialect::Chat, true).await;
    assert!(body.len() > 100_000);
    let closed = setup.close().await;
    let call = &closed.calls[0];
    assert!(call.truncated && call.error.is_none(), "{:?}", call.error);
    assert!(call.response.as_ref().unwrap().to_string().len() < 10_000);
    assert!(call.usage.is_some());
}
