//! Plays the game with a model: `MODEL_URL` says where it is, `MODEL_KEY` is the key and `MODEL` its name.

use std::{env, error::Error};

use rollout::model::{Client, Examples, Model, RunOptions, client::ClientConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("MODEL_URL").unwrap_or_else(|_| "http://127.0.0.1:8000/v1".to_owned());
    let key = env::var("MODEL_KEY").ok();
    let client = Client::new(ClientConfig { api_key: key.map(Into::into), ..ClientConfig::new(url) })?;
    let model = Model::new(client, env::var("MODEL").unwrap_or_else(|_| "gpt-4.1-mini".to_owned()));
    let game = rollout_example_number_game::rollouts(&[42, 50, 64, 99]);
    // Run it twice: what is saved is not played again.
    let options = RunOptions::new(model).max_concurrent(16).save_to("jobs/number-game");
    let played = game.evaluate(Examples::all().rollouts(2), options).await?;
    for row in &played.outputs {
        let (answer, end) = (row.answer.as_deref(), row.stop_condition.as_deref());
        println!(
            "{:>3}: {:<28} {:<24} reward {:.2}",
            answer.unwrap_or_default(),
            row.columns["guesses"].to_string(),
            end.unwrap_or_default(),
            row.reward,
        );
    }
    let all = &played.metadata;
    println!(
        "{} games, reward {:.2} on average, pass@1 {:.2}",
        played.outputs.len(),
        all.avg_reward,
        all.pass_at_k["1"]
    );
    Ok(())
}
