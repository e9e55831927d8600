//! The part of `rollout clean` for cloud sandboxes.

use std::io::Write as _;

use rollout::environment::remote::{
    CloudAccount, CloudConnectError, CloudLeftover, CloudLeftoverState, accounts,
};

use super::{Fate, Row, render};
use crate::{
    args::Clean,
    command::load::place,
    exit::Failure,
    report::text::{ODD, paint},
};

/// Deletes sandboxes of ended runs of this machine in all accounts. An account that cannot be used is only reported.
pub(super) async fn clean(args: &Clean) -> Result<(), Failure> {
    let accounts = accounts(&place()?).await;
    if accounts.is_empty() {
        crate::command::print("\nthere are no credentials for cloud sandboxes on this machine")?;
    }
    for account in accounts {
        let cleaned = async {
            let account = account?;
            let rows = rows(args, &account).await?;
            Ok::<_, CloudConnectError>((account, rows))
        };
        match cleaned.await {
            Ok((account, (rows, elsewhere))) => {
                let place = format!("{}, {}", account.name(), account.description());
                crate::command::print(&format!("\n{}", render(&place, &rows, args.dry_run)))?;
                for sandbox in elsewhere {
                    let CloudLeftover { id, job, trial, .. } = sandbox;
                    crate::command::print(&format!("      {id}  {job} {trial}"))?;
                }
            }
            Err(error) => writeln!(anstream::stderr().lock(), "{} {error}", paint(ODD, "warning:"))?,
        }
    }
    Ok(())
}

/// The rows of an account, and the sandboxes of other machines, which are only listed.
async fn rows(
    args: &Clean,
    account: &CloudAccount,
) -> Result<(Vec<Row>, Vec<CloudLeftover>), CloudConnectError> {
    let sandboxes = account.sandboxes().await?;
    let of = |state| sandboxes.iter().filter(move |sandbox| sandbox.state == state);
    let (left, kept) = (of(CloudLeftoverState::Left), of(CloudLeftoverState::Kept));
    if !args.dry_run {
        for sandbox in left.clone().chain(kept.clone().filter(|_| args.preserved)) {
            account.delete(&sandbox.id).await?;
        }
    }
    let row = |fate, number: usize, words: &str| Row {
        fate,
        what: format!("{number} {}{words}", if number == 1 { "sandbox" } else { "sandboxes" }),
        some: number > 0,
        size: None,
    };
    let preserved = Fate::by("--preserved", args.preserved);
    let elsewhere: Vec<CloudLeftover> = of(CloudLeftoverState::Elsewhere).cloned().collect();
    let rows = vec![
        row(Fate::Goes, left.count(), " of ended runs"),
        row(Fate::Stays, of(CloudLeftoverState::Used).count(), " of running jobs"),
        row(preserved, kept.count(), ", preserved"),
        row(Fate::Stays, elsewhere.len(), " of other machines"),
    ];
    Ok((rows, elsewhere))
}
