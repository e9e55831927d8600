//! A safe with a code from 1 to 99: the model dials until it is open, or until the alarm goes off.
use rollout::model::{client::ClientConfig, dataset, rubric::Scene, tool, tool_calls, *};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Dial {
    /// A number from 1 to 99.
    code: i64,
}

/// Tool use with an alarm.
struct Safe(ToolUse<'static>);

#[async_trait::async_trait]
impl Interaction for Safe {
    fn base(&self) -> Option<&dyn Interaction> {
        Some(&self.0)
    }
    fn stops(&self) -> Vec<Stop> {
        vec![Stop::new("alarm", |state| tool_calls(state, "dial") > 8)]
    }
    fn cleanups(&self) -> Vec<Cleanup> {
        vec![Cleanup::new("log", async |state| Ok(tokio::fs::write("safe.log", format!("{state:?}")).await?))]
    }
    async fn env_response(&self, messages: &MessageList, state: &mut State) -> Result<Messages, Error> {
        let tries = Message::user(format!("That was try {} of 8.", tool_calls(state, "dial")));
        Ok([self.0.env_response(messages, state).await?, tries.into()].concat())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dial = tool::stateful("dial", "Dials a code.", async |Dial { code }: Dial, state| {
        let right: i64 = state.input.answer.as_deref().unwrap_or_default().parse()?;
        state.set("open", code == right)?;
        let hint = if code < right { "higher" } else { "lower" };
        Ok(if code == right { "open" } else { hint })
    });
    let open = |scene: &Scene<'_>| scene.state.flag("open");
    let rubric = Rubric::new().reward("open", 1.0, open).group_reward("quickest", 0.5, move |scenes| {
        let least = scenes.iter().filter(|scene| open(scene)).map(|scene| num_turns(scene.state)).min();
        scenes.iter().map(|scene| open(scene) && Some(num_turns(scene.state)) == least).collect::<Vec<_>>()
    });
    let rows = dataset::rows(r#"{"question": "Open the safe: its code is from 1 to 99.", "answer": "42"}"#)?;
    let examples = dataset::Format::default().inputs(rows)?;
    let safe = Rollouts::new(Safe(ToolUse::new([dial])?), rubric).dataset(examples);
    let model = Model::new(Client::new(ClientConfig::new(std::env::var("MODEL_URL")?))?, "gpt-4.1-mini");
    let results = safe.evaluate(Examples::all().rollouts(2), RunOptions::new(model)).await?;
    results.outputs.iter().for_each(|row| println!("{:?}: reward {}", row.stop_condition, row.reward));
    Ok(())
}
