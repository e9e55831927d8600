//! What the members of a group see of each other.

use std::sync::{Arc, Mutex};

use rollout::model::{
    Client, Examples, Model, Rollouts, RunOptions, SingleTurn, client::ClientConfig, rubric::Scene,
};
use rollout_testkit::ModelServer;

use super::support::{Scripted, Shared, UNTIDY, Untidy, examples, journaled, lines, model, rubric};

/// The first rollout of an example is the last one to end.
struct Reversed(Arc<Mutex<Vec<tokio::sync::oneshot::Sender<()>>>>);

#[async_trait::async_trait]
impl rollout::model::Interaction for Reversed {
    fn max_turns(&self) -> Option<u32> {
        Some(1)
    }

    async fn get_model_response(
        &self,
        _state: &mut rollout::model::State,
        _prompt: &rollout::model::MessageList,
    ) -> Result<rollout::model::Response, rollout::model::Error> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let number = {
            let mut waiting = self.0.lock().unwrap();
            waiting.push(sender);
            waiting.len()
        };
        if number < 4 {
            receiver.await.unwrap();
        }
        // Each that ends wakes the one that came before it.
        self.0.lock().unwrap().truncate(number - 1);
        if let Some(before) = self.0.lock().unwrap().pop() {
            before.send(()).unwrap();
        }
        Ok(super::support::response(&number.to_string()))
    }
}

#[tokio::test]
async fn a_group_is_scored_and_saved_in_the_order_of_its_rollouts_whichever_ends_first() {
    let dir = tempfile::tempdir().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&seen);
    let rubric = rubric().group_reward("order", 1.0, move |scenes: &[Scene<'_>]| {
        heard.lock().unwrap().extend(scenes.iter().map(|scene| scene.parsed().to_string()));
        (0..scenes.len()).map(|place| place as f64).collect::<Vec<_>>()
    });
    let kinds = Rollouts::new(Reversed(Arc::default()), rubric).dataset(examples(1));
    let options = RunOptions::new(model()).save_to(dir.path());
    kinds.evaluate(Examples::all().rollouts(4), options).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), ["1", "2", "3", "4"]);
    let rows: Vec<_> = lines(&dir.path().join("outputs.jsonl"))
        .iter()
        .map(|row| (row["attempt"].as_u64().unwrap(), row["metrics"]["order"].as_f64().unwrap()))
        .collect();
    assert_eq!(rows, [(1, 0.0), (2, 1.0), (3, 2.0), (4, 3.0)]);
}

#[tokio::test]
async fn the_rest_of_a_group_that_was_cut_short_is_scored_with_its_first_members() {
    let dir = tempfile::tempdir().unwrap();
    let run = async |rollouts: u32, cut: bool| {
        let scripted =
            Scripted::new(move |_, call| Ok(if cut { "0" } else { ["0", "1"][call % 2] }.to_owned()));
        let kinds = Rollouts::new(Untidy(Shared(scripted)), rubric()).dataset(examples(1)).env_id("say");
        let options =
            RunOptions::new(model()).max_concurrent(1).save_to(dir.path()).state_columns(["advantage"]);
        kinds.evaluate(Examples::all().rollouts(rollouts), options).await.unwrap()
    };
    run(4, true).await;
    // Two rows are lost.
    let path = dir.path().join("outputs.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.split_inclusive('\n').take(2).collect::<String>()).unwrap();
    let results = run(4, false).await;
    let advantages: Vec<_> =
        results.outputs.iter().map(|row| row.columns["advantage"].as_f64().unwrap()).collect();
    assert_eq!(advantages, [0.25, 0.25, 0.25, -0.75]);
    // The first members keep the notes of their own run.
    let notes: Vec<_> = journaled(dir.path()).iter().map(|trial| trial["notes"].clone()).collect();
    assert_eq!(notes, vec![serde_json::json!([UNTIDY]); 4]);
    let trials = lines(&dir.path().join("journal.jsonl"));
    assert_eq!(trials.iter().filter(|entry| entry["entry"] == "trial").count(), 8);
}

#[tokio::test]
async fn the_rollouts_of_an_example_stay_with_one_replica_and_the_next_example_goes_to_another() {
    let servers = [ModelServer::echo(), ModelServer::echo()];
    let mut config = ClientConfig::new(servers[0].url());
    config.base_urls.push(servers[1].url());
    let model = Model { client: Client::new(config).unwrap(), ..model() };
    let kinds = Rollouts::new(SingleTurn, rubric()).dataset(examples(4));
    kinds.evaluate(Examples::all().rollouts(3), RunOptions::new(model).max_concurrent(5)).await.unwrap();
    let asked = servers.each_ref().map(|server| {
        let mut asked: Vec<_> = server.requests().iter().map(|request| request.last_text()).collect();
        asked.sort_unstable();
        asked.join(", ")
    });
    assert_eq!(
        asked,
        ["say 0, say 0, say 0, say 2, say 2, say 2", "say 1, say 1, say 1, say 3, say 3, say 3"]
    );
    let mut sessions: Vec<_> = servers
        .iter()
        .flat_map(ModelServer::requests)
        .map(|request| request.header("x-session-id").unwrap().to_owned())
        .collect();
    sessions.sort_unstable();
    sessions.dedup();
    assert_eq!(sessions.len(), 12);
}
