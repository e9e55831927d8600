//! Prices of well-known models, as data with a date.

use rollout_model::client::Prices;

/// When the prices of [`known_prices`] were looked up.
pub const PRICES_DATE: &str = "2026-11-16";

/// The public prices of well-known models on [`PRICES_DATE`], in US dollars per million tokens. Batches, discounts
/// and surcharges for long prompts are not part of them.
pub fn known_prices() -> Prices {
    Prices::parse(include_str!("prices.yaml")).expect("a test parses the table")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_can_be_read_and_has_no_price_for_unknown_models() {
        let prices = known_prices();
        assert!(prices.get("claude-sonnet-4-5").is_some());
        assert!(prices.get("a-model-that-does-not-exist").is_none());
    }
}
