//! Who attempts a task: the oracle, the nop agent, shell scripts, models with tools, and agents that others made.

pub(crate) mod calls;
pub(crate) mod conversation;
pub(crate) mod preset;
pub(crate) mod trajectory;

use crate::{config::AgentKind, task::Task};

/// Where an agent's scripts are put inside the environment.
pub(crate) const INSTALL_SCRIPT: &str = "/tmp/rollout-install.sh";
/// Where the script that attempts the task is put.
pub(crate) const EXECUTE_SCRIPT: &str = "/tmp/rollout-execute.sh";
/// Where the oracle finds the task's solution.
pub(crate) const ORACLE_DIR: &str = "/oracle";
/// The name under which existing task sets look for it.
pub(crate) const SOLUTION_LINK: &str = "/solution";

/// Why an agent cannot attempt a task at all.
pub(crate) fn objection(agent: &AgentKind, task: &Task) -> Option<String> {
    match agent {
        AgentKind::Oracle if !task.has_solution => Some(format!(
            "the oracle runs solution/solve.sh, and {} has none: write one, or leave the oracle out of this job",
            task.dir.display()
        )),
        // Agents of these kinds have no use for an earlier conversation.
        AgentKind::Oracle | AgentKind::Nop => None,
        _ if task.is_harbor && task.files.trajectory => Some(format!(
            "`trajectory.json` is not supported: the agent cannot continue the conversation in {}",
            task.dir.join("trajectory.json").display()
        )),
        _ => None,
    }
}
