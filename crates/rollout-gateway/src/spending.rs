//! What was used of a budget.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::config::Budget;

/// A budget, and what was used of it.
#[derive(Debug)]
pub(crate) struct Spending {
    /// Names the owner of the budget in messages.
    owner: &'static str,
    budget: Budget,
    spent: Mutex<Spent>,
    /// Cancelled when a call is refused.
    exhausted: CancellationToken,
}

#[derive(Debug, Default, Clone, Copy)]
struct Spent {
    tokens: u64,
    dollars: f64,
    calls: u64,
}

impl Spending {
    pub(crate) fn new(owner: &'static str, budget: Budget) -> Self {
        Self { owner, budget, spent: Mutex::default(), exhausted: CancellationToken::new() }
    }

    /// Counts a call that begins; or says why no further call is allowed.
    pub(crate) fn admit(&self) -> Result<(), String> {
        let mut spent = self.lock();
        let Spent { tokens, dollars, calls } = *spent;
        let over = match self.budget {
            Budget { calls: Some(most), .. } if calls >= most => format!("{most} calls"),
            Budget { tokens: Some(most), .. } if tokens >= most => format!("{most} tokens"),
            Budget { dollars: Some(most), .. } if dollars >= most => format!("${most}"),
            Budget { .. } => {
                spent.calls += 1;
                return Ok(());
            }
        };
        drop(spent);
        self.exhausted.cancel();
        Err(format!("the budget of this {} is used up: {over}", self.owner))
    }

    /// Counts what a call used.
    pub(crate) fn charge(&self, tokens: u64, dollars: f64) {
        let mut spent = self.lock();
        spent.tokens = spent.tokens.saturating_add(tokens);
        spent.dollars += dollars;
    }

    /// Resolves when a call was refused.
    pub(crate) async fn exhausted(&self) {
        self.exhausted.cancelled().await;
    }

    fn lock(&self) -> MutexGuard<'_, Spent> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
