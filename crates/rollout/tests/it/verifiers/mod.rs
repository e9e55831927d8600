//! What the verifiers library, version 0.1.14, does with the same data.

mod math;
mod rows;

use std::collections::BTreeMap;

use rollout::{
    model::{ResponseTokens, Rubric, StepTokens},
    stats::PassK,
};
use rollout_testkit::Python;
use serde_json::{Value, json};

use crate::rubric::said;

type Shares = BTreeMap<String, f64>;

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-12
}

fn same(one: &Shares, other: &Shares) -> bool {
    one.keys().eq(other.keys()) && one.values().zip(other.values()).all(|(one, other)| close(*one, *other))
}

#[tokio::test]
async fn masks_truncation_advantages_and_pass_rates_are_those_of_the_original() {
    let mut random = fastrand::Rng::with_seed(5);
    let mut requests = Vec::new();
    for prompt in 0..6 {
        for completion in 0..4 {
            for limit in [None, Some(0), Some(1), Some(3), Some(5), Some(7), Some(20)] {
                for experts in [false, true] {
                    requests.push(json!({
                        "do": "tokens", "prompt": prompt, "completion": completion, "limit": limit, "experts": experts,
                    }));
                }
            }
        }
    }
    for size in [1, 2, 3, 4, 8, 16] {
        for _ in 0..4 {
            let rewards: Vec<f64> = (0..size).map(|_| random.f64() * 4.0 - 1.0).collect();
            requests.push(json!({"do": "advantages", "rewards": rewards}));
        }
    }
    for rollouts in 1..=9_u64 {
        for threshold in [0.5, 1.0] {
            // Some examples have all of their rollouts, others not yet.
            let mut counts = [0; 6];
            let mut rows: Vec<(u64, f64)> = Vec::new();
            for _ in 0..rollouts * 5 {
                let example = random.usize(..counts.len());
                counts[example] += 1;
                if counts[example] <= rollouts {
                    let reward = random.choice([0.0, 0.25, 0.5, 0.75, 1.0]).unwrap();
                    rows.push((example as u64, reward));
                }
            }
            requests.push(json!({"do": "pass", "rollouts": rollouts, "threshold": threshold, "rows": rows}));
        }
    }
    let answers = Python::new().verifiers(&requests);
    for (request, answer) in requests.iter().zip(&answers) {
        match request["do"].as_str().unwrap() {
            "tokens" => tokens(request, answer),
            "advantages" => advantages(request, answer).await,
            _ => passes(request, answer),
        }
    }
}

fn tokens(request: &Value, answer: &Value) {
    let number = |key: &str| request[key].as_u64().map(|number| number as u32);
    let (prompt, completion) = (number("prompt").unwrap(), number("completion").unwrap());
    let tokens = ResponseTokens {
        prompt_ids: (0..prompt).collect(),
        completion_ids: (100..100 + completion).collect(),
        completion_logprobs: (0..completion).map(|place| -0.5 * f64::from(place)).collect(),
        routed_experts: (request["experts"] == true)
            .then(|| (0..prompt + completion).map(|place| vec![vec![place]]).collect()),
    };
    let ours = StepTokens::new(tokens.clone(), number("limit").map(|limit| limit as usize));
    let mut theirs: StepTokens = serde_json::from_value(answer.clone()).unwrap();
    if let (Some(experts), true) = (&mut theirs.routed_experts, theirs.is_truncated) {
        // The original cuts the experts of prompt and completion together to the length of the completion alone.
        assert_eq!(experts.len(), theirs.completion_ids.len(), "{request}");
        let kept = ours.prompt_ids.len() + ours.completion_ids.len();
        *experts = tokens.routed_experts.unwrap().into_iter().take(kept).collect();
    }
    assert_eq!(ours, theirs, "{request}");
}

async fn advantages(request: &Value, answer: &Value) {
    let rewards: Vec<f64> = serde_json::from_value(request["rewards"].clone()).unwrap();
    let rubric = Rubric::new().reward("given", 1.0, |scene| scene.parsed().parse::<f64>());
    let mut states: Vec<_> = rewards.iter().map(|reward| said(&reward.to_string())).collect();
    rubric.score_group(&mut states).await;
    let theirs: Vec<[f64; 3]> = serde_json::from_value(answer.clone()).unwrap();
    assert_eq!(states.len(), theirs.len());
    for (state, theirs) in states.iter().zip(theirs) {
        let ours = [state.reward, state.advantage, state.trajectory[0].advantage].map(Option::unwrap);
        assert!(ours.iter().zip(theirs).all(|(ours, theirs)| close(*ours, theirs)), "{request}: {ours:?}");
    }
}

fn passes(request: &Value, answer: &Value) {
    let rows: Vec<(u64, f64)> = serde_json::from_value(request["rows"].clone()).unwrap();
    let mut passes =
        PassK::new(request["rollouts"].as_u64().unwrap(), request["threshold"].as_f64().unwrap());
    for (example, reward) in rows {
        passes.add(example, reward);
    }
    let theirs: [Shares; 2] = serde_json::from_value(answer.clone()).unwrap();
    let ours = [passes.at_k(), passes.all_k()].map(|shares| shares.into_iter().collect::<Shares>());
    assert!(
        ours.iter().zip(&theirs).all(|(ours, theirs)| same(ours, theirs)),
        "{request}: {ours:?}, {theirs:?}"
    );
}
