//! Replicas, rate limits and sharing.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use rollout::model::{Message, client::RateLimit};
use rollout_testkit::{Hold, ModelReply, ModelServer};

use super::support::{ask, last, model, model_with};

#[tokio::test]
async fn a_conversation_stays_with_its_replica_and_the_next_goes_to_another() {
    let servers = [ModelServer::echo(), ModelServer::echo()];
    let model = model_with(&servers[0], |config| config.base_urls.push(servers[1].url()));
    let hi = [Arc::new(Message::user("hi"))];
    for session in ["a", "b", "a", "c", "a", "b"] {
        model.client.respond(&model, &hi, &[], session).await.unwrap();
    }
    let sessions = |server: &ModelServer| -> Vec<String> {
        server.requests().iter().map(|request| request.header("x-session-id").unwrap().to_owned()).collect()
    };
    assert_eq!(sessions(&servers[0]), ["a", "a", "c", "a"]);
    assert_eq!(sessions(&servers[1]), ["b", "b"]);
}

#[tokio::test]
async fn clones_share_a_limit_and_a_cancelled_request_frees_its_turn() {
    let server = ModelServer::echo();
    let limit = RateLimit { requests_per_minute: NonZeroU32::new(1), tokens_per_minute: None };
    let model = model_with(&server, |config| config.rate_limit = limit);
    ask(&model).await.unwrap();
    let clone = model.clone();
    let waiting = tokio::spawn(async move { ask(&clone).await });
    let second = tokio::time::timeout(Duration::from_millis(50), ask(&model)).await;
    assert!(second.is_err(), "a minute has not passed");
    waiting.abort();
    assert_eq!(server.served(), 1);
}

#[tokio::test]
async fn connections_are_reused_and_requests_are_sent_immediately() {
    let hold = Hold::new();
    let server = ModelServer::always(ModelReply::text("4").held(&hold));
    let model = model(&server);
    let asking: Vec<_> = (0..20)
        .map(|_| {
            tokio::spawn({
                let model = model.clone();
                async move { ask(&model).await }
            })
        })
        .collect();
    hold.waiting(20).await;
    hold.open();
    for task in asking {
        task.await.unwrap().unwrap();
    }
    let made = server.connections();
    for _ in 0..20 {
        ask(&model).await.unwrap();
    }
    assert_eq!(server.connections(), made);
    assert_eq!(last(&server).model(), "m");
}

#[tokio::test]
async fn a_cancelled_request_closes_its_connection() {
    let hold = Hold::new();
    let server = ModelServer::always(ModelReply::text("4").held(&hold));
    let model = model(&server);
    let asking = tokio::spawn(async move { ask(&model).await });
    hold.waiting(1).await;
    asking.abort();
    hold.waiting(0).await;
}
