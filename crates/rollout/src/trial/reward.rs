//! Reads rewards.

use indexmap::IndexMap;

use rollout_core::text::excerpt;

/// The maximum size of a reward file.
pub(super) const MAX_REWARD_BYTES: u64 = 64 << 10;

/// A score, with further named scores if the tests give any.
#[derive(Debug, Clone, PartialEq)]
pub struct Reward {
    /// The score.
    pub reward: f64,
    /// The other scores of reward.json.
    pub named: IndexMap<String, f64>,
    /// Whether reward.json has only named scores, and `reward` is their mean.
    pub is_mean: bool,
}

/// Why a file is not a reward. The message follows "reward.txt contains" and the like.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RewardError {
    /// Only white space.
    #[error("nothing")]
    Empty,
    /// Bytes that are not text.
    #[error("bytes that are not UTF-8 text")]
    NotText,
    /// Text that is not one number.
    #[error("{0:?}, which is not one number")]
    NotANumber(String),
    /// NaN or an infinity.
    #[error("{0:?}, which is not finite")]
    NotFinite(String),
    /// JSON that is neither a number nor a flat object of numbers.
    #[error("JSON that is neither a number nor an object of numbers with \"reward\" among them: {0}")]
    NotAReward(String),
}

impl Reward {
    /// Reads reward.txt: one finite number, optionally surrounded by white space.
    pub(crate) fn from_text(bytes: &[u8]) -> Result<Self, RewardError> {
        let text = std::str::from_utf8(bytes).map_err(|_| RewardError::NotText)?.trim();
        if text.is_empty() {
            return Err(RewardError::Empty);
        }
        let reward: f64 = text.parse().map_err(|_| RewardError::NotANumber(excerpt(text)))?;
        if !reward.is_finite() {
            return Err(RewardError::NotFinite(excerpt(text)));
        }
        Ok(Self { reward, named: IndexMap::new(), is_mean: false })
    }

    /// All scores by name, as Harbor has them.
    pub(crate) fn by_name(&self) -> IndexMap<String, f64> {
        let own = (!self.is_mean).then(|| ("reward".to_owned(), self.reward));
        own.into_iter().chain(self.named.iter().map(|(name, score)| (name.clone(), *score))).collect()
    }

    /// The reward with these scores. Without a score named `reward`, it is the mean of all. None if there is no score.
    pub(crate) fn of_names(mut named: IndexMap<String, f64>) -> Option<Self> {
        match named.shift_remove("reward") {
            Some(reward) => Some(Self { reward, named, is_mean: false }),
            None if named.is_empty() => None,
            None => {
                let reward = named.values().sum::<f64>() / named.len() as f64;
                Some(Self { reward, named, is_mean: true })
            }
        }
    }

    /// Reads reward.json by the rules of Harbor: any flat object of numbers, and `true` is 1.
    pub(crate) fn from_harbor_json(bytes: &[u8]) -> Result<Self, RewardError> {
        let Ok(serde_json::Value::Object(fields)) = serde_json::from_slice(bytes) else {
            return Self::from_json(bytes);
        };
        let mut named = IndexMap::with_capacity(fields.len());
        for (key, value) in fields {
            let number = value.as_bool().map(|truth| f64::from(u8::from(truth))).or_else(|| value.as_f64());
            let number = number.filter(|number| number.is_finite());
            let wrong = || RewardError::NotAReward(excerpt(&format!("{key:?} is {value}")));
            named.insert(key.clone(), number.ok_or_else(wrong)?);
        }
        Self::of_names(named).ok_or_else(|| RewardError::NotAReward("{}".to_owned()))
    }

    /// Reads reward.json: a number, or a flat object of finite numbers that includes `reward`.
    pub(crate) fn from_json(bytes: &[u8]) -> Result<Self, RewardError> {
        let not_a_reward = |why: String| RewardError::NotAReward(excerpt(&why));
        let value: serde_json::Value =
            serde_json::from_slice(bytes).map_err(|error| not_a_reward(error.to_string()))?;
        match value {
            serde_json::Value::Number(number) => {
                let reward = number.as_f64().ok_or_else(|| not_a_reward(number.to_string()))?;
                Ok(Self { reward, named: IndexMap::new(), is_mean: false })
            }
            serde_json::Value::Object(fields) => {
                let mut named = IndexMap::with_capacity(fields.len());
                for (key, value) in fields {
                    let number = value
                        .as_f64()
                        .filter(|number| number.is_finite())
                        .ok_or_else(|| not_a_reward(format!("{key:?} is {value}")))?;
                    named.insert(key, number);
                }
                let reward = named
                    .shift_remove("reward")
                    .ok_or_else(|| not_a_reward("\"reward\" is missing".to_owned()))?;
                Ok(Self { reward, named, is_mean: false })
            }
            other => Err(not_a_reward(other.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reward_txt_is_one_finite_number() {
        for (text, expected) in [
            ("1", Some(1.0)),
            ("0.5\n", Some(0.5)),
            ("  -2e-3\t\n", Some(-0.002)),
            ("+1", Some(1.0)),
            ("", None),
            (" \n", None),
            ("nan", None),
            ("inf", None),
            ("-Infinity", None),
            ("1e999", None),
            ("1 0", None),
            ("1\n1", None),
            ("0x1", None),
            ("1,0", None),
            ("passed", None),
        ] {
            assert_eq!(
                Reward::from_text(text.as_bytes()).ok().map(|found| found.reward),
                expected,
                "{text:?}"
            );
        }
        assert_eq!(Reward::from_text(b"\xff1"), Err(RewardError::NotText));
    }

    #[test]
    fn reward_json_is_a_number_or_an_object_with_reward() {
        for (text, expected) in [
            ("1", Some((1.0, 0))),
            (" 0.25 ", Some((0.25, 0))),
            (r#"{"reward": 0.5}"#, Some((0.5, 0))),
            (r#"{"speed": 2, "reward": 1, "style": 0.5}"#, Some((1.0, 2))),
            (r#"{"speed": 2}"#, None),
            (r#"{"reward": "1"}"#, None),
            (r#"{"reward": {"a": 1}}"#, None),
            (r#"{"reward": 1, "note": null}"#, None),
            ("[1]", None),
            ("\"1\"", None),
            ("null", None),
            ("1e999", None),
            ("{", None),
        ] {
            let found =
                Reward::from_json(text.as_bytes()).ok().map(|found| (found.reward, found.named.len()));
            assert_eq!(found, expected, "{text:?}");
        }
    }

    #[test]
    fn reward_json_of_harbor_is_any_flat_object_of_numbers() {
        for (text, expected) in [
            (r#"{"reward": true}"#, Some((1.0, 0))),
            (r#"{"reward": 0.5, "style": 1}"#, Some((0.5, 1))),
            (r#"{"accuracy": 0.5, "style": 1}"#, Some((0.75, 2))),
            ("0.5", Some((0.5, 0))),
            ("{}", None),
            (r#"{"reward": "1"}"#, None),
            (r#"{"a": {"b": 1}}"#, None),
        ] {
            let found = Reward::from_harbor_json(text.as_bytes()).ok();
            assert_eq!(found.map(|found| (found.reward, found.named.len())), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_finite_number_is_read_back_unchanged(number in prop::num::f64::NORMAL | prop::num::f64::ZERO) {
            prop_assert_eq!(Reward::from_text(format!(" {number:?}\n").as_bytes()).unwrap().reward, number);
        }

        #[test]
        fn no_bytes_make_the_readers_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let finite = |found: Result<Reward, RewardError>| found.map_or(true, |found| found.reward.is_finite());
            prop_assert!(finite(Reward::from_text(&bytes)));
            prop_assert!(finite(Reward::from_json(&bytes)));
        }
    }
}
