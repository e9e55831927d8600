//! Arguments of commands that look at a Kubernetes cluster.

use clap::Args;
use rollout::environment::kubernetes::ClusterChoice;

/// The cluster and the namespace that a command looks at.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Look at the Kubernetes cluster of this context instead of the current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Look at this Kubernetes namespace instead of the namespace of the context
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
}

impl ClusterArgs {
    /// The cluster that was chosen.
    pub(crate) fn choice(&self) -> ClusterChoice {
        ClusterChoice { context: self.context.clone(), namespace: self.namespace.clone() }
    }
}
