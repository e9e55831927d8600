//! The part of `rollout clean` for cloud sandboxes.

use rollout::environment::remote::{
    CloudAccount, CloudConnectError, CloudLeftover, CloudLeftoverState, accounts,
};

use super::{Fate, Row, render, warn};
use crate::{args::Clean, command::load::place, exit::Failure};

/// What was found in an account.
struct Cleaned {
    rows: Vec<Row>,
    /// The sandboxes of other machines, which are only listed.
    elsewhere: Vec<CloudLeftover>,
    /// Sandboxes that could not be deleted, with the reasons.
    left: Vec<(String, String)>,
}

/// Deletes sandboxes of ended runs of this machine in all accounts. Whatever cannot be done in one account is reported,
/// and the others are cleaned. Returns whether everything was done.
pub(super) async fn clean(args: &Clean) -> Result<bool, Failure> {
    let accounts = accounts(&place()?).await;
    if accounts.is_empty() {
        crate::command::print("\nthere are no credentials for cloud sandboxes on this machine")?;
    }
    let mut is_clean = true;
    for account in accounts {
        let cleaned = async {
            let account = account?;
            let cleaned = clean_account(args, &account).await?;
            Ok::<_, CloudConnectError>((account, cleaned))
        };
        match cleaned.await {
            Ok((account, Cleaned { rows, elsewhere, left })) => {
                let place = format!("{}, {}", account.name(), account.description());
                crate::command::print(&format!("\n{}", render(&place, &rows, args.dry_run)))?;
                for sandbox in elsewhere {
                    let CloudLeftover { id, job, trial, .. } = sandbox;
                    crate::command::print(&format!("      {id}  {job} {trial}"))?;
                }
                is_clean &= left.is_empty();
                for (id, reason) in left {
                    warn(&format!("cannot delete the sandbox {id} at {}: {reason}", account.name()))?;
                }
            }
            Err(error) => {
                is_clean = false;
                warn(&error.to_string())?;
            }
        }
    }
    Ok(is_clean)
}

/// Deletes what is left in an account.
async fn clean_account(args: &Clean, account: &CloudAccount) -> Result<Cleaned, CloudConnectError> {
    let sandboxes = account.sandboxes().await?;
    let of = |state| sandboxes.iter().filter(move |sandbox| sandbox.state == state);
    let (ended, kept) = (of(CloudLeftoverState::Left), of(CloudLeftoverState::Kept));
    let mut left = Vec::new();
    if !args.dry_run {
        for sandbox in ended.clone().chain(kept.clone().filter(|_| args.preserved)) {
            if let Err(reason) = account.delete(&sandbox.id).await {
                left.push((sandbox.id.clone(), reason));
            }
        }
    }
    let is_left = |sandbox: &&CloudLeftover| left.iter().any(|(id, _)| *id == sandbox.id);
    let row = |fate, number: usize, words: &str| Row {
        fate,
        what: format!("{number} {}{words}", if number == 1 { "sandbox" } else { "sandboxes" }),
        some: number > 0,
        size: None,
    };
    let preserved = Fate::by("--preserved", args.preserved);
    let elsewhere: Vec<CloudLeftover> = of(CloudLeftoverState::Elsewhere).cloned().collect();
    let mut rows = vec![
        row(Fate::Goes, ended.filter(|sandbox| !is_left(sandbox)).count(), " of ended runs"),
        row(Fate::Stays, of(CloudLeftoverState::Used).count(), " of running jobs"),
        row(preserved, kept.filter(|sandbox| !is_left(sandbox)).count(), ", preserved"),
        row(Fate::Stays, elsewhere.len(), " of other machines"),
    ];
    if !left.is_empty() {
        rows.push(row(Fate::Stays, left.len(), " that could not be deleted"));
    }
    Ok(Cleaned { rows, elsewhere, left })
}
