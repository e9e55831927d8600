//! Prompts that are sent as tokens, so that nothing that was sampled is tokenised anew.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use axum::{
    Json, Router, extract,
    http::{StatusCode, Uri},
    routing::post,
};
use rollout::model::{
    Client, Error, Interaction, Limits, Message, MessageList, Messages, Model, SamplingArgs, State,
    client::ClientConfig, rollout,
};
use rollout_testkit::{ModelReply, ModelRequest, ModelServer};
use serde_json::{Value, json};
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
    model_at(server.url(), token_prompts)
}

fn model_at(url: String, token_prompts: bool) -> Arc<Model> {
    let config = ClientConfig { max_retries: 0, token_ids: true, token_prompts, ..ClientConfig::new(url) };
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

/// The ids of roles, and of the start of the model's message.
const USER: u32 = 10;
const ASSISTANT: u32 = 11;

/// A server with the endpoints of vLLM: prompts of tokens go to `/v1/completions`.
#[derive(Clone, Default)]
struct Vllm(Arc<Mutex<Vec<(String, Value)>>>);

impl Vllm {
    /// Starts one. Returns the base address of its API too.
    async fn start() -> (Self, String) {
        let server = Self::default();
        let router = Router::new()
            .route("/tokenize", post(Self::answer))
            .route("/v1/chat/completions", post(Self::answer))
            .route("/v1/completions", post(Self::answer))
            .with_state(server.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, router).await });
        (server, url)
    }

    async fn answer(
        extract::State(server): extract::State<Self>,
        uri: Uri,
        Json(body): Json<Value>,
    ) -> (StatusCode, Json<Value>) {
        let answer = match uri.path() {
            "/tokenize" => json!({"tokens": Self::tokenized(&body)}),
            "/v1/chat/completions" => json!({
                "id": "chat", "model": "m", "prompt_token_ids": [100, 200],
                "choices": [{
                    "message": {"role": "assistant", "content": "4"}, "finish_reason": "stop",
                    "token_ids": [7000, END],
                    "logprobs": {"content": [{"token": "4", "logprob": -0.5}, {"token": "", "logprob": -0.25}]},
                }],
            }),
            _ => {
                let prompt = prompt(&body);
                let turn = prompt.iter().filter(|id| **id >= 7000).count();
                json!({"id": "completion", "model": "m", "choices": [{
                    "text": "4", "finish_reason": "stop", "prompt_token_ids": prompt,
                    "token_ids": [7000 + turn, END],
                    "logprobs": {"tokens": ["4", ""], "token_logprobs": [-0.5, -0.25]},
                }]})
            }
        };
        server.0.lock().unwrap().push((uri.path().to_owned(), body));
        (StatusCode::OK, Json(answer))
    }

    /// Each message is its role, its number of words and the end.
    fn tokenized(body: &Value) -> Vec<u32> {
        let mut ids = Vec::new();
        for message in body["messages"].as_array().unwrap() {
            let words = message["content"].as_str().unwrap().split(' ').count() as u32;
            ids.extend([if message["role"] == "user" { USER } else { ASSISTANT }, 20 + words, END]);
        }
        ids.extend((body["add_generation_prompt"] == true).then_some(ASSISTANT));
        ids
    }

    /// The bodies of the requests at a path.
    fn requests(&self, path: &str) -> Vec<Value> {
        let asked = self.0.lock().unwrap();
        asked.iter().filter(|(at, _)| at == path).map(|(_, body)| body.clone()).collect()
    }
}

fn prompt(body: &Value) -> Vec<u32> {
    serde_json::from_value(body["prompt"].clone()).unwrap()
}

#[tokio::test]
async fn a_server_with_plain_completions_gets_tokens_instead_of_messages() {
    let (server, url) = Vllm::start().await;
    let state = run(&model_at(url, true)).await;
    assert_eq!((state.error.as_ref(), state.trajectory.len()), (None, 3));
    assert_eq!(server.requests("/v1/chat/completions").len(), 1, "only the first turn is sent as messages");

    // What was sampled is followed by the three words of the user and the start of the next message.
    let bridge = [USER, 23, END, ASSISTANT];
    let [second, third] = <[Value; 2]>::try_from(server.requests("/v1/completions")).unwrap();
    let first_turn = [&[100, 200, 7000, END], &bridge[..]].concat();
    assert_eq!(prompt(&second), first_turn);
    assert_eq!(prompt(&third), [&first_turn[..], &[7001, END], &bridge].concat());
    assert_eq!((second.get("messages"), &second["return_token_ids"]), (None, &json!(true)));

    let [sample] = <[_; 1]>::try_from(state.all_samples().unwrap()).unwrap();
    assert_eq!((sample.first_turn, sample.last_turn), (0, 2));
    assert_eq!(sample.token_ids, [&prompt(&third)[..], &[7002, END]].concat());
    assert_eq!(sample.loss_mask.iter().filter(|mask| **mask == 1).count(), 6);
    assert_eq!(sample.logprobs.iter().sum::<f64>(), 3.0 * -0.75);
}
