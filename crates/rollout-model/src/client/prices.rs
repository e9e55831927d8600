//! What tokens cost, in a table that users write.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use rollout_core::response::TokenUsage;

/// What the tokens of one model cost, in US dollars per million.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Tokens that it reads.
    pub input: f64,
    /// Tokens that it writes.
    pub output: f64,
    /// Tokens that it reads from a cache; the price of `input` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<f64>,
    /// Tokens that it reads and writes to a cache; the price of `input` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<f64>,
}

impl Price {
    /// What a response costs.
    pub fn cost(&self, usage: &TokenUsage) -> f64 {
        let parts = [
            (usage.prompt_tokens, self.input),
            (usage.cached_tokens, self.cached_input.unwrap_or(self.input)),
            (usage.cache_write_tokens, self.cache_write.unwrap_or(self.input)),
            (usage.completion_tokens, self.output),
        ];
        parts.into_iter().map(|(tokens, price)| tokens as f64 * price).sum::<f64>() / 1e6
    }

    fn is_sound(&self) -> bool {
        let prices = [Some(self.input), Some(self.output), self.cached_input, self.cache_write];
        prices.into_iter().flatten().all(|price| price.is_finite() && price >= 0.0)
    }
}

/// The prices of models, by name or by a pattern like `claude-*`. An exact name takes precedence over patterns, and an
/// earlier pattern over a later one. Rollout includes no prices, because they would soon be outdated.
///
/// ```
/// use rollout::model::client::Prices;
///
/// let prices = Prices::parse("
///   small-model: {input: 0.5, output: 2, cached_input: 0.05}
///   'big-*': {input: 10, output: 30}
/// ")?;
/// assert_eq!(prices.get("small-model").unwrap().output, 2.0);
/// assert_eq!(prices.get("big-2").unwrap().input, 10.0);
/// assert!(prices.get("other").is_none());
/// # Ok::<_, rollout::model::client::PricesError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Prices {
    table: IndexMap<String, Price>,
    /// A pattern for each row of the table.
    patterns: GlobSet,
}

/// Why a table of prices is invalid.
#[derive(Debug, thiserror::Error)]
pub enum PricesError {
    /// The text is not a table.
    #[error(
        "prices must be a mapping, like `gpt-4.1-mini: {{input: 0.4, output: 1.6}}` in dollars per million tokens"
    )]
    Format(#[source] Box<serde_saphyr::Error>),
    /// A price is not an amount of money.
    #[error("invalid price of `{model}`: it must be a number of at least 0")]
    Price {
        /// The row.
        model: String,
    },
    /// A pattern is invalid.
    #[error("invalid pattern `{pattern}`; `*` matches any text")]
    Pattern {
        /// The row.
        pattern: String,
        /// What is wrong with it.
        #[source]
        source: globset::Error,
    },
}

impl Prices {
    /// The same price for every model.
    pub fn all(price: Price) -> Result<Self, PricesError> {
        Self::new([("*".to_owned(), price)])
    }

    /// A table of names or patterns with their prices.
    pub fn new(rows: impl IntoIterator<Item = (String, Price)>) -> Result<Self, PricesError> {
        let table: IndexMap<String, Price> = rows.into_iter().collect();
        let mut patterns = GlobSetBuilder::new();
        for (pattern, price) in &table {
            if !price.is_sound() {
                return Err(PricesError::Price { model: pattern.clone() });
            }
            let glob = GlobBuilder::new(pattern)
                .build()
                .map_err(|source| PricesError::Pattern { pattern: pattern.clone(), source })?;
            patterns.add(glob);
        }
        let bad = |source| PricesError::Pattern { pattern: "*".to_owned(), source };
        Ok(Self { table, patterns: patterns.build().map_err(bad)? })
    }

    /// Reads a table from YAML or JSON.
    pub fn parse(text: &str) -> Result<Self, PricesError> {
        let rows: IndexMap<String, Price> =
            serde_saphyr::from_str(text).map_err(|source| PricesError::Format(Box::new(source)))?;
        Self::new(rows)
    }

    /// These prices, and those of the other table for models that have none here.
    pub fn or(self, other: Self) -> Result<Self, PricesError> {
        let mut rows = self.table;
        for (model, price) in other.table {
            rows.entry(model).or_insert(price);
        }
        Self::new(rows)
    }

    /// The price of a model.
    pub fn get(&self, model: &str) -> Option<&Price> {
        if self.table.is_empty() {
            return None;
        }
        self.table.get(model).or_else(|| {
            let first = self.patterns.matches(model).into_iter().min()?;
            self.table.get_index(first).map(|(_, price)| price)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_token_has_its_price() {
        let usage = TokenUsage {
            prompt_tokens: 1_000_000,
            cached_tokens: 2_000_000,
            cache_write_tokens: 3_000_000,
            completion_tokens: 4_000_000,
            reasoning_tokens: 1_000_000,
            cost: None,
        };
        let plain = Price { input: 1.0, output: 10.0, cached_input: None, cache_write: None };
        assert_eq!(plain.cost(&usage), 1.0 + 2.0 + 3.0 + 40.0);
        let cached = Price { cached_input: Some(0.5), cache_write: Some(2.0), ..plain };
        assert_eq!(cached.cost(&usage), 1.0 + 1.0 + 6.0 + 40.0);
    }

    #[test]
    fn a_name_takes_precedence_over_patterns_and_an_earlier_pattern_over_a_later_one() {
        let prices = Prices::parse(
            "'openai/*': {input: 1, output: 1}\n'*': {input: 2, output: 2}\nopenai/x: {input: 3, output: 3}\n",
        )
        .unwrap();
        let input = |model| prices.get(model).map(|price| price.input);
        assert_eq!(input("openai/x"), Some(3.0));
        assert_eq!(input("openai/y"), Some(1.0));
        assert_eq!(input("meta/llama/3"), Some(2.0));
        assert!(Prices::default().get("openai/x").is_none());
    }

    #[test]
    fn json_is_accepted_too() {
        let prices = Prices::parse(r#"{"m": {"input": 0.4, "output": 1.6}}"#).unwrap();
        assert_eq!(prices.get("m").unwrap().output, 1.6);
    }

    #[test]
    fn invalid_prices_are_rejected() {
        for (text, message) in [
            ("m: {input: -1, output: 1}", "invalid price of `m`: it must be a number of at least 0"),
            ("m: {input: .inf, output: 1}", "invalid price of `m`: it must be a number of at least 0"),
            ("'a[': {input: 1, output: 1}", "invalid pattern `a[`; `*` matches any text"),
            (
                "m: 5",
                "prices must be a mapping, like `gpt-4.1-mini: {input: 0.4, output: 1.6}` in dollars per million tokens",
            ),
            (
                "m: {input: 1, ouput: 1}",
                "prices must be a mapping, like `gpt-4.1-mini: {input: 0.4, output: 1.6}` in dollars per million tokens",
            ),
        ] {
            assert_eq!(Prices::parse(text).unwrap_err().to_string(), message);
        }
    }
}
