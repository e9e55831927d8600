//! Prompts that are sent as tokens, so that nothing that was sampled is tokenised anew.

use std::sync::Arc;

use async_trait::async_trait;
use rollout::model::{
    Client, Error, Interaction, Limits, Message, MessageList, Messages, Model, SamplingArgs, State,
    client::ClientConfig, rollout,
};
use rollout_testkit::{ModelReply, ModelRequest, ModelServer};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::input;

/// Takes three turns, with a word of a user between them.
struct Thrice;

#[async_trait]
impl Interaction for Thrice {
    fn max_turns(&self) -> Option<u32> {
        Some(3)
    }

    async fn env_response(&self, _: &MessageList, _: &mut State) -> Result<Messages, Error> {
        Ok(Message::user("Are you sure?").into())
    }
}

/// The last token of each message, as the server's tokeniser has it.
const END: u32 = 2;

fn tokens(request: &ModelRequest) -> Option<Vec<u32>> {
    serde_json::from_value(request.body.get("tokens")?.clone()).ok()
}

/// Samples tokens that are not those of the same text when it is tokenised.
fn reply(request: &ModelRequest) -> ModelReply {
    let turn = request.turns() as u32;
    // Messages are tokenised anew, which gives another past each time.
    let prompt = tokens(request).unwrap_or_else(|| vec![100 + turn, 200]);
    ModelReply::text("4").tokens(&prompt, &[(7000 + turn, -0.5), (END, -0.25)])
}

async fn run(model: &Arc<Model>) -> State {
    let never = CancellationToken::new();
    rollout(&Thrice, &Limits::default(), input("What is 2+2?"), Arc::clone(model), &never).await.unwrap()
}

fn model(server: &ModelServer, token_prompts: bool) -> Arc<Model> {
    let config =
        ClientConfig { max_retries: 0, token_ids: true, token_prompts, ..ClientConfig::new(server.url()) };
    let client = Client::new(config).unwrap();
    Arc::new(Model { client, name: "m".to_owned(), sampling: SamplingArgs::new(), max_seq_len: None })
}

#[tokio::test]
async fn sampled_tokens_are_sent_back_and_a_rollout_is_one_sample() {
    let server = ModelServer::scripted(reply);
    let state = run(&model(&server, true)).await;
    let requests = server.requests();
    let sent: Vec<_> = requests.iter().map(|request| tokens(request)).collect();
    assert_eq!(sent[0], None);
    let second = sent[1].clone().unwrap();
    assert_eq!(second[..4], [100, 200, 7000, END]);
    let third = sent[2].clone().unwrap();
    assert!(third.starts_with(&[&second[..], &[7001, END]].concat()), "{third:?}");
    // The messages are there too, for the server's parsers.
    assert_eq!(requests[2].messages().len(), 5);
    let [sample] = <[_; 1]>::try_from(state.all_samples().unwrap()).unwrap();
    assert_eq!((sample.first_turn, sample.last_turn), (0, 2));
    assert_eq!(sample.loss_mask.iter().filter(|mask| **mask == 1).count(), 6);

    let server = ModelServer::scripted(reply);
    let state = run(&model(&server, false)).await;
    assert_eq!(state.all_samples().unwrap().len(), 3);
    assert!(server.requests().iter().all(|request| request.body.get("tokens").is_none()));
}

#[tokio::test]
async fn a_server_without_the_endpoint_gets_messages() {
    let server = ModelServer::scripted(|request| match tokens(request) {
        Some(_) => ModelReply::error(404, "Not Found"),
        None => reply(request),
    });
    let model = model(&server, true);
    for _ in 0..2 {
        let state = run(&model).await;
        assert_eq!((state.error, state.trajectory.len()), (None, 3));
    }
    let asked = server.requests().iter().filter(|request| tokens(request).is_some()).count();
    assert_eq!(asked, 1, "it is asked for once");
}

#[tokio::test]
async fn a_turn_that_was_cut_off_is_followed_by_messages() {
    let server = ModelServer::scripted(|request| reply(request).finish_reason(Value::from("length")));
    let state = run(&model(&server, true)).await;
    assert_eq!(state.trajectory.len(), 3);
    assert!(server.requests().iter().all(|request| tokens(request).is_none()));
}
