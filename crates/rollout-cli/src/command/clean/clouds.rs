//! The part of `rollout clean` for cloud sandboxes.

use rollout::environment::remote::{
    CloudAccount, CloudConnectError, CloudLeftover, CloudLeftoverState, accounts,
};

use super::{Fate, Row, render, warn};
use crate::{args::Clean, command::load::place, exit::Failure};

/// What was found in an account.
struct Cleaned {
    rows: Vec<Row>,
    /// The sandboxes of other machines, which are listed with their trials.
    elsewhere: Vec<CloudLeftover>,
    /// Sandboxes that could not be deleted, with the reasons.
    left: Vec<(String, String)>,
}

/// Deletes sandboxes in all accounts: those of ended runs of this machine, and others by flags. Whatever cannot be done in one account is reported,
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
    let mut left = Vec::new();
    if !args.dry_run {
        for sandbox in sandboxes.iter().filter(|sandbox| is_deleted(args, sandbox.state)) {
            if let Err(reason) = account.delete(&sandbox.id).await {
                left.push((sandbox.id.clone(), reason));
            }
        }
    }
    let is_left = |sandbox: &&CloudLeftover| left.iter().any(|(id, _)| *id == sandbox.id);
    let count = |state| of(state).filter(|sandbox| !is_left(sandbox)).count();
    let row = |fate, number: usize, words: &str| Row {
        fate,
        what: format!("{number} {}{words}", if number == 1 { "sandbox" } else { "sandboxes" }),
        some: number > 0,
        size: None,
    };
    let preserved = Fate::by("--preserved", args.preserved);
    let others = Fate::by("--other-machines", args.other_machines);
    let mut rows = vec![
        row(Fate::Goes, count(CloudLeftoverState::Left), " of ended runs"),
        row(Fate::Stays, of(CloudLeftoverState::Used).count(), " of running jobs"),
        row(preserved, count(CloudLeftoverState::Kept), ", preserved"),
        row(others, count(CloudLeftoverState::Elsewhere), " of other machines"),
    ];
    if !left.is_empty() {
        rows.push(row(Fate::Stays, left.len(), " that could not be deleted"));
    }
    let elsewhere = of(CloudLeftoverState::Elsewhere).cloned().collect();
    Ok(Cleaned { rows, elsewhere, left })
}

fn is_deleted(args: &Clean, state: CloudLeftoverState) -> bool {
    match state {
        CloudLeftoverState::Left => true,
        CloudLeftoverState::Kept => args.preserved,
        CloudLeftoverState::Elsewhere => args.other_machines,
        CloudLeftoverState::Used => false,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Clean,
    }

    #[test]
    fn sandboxes_of_running_jobs_stay_and_those_of_other_machines_need_a_flag() {
        use CloudLeftoverState::{Elsewhere, Kept, Left, Used};
        for (flags, deleted) in [
            (&["--all-providers"][..], &[Left][..]),
            (&["--all-providers", "--preserved"], &[Left, Kept]),
            (&["--all-providers", "--other-machines"], &[Left, Elsewhere]),
        ] {
            let Command { args } = Command::parse_from(["clean"].iter().chain(flags));
            for state in [Used, Left, Elsewhere, Kept] {
                assert_eq!(is_deleted(&args, state), deleted.contains(&state), "{flags:?} {state:?}");
            }
        }
        assert!(Command::try_parse_from(["clean", "--other-machines"]).is_err());
    }
}
