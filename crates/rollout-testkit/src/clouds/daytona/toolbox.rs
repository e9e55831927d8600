//! The toolbox in sandboxes of the fake: commands and sessions. Each command runs in a shell of its own.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::{io::AsyncReadExt as _, sync::watch};

use super::{
    api::{Call, Reply},
    state::{CommandEnd, DaytonaState, SessionCommand},
};
use crate::{
    clouds::machine::CloudMachine,
    piped::{Piped, exit_code},
};

/// The time of a command that names none.
const USUAL_TIMEOUT: u64 = 10;

/// An error as the toolbox writes it.
fn failure(status: u16, message: &str) -> Reply {
    (status, json!({"statusCode": status, "message": message, "source": "DAYTONA_DAEMON"}))
}

/// Answers a request to the toolbox of a sandbox.
pub(super) async fn handle(state: &Arc<DaytonaState>, id: &str, path: &[&str], call: &Call) -> Reply {
    let Some(machine) = state.all().get(id).and_then(|sandbox| sandbox.machine.clone()) else {
        return failure(400, "failed to resolve container IP: is the Sandbox started?");
    };
    match (call.method.as_str(), path) {
        ("POST", ["process", "execute"]) => execute(&machine, &call.body).await,
        ("POST", ["process", "session"]) => {
            let session = call.body["sessionId"].as_str().unwrap_or_default().to_owned();
            let mut all = state.all();
            let Some(sandbox) = all.get_mut(id) else { return failure(404, "sandbox not found") };
            if sandbox.sessions.contains_key(&session) {
                return failure(409, "session already exists");
            }
            sandbox.sessions.insert(session, Vec::new());
            (201, Value::Null)
        }
        ("GET", ["process", "session", session]) => match commands(state, id, session) {
            Some(commands) => {
                let shown: Vec<Value> = commands.iter().map(|command| command.json()).collect();
                (200, json!({"sessionId": session, "commands": shown}))
            }
            None => failure(404, "session not found"),
        },
        ("DELETE", ["process", "session", session]) => {
            let removed = state.all().get_mut(id).and_then(|sandbox| sandbox.sessions.remove(*session));
            removed.map_or_else(|| failure(404, "session not found"), |_| (204, Value::Null))
        }
        ("POST", ["process", "session", session, "exec"]) => {
            run_in_session(state, id, session, &machine, &call.body).await
        }
        ("GET", ["process", "session", session, "command", command]) => {
            let commands = commands(state, id, session).unwrap_or_default();
            match commands.iter().find(|found| found.id == *command) {
                Some(found) => (200, found.json()),
                None => failure(404, "command not found"),
            }
        }
        _ => failure(404, "not found"),
    }
}

fn commands(state: &DaytonaState, id: &str, session: &str) -> Option<Vec<Arc<SessionCommand>>> {
    state.all().get(id)?.sessions.get(session).cloned()
}

/// Starts the first shell that the image has, as the user of the image.
async fn shell(
    machine: &CloudMachine,
    command: &str,
    env: &[(String, String)],
    cwd: Option<&str>,
) -> Result<Piped, Reply> {
    let mut refusal = failure(400, "no shell resolved");
    for program in ["bash", "sh"] {
        let argv = [program, "-c", command].map(str::to_owned).to_vec();
        match machine.exec(argv, env, cwd, None, false).await {
            Ok(piped) => return Ok(piped),
            Err((_, message)) => refusal = failure(400, &message),
        }
    }
    Err(refusal)
}

/// Waits for the end of a process.
async fn end(piped: Piped) -> CommandEnd {
    let Piped { mut process, mut stdout, mut stderr, .. } = piped;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    // A pipe ends with the sandbox at the latest.
    let _ = tokio::join!(stdout.read_to_end(&mut out), stderr.read_to_end(&mut err));
    let code = process.wait().await.map_or(137, |exit| exit_code(exit.status));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    CommandEnd { code, stdout: text(&out), stderr: text(&err) }
}

async fn execute(machine: &CloudMachine, body: &Value) -> Reply {
    let Some(command) = body["command"].as_str() else { return failure(400, "command is required") };
    let env: Vec<(String, String)> = body["envs"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
        .collect();
    let command = format!("exec 2>&1; {command}");
    let piped = match shell(machine, &command, &env, body["cwd"].as_str()).await {
        Ok(piped) => piped,
        Err(refusal) => return refusal,
    };
    let limit =
        Duration::from_secs(body["timeout"].as_u64().filter(|time| *time > 0).unwrap_or(USUAL_TIMEOUT));
    match tokio::time::timeout(limit, end(piped)).await {
        Ok(end) => (200, json!({"exitCode": end.code, "result": end.stdout})),
        Err(_) => failure(408, "command execution timeout"),
    }
}

async fn run_in_session(
    state: &Arc<DaytonaState>,
    id: &str,
    session: &str,
    machine: &CloudMachine,
    body: &Value,
) -> Reply {
    let text = body["command"].as_str().unwrap_or_default();
    if text.trim().is_empty() {
        return failure(400, "command cannot be empty");
    }
    let command = Arc::new(SessionCommand {
        id: state.new_id(),
        command: text.to_owned(),
        end: watch::Sender::new(None),
    });
    match state.all().get_mut(id).and_then(|sandbox| sandbox.sessions.get_mut(session)) {
        Some(commands) => commands.push(Arc::clone(&command)),
        None => return failure(404, "session not found"),
    }
    let piped = match shell(machine, text, &[], None).await {
        Ok(piped) => piped,
        Err(refusal) => return refusal,
    };
    let running = Arc::clone(&command);
    tokio::spawn(async move {
        let ended = end(piped).await;
        running.end.send_replace(Some(ended));
    });
    if body["runAsync"] == true || body["async"] == true {
        return (202, json!({"cmdId": command.id}));
    }
    let mut ended = command.end.subscribe();
    match ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone()) {
        Some(CommandEnd { code, stdout, stderr }) => {
            let output = format!("{stdout}{stderr}");
            let shown = json!({"cmdId": command.id, "exitCode": code, "output": output, "stdout": stdout, "stderr": stderr});
            (200, shown)
        }
        None => failure(400, "session cancelled"),
    }
}
