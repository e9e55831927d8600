//! The part of `rollout clean` for a Kubernetes cluster.

use std::io::Write as _;

use rollout::environment::kubernetes::{Cluster, ClusterChoice, ClusterError, ClusterPodState};

use super::{Fate, Row, render};
use crate::{
    args::Clean,
    engine,
    exit::{Failure, hinted},
    report::text::{ODD, count, paint},
};

/// Deletes pods of ended runs in a namespace. A cluster that the user has not chosen is only reported if it does not
/// answer.
pub(super) async fn clean(args: &Clean) -> Result<(), Failure> {
    let access = engine::clusters();
    let choice = args.cluster.choice();
    let cleaned = async {
        let cluster = Cluster::connect(&access, &choice).await?;
        let rows = rows(args, &cluster).await?;
        Ok::<_, ClusterError>((cluster, rows))
    };
    match cleaned.await {
        Ok((cluster, rows)) => {
            let place = format!("kubernetes {}, namespace {}", cluster.version(), cluster.namespace());
            crate::command::print(&format!("\n{}", render(&place, &rows, args.dry_run)))?;
        }
        Err(error) if choice != ClusterChoice::default() => return Err(hinted(ClusterError::hint)(error)),
        Err(error) if error.is_absence() => {}
        Err(error) => writeln!(anstream::stderr().lock(), "{} {error}", paint(ODD, "warning:"))?,
    }
    Ok(())
}

async fn rows(args: &Clean, cluster: &Cluster) -> Result<Vec<Row>, ClusterError> {
    let pods = cluster.rollout_pods().await?;
    let ended = cluster.sweep(args.dry_run).await?;
    let of = |state| pods.iter().filter(move |pod| pod.state == state);
    let kept: Vec<_> = of(ClusterPodState::Kept).collect();
    if args.preserved && !args.dry_run {
        for pod in &kept {
            cluster.remove_pod(&pod.name).await?;
        }
    }
    let row = |fate, number: usize, what| Row { fate, what, some: number > 0, size: None };
    let running = of(ClusterPodState::Running).count();
    Ok(vec![
        row(Fate::Goes, ended.len(), count(ended.len() as u64, "pod") + " of ended runs"),
        row(Fate::Stays, running, count(running as u64, "pod") + " of running jobs"),
        row(Fate::by("--preserved", args.preserved), kept.len(), count(kept.len() as u64, "preserved pod")),
    ])
}
