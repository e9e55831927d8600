//! The numbers of requests.

use std::{collections::BTreeMap, fmt};

/// The number of requests by verb and kind of path, such as `create pods` or `connect pods/attach`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApiCalls(BTreeMap<String, u64>);

impl ApiCalls {
    pub(super) fn count(&mut self, call: &str) {
        *self.0.entry(call.to_owned()).or_default() += 1;
    }

    /// The number of requests of a verb and kind, such as `create pods`.
    pub fn of(&self, call: &str) -> u64 {
        self.0.get(call).copied().unwrap_or(0)
    }

    /// The number of all requests.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// All verbs and kinds with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(call, number)| (call.as_str(), *number))
    }
}

/// One line for each verb and kind.
impl fmt::Display for ApiCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|(call, number)| writeln!(f, "{number:>7}  {call}"))
    }
}
