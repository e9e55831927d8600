//! Arguments of commands that look at a Kubernetes cluster.

use clap::Args;
use rollout::environment::kubernetes::ClusterChoice;

/// The cluster and the namespace that a command looks at.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Use this context of the kubeconfig file instead of the current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Use this Kubernetes namespace instead of the namespace of the context
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
}

impl ClusterArgs {
    /// The cluster that was chosen.
    pub(crate) fn choice(&self) -> ClusterChoice {
        ClusterChoice { context: self.context.clone(), namespace: self.namespace.clone() }
    }
}
