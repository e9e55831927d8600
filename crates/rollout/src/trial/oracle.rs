//! The oracle by the rules of Harbor: the solution is executed as `/solution/solve.sh`, and its exit code is no error.

use std::{fs::File, io::Read as _, path::Path};

use super::{
    calls::{bounded, required},
    context::{TrialContext, variables},
    failure::Failure,
    script::{self, HARBOR_ORACLE, LeftRunning},
};
use crate::agent;
use rollout_core::event::Phase;
use rollout_env::{CopyMode, Environment, blocking::blocking};

/// How much of each stream of the solution's output the tests can see.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;

/// The file with the exit code of the solution.
const EXIT_CODE: &str = "/logs/agent/exit-code.txt";

/// Runs the solution. What it printed is in `/logs/agent/oracle.txt` for the tests.
pub(super) async fn run_like_harbor<'e>(
    context: &TrialContext<'_>,
    environment: &'e dyn Environment,
    left: &mut Option<LeftRunning<'e>>,
    notes: &mut Vec<String>,
) -> Result<(), Failure> {
    let phase = Phase::Execute;
    let solution = &context.step.solution;
    required(phase, environment.copy_to(solution, agent::SOLUTION_LINK, CopyMode::Replace)).await?;
    required(phase, environment.link(agent::SOLUTION_LINK, agent::ORACLE_DIR)).await?;
    HARBOR_ORACLE.make_executable(environment, solution.join("solve.sh")).await?;
    let mut env = context.agent_variables();
    env.push(("DEBIAN_FRONTEND".to_owned(), "noninteractive".to_owned()));
    env.extend(variables(&context.trial.env.solution));
    let end = script::run_agent(context, environment, &HARBOR_ORACLE, env, left).await?;
    if let Err(error) = show_output(context, environment).await {
        notes.push(format!("cannot write /logs/agent/oracle.txt: {error}"));
    }
    match end.code() {
        Some(code) => {
            if code != 0 {
                notes.push(format!("the solution exited with code {code}"));
            }
            let code = code.to_string();
            if let Err(error) = bounded(environment.write_file(EXIT_CODE, code.as_bytes())).await {
                notes.push(format!("cannot write {EXIT_CODE}: {error}"));
            }
            Ok(())
        }
        None => end.check(),
    }
}

async fn show_output(context: &TrialContext<'_>, environment: &dyn Environment) -> Result<(), String> {
    let dir = context.step.dir.command();
    let read = blocking(move || {
        let mut output = Vec::new();
        for stream in ["stdout.txt", "stderr.txt"] {
            append(&dir.join(stream), &mut output)?;
        }
        Ok(output)
    });
    let output = read.await.map_err(|error| error.to_string())?;
    bounded(environment.write_file("/logs/agent/oracle.txt", &output))
        .await
        .map_err(|error| error.to_string())
}

fn append(path: &Path, output: &mut Vec<u8>) -> std::io::Result<()> {
    File::open(path)?.take(MAX_OUTPUT_BYTES).read_to_end(output).map(drop)
}
