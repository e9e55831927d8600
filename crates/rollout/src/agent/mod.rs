//! Who attempts a task: the oracle, the nop agent, shell scripts, models with tools, and agents that others made.

pub(crate) mod calls;
pub(crate) mod conversation;
pub(crate) mod own_log;
pub(crate) mod preset;
pub(crate) mod trajectory;

use crate::{
    config::{AgentKind, McpFormat, PresetConfig},
    task::Task,
};

/// Where an agent's scripts are put inside the environment.
pub(crate) const INSTALL_SCRIPT: &str = "/tmp/rollout-install.sh";
/// Where the script that attempts the task is put.
pub(crate) const EXECUTE_SCRIPT: &str = "/tmp/rollout-execute.sh";
/// Where the oracle finds the task's solution.
pub(crate) const ORACLE_DIR: &str = "/oracle";
/// The name under which existing task sets look for it.
pub(crate) const SOLUTION_LINK: &str = "/solution";

/// Where an agent finds the MCP servers of its task.
pub(crate) const MCP_SERVERS: &str = "/tmp/rollout-mcp-servers";

/// Where the files of an agent's own log are put together.
pub(crate) const OWN_LOG: &str = "/tmp/rollout-own-log";

/// Made when the agent's script starts: what is older belongs to an earlier step.
pub(crate) const BEGAN: &str = "/tmp/rollout-agent-began";

/// Why an agent cannot attempt a task at all.
pub(crate) fn objection(agent: &AgentKind, task: &Task) -> Option<String> {
    match agent {
        AgentKind::Oracle if !task.has_solution => Some(format!(
            "the oracle needs solution/solve.sh, which is missing in {}: write it, or remove the oracle from this job",
            task.dir.display()
        )),
        // Agents of these kinds have no use for an earlier conversation, MCP servers or skills.
        AgentKind::Oracle | AgentKind::Nop => None,
        _ if task.is_harbor && task.files.trajectory.is_some() => {
            task.files.trajectory.as_ref().map(|path| {
                format!(
                    "`trajectory.json` is not supported: the agent cannot continue the conversation in {}; remove the \
                     file, or leave the task out of this job",
                    path.display()
                )
            })
        }
        AgentKind::Preset(agent) => {
            let PresetConfig { name, mcp, skills, .. } = &agent.preset;
            unsupported(task, &format!("the preset of {name}"), *mcp, skills.is_some())
        }
        AgentKind::Script { .. } => unsupported(task, "an agent of scripts", None, false),
        AgentKind::Model(_) => unsupported(task, "a model", None, false),
    }
}

/// Which of the extensions that a task gives to its agent this agent cannot use.
fn unsupported(task: &Task, agent: &str, mcp: Option<McpFormat>, skills: bool) -> Option<String> {
    let config = &task.config;
    if skills || config.skills_dir.is_none() {
        let servers = &config.mcp_servers;
        let Some(mcp) = mcp else {
            return (!servers.is_empty()).then(|| {
                format!("`environment.mcp_servers` of task.toml: {agent} does not support MCP servers")
            });
        };
        let other = servers.iter().find(|server| !mcp.supports(&server.endpoint))?;
        return Some(format!(
            "`environment.mcp_servers` of task.toml: {agent} does not support the transport `{}` of {}",
            other.endpoint.transport(),
            other.name
        ));
    }
    Some(format!("`environment.skills_dir` of task.toml: {agent} does not support skills"))
}
