//! A game: the model guesses a number from 1 to 100. After each guess, it learns whether the number is higher or lower.

use async_trait::async_trait;
use rollout::model::{
    Error, Interaction, Message, MessageList, Messages, RolloutInput, Rollouts, Rubric, State, Stop,
    TrajectoryStep,
};
use serde_json::json;

/// Enough to find any number by halves.
const TURNS: u32 = 7;

/// The game with some numbers to guess, and how well it was played: a win is worth 1, and half as much again at the
/// first guess.
pub fn rollouts(numbers: &[i64]) -> Rollouts {
    let rubric =
        Rubric::new().reward("won", 1.0, |scene| scene.state.flag("won")).reward("quick", 0.5, |scene| {
            match scene.state.flag("won") {
                true => 1.0 / scene.state.trajectory.len() as f64,
                false => 0.0,
            }
        });
    let examples: Vec<_> = (0..).zip(numbers).map(|(id, number)| example(id, *number)).collect();
    Rollouts::new(Game, rubric).dataset(examples).env_id("number-game").state_columns(["guesses"])
}

fn example(example_id: u64, number: i64) -> RolloutInput {
    let prompt = "I have a number from 1 to 100 in mind. Try to guess it. Say a number and nothing else.";
    RolloutInput {
        prompt: Message::user(prompt).into(),
        example_id,
        task: "guess".to_owned(),
        answer: Some(number.to_string()),
        ..RolloutInput::default()
    }
}

/// How the game goes. What it remembers of a rollout is in the rollout's state, because one `Game` leads all of them.
struct Game;

#[async_trait]
impl Interaction for Game {
    fn max_turns(&self) -> Option<u32> {
        Some(TURNS)
    }

    fn stops(&self) -> Vec<Stop> {
        vec![Stop::new("no_number", |state| {
            state.trajectory.last().is_some_and(|step| guess(step).is_none())
        })]
    }

    async fn setup_state(&self, state: &mut State) -> Result<(), Error> {
        state.set("guesses", json!([]))?;
        Ok(())
    }

    async fn add_trajectory_step(&self, state: &mut State, step: TrajectoryStep) -> Result<(), Error> {
        if let Some(guess) = guess(&step)
            && let Some(guesses) = state.fields.get_mut("guesses").and_then(|guesses| guesses.as_array_mut())
        {
            guesses.push(guess.into());
        }
        let right = guess(&step).is_some() && guess(&step) == number(state);
        state.set("won", right)?;
        if right {
            // The last word: without it the model would have another turn.
            state.final_env_response = Some(Message::user("Right!").into());
        }
        state.trajectory.push(step);
        Ok(())
    }

    async fn env_response(&self, _: &MessageList, state: &mut State) -> Result<Messages, Error> {
        let higher = state.trajectory.last().and_then(guess) < number(state);
        Ok(Message::user(if higher { "Higher." } else { "Lower." }).into())
    }
}

fn guess(step: &TrajectoryStep) -> Option<i64> {
    step.completion.last()?.text().trim().trim_end_matches('.').parse().ok()
}

fn number(state: &State) -> Option<i64> {
    state.input.answer.as_ref()?.parse().ok()
}
