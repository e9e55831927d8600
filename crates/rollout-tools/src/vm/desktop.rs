//! A desktop in an environment: a screen in memory, a window manager, a mouse and a keyboard.

use std::time::Duration;

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use rollout_env::{CommandRole, Environment, Exec, FileRead, Outcome, log::LogWriter};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{
    action::{Action, Screen},
    config::Wanted,
    xwd,
};
use crate::{
    environments::{end, failed},
    resource::{Call, ErrorCode, Params, Session, ToolError},
};

/// The number of the screen. It is unusual, so that on a shared network no other screen is reached by mistake.
const DISPLAY: &str = ":873";

/// The directory of the screen's memory file.
const SCREEN_DIR: &str = "/tmp/.rollout-screen";

/// Exit codes of the script: a program is missing, or the screen ended during its start.
const MISSING: i32 = 90;
const ENDED: i32 = 91;

/// Starts a screen, the first available window manager, and a program. They outlive the script.
const START: &str = r#"
for program in Xvfb xdotool; do
  command -v "$program" >/dev/null 2>&1 || { echo "$program" >&2; exit 90; }
done
dir=$1 size=$2
shift 2
mkdir -p "$dir" && : >"$dir/ready" || exit 92
Xvfb "$DISPLAY" -screen 0 "$size" -fbdir "$dir" -noreset -nolisten tcp -nolisten local -displayfd 3 \
  3>"$dir/ready" >"$dir/log" 2>&1 </dev/null &
screen=$!
until [ -s "$dir/ready" ]; do
  kill -0 "$screen" 2>/dev/null || { tail -n 5 "$dir/log" >&2; exit 91; }
  sleep 0.02
done
for manager in openbox fluxbox xfwm4 icewm jwm matchbox-window-manager twm; do
  if command -v "$manager" >/dev/null 2>&1; then
    "$manager" >/dev/null 2>&1 </dev/null &
    # Windows that are there before it have no frame and no keyboard for a while. Only twm does not say when it is ready.
    tries=0
    until [ "$manager" = twm ] || [ $tries -ge 250 ] || xdotool get_num_desktops >/dev/null 2>&1; do
      tries=$((tries + 1))
      sleep 0.02
    done
    break
  fi
done
if [ $# -gt 0 ]; then
  command -v "$1" >/dev/null 2>&1 || { echo "$1" >&2; exit 90; }
  "$@" >/dev/null 2>&1 </dev/null &
fi
exit 0
"#;

/// A session: one desktop.
pub(super) struct Desktop {
    environment: Box<dyn Environment>,
    screen: Screen,
    /// A lock, because there is one mouse and one keyboard.
    hands: Mutex<()>,
}

impl Desktop {
    /// Starts a desktop in a running environment.
    pub(super) async fn start(
        environment: Box<dyn Environment>,
        wanted: &Wanted,
        limit: Duration,
    ) -> Result<Self, ToolError> {
        let screen = Screen { width: wanted.width, height: wanted.height };
        let desktop = Self { environment, screen, hands: Mutex::new(()) };
        match desktop.set_up(wanted, limit).await {
            Ok(()) => Ok(desktop),
            Err(error) => {
                end(desktop.environment).await;
                Err(error)
            }
        }
    }

    async fn set_up(&self, wanted: &Wanted, limit: Duration) -> Result<(), ToolError> {
        let size = format!("{}x{}x24", wanted.width, wanted.height);
        let mut argv = vec!["sh", "-c", START, "sh", SCREEN_DIR, &size];
        argv.extend(wanted.start.iter().map(String::as_str));
        let (outcome, said) = self.run(&argv, limit).await?;
        match outcome {
            Outcome::Code(0) => Ok(()),
            Outcome::Code(MISSING) => Err(missing(said.trim(), &wanted.image)),
            Outcome::Code(ENDED) => Err(ToolError::new(
                ErrorCode::ResourceFailed,
                format!("Xvfb does not start: {}", said.trim()),
            )),
            Outcome::TimedOut => {
                let message = format!("the desktop did not start within {} seconds", limit.as_secs_f64());
                Err(ToolError::new(ErrorCode::ResourceFailed, message))
            }
            outcome => {
                let message = format!("the desktop does not start ({outcome:?}): {}", said.trim());
                Err(ToolError::new(ErrorCode::ResourceFailed, message))
            }
        }
    }

    /// Runs a command on the desktop, and returns the end of its standard error.
    async fn run(&self, argv: &[&str], deadline: Duration) -> Result<(Outcome, String), ToolError> {
        let stderr = LogWriter::discard();
        let said = stderr.tail();
        let env = [("DISPLAY", DISPLAY), ("LANG", "C.UTF-8"), ("LC_ALL", "C.UTF-8")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let command = Exec {
            role: CommandRole::Agent,
            argv,
            env: &env,
            deadline: Some(deadline),
            stdout: LogWriter::discard(),
            stderr,
        };
        let exit = self.environment.exec(command).await.map_err(|error| failed(&error))?;
        Ok((exit.outcome, said.last_lines(5)))
    }

    async fn input(&self, runs: &[Vec<String>], done: String, limit: Duration) -> Result<Value, ToolError> {
        let _turn = self.hands.lock().await;
        for arguments in runs {
            let argv: Vec<&str> =
                std::iter::once("xdotool").chain(arguments.iter().map(String::as_str)).collect();
            let (outcome, said) = self.run(&argv, limit).await?;
            if said.contains("No such key name") {
                let message = format!("{}; write keys as in Return, ctrl+c or F5", said.trim());
                return Err(ToolError::new(ErrorCode::InvalidInput, message));
            }
            if outcome == Outcome::TimedOut {
                let message = format!("the desktop did not react within {} seconds", limit.as_secs_f64());
                return Err(ToolError::new(ErrorCode::Timeout, message));
            }
            if outcome != Outcome::Code(0) {
                let message = format!("the desktop does not react ({outcome:?}): {}", said.trim());
                return Err(ToolError::new(ErrorCode::ExecutionError, message));
            }
        }
        Ok(json!({"result": done}))
    }

    async fn screenshot(&self) -> Result<Value, ToolError> {
        let path = format!("{SCREEN_DIR}/Xvfb_screen0");
        let read = self.environment.read_file(&path, xwd::max_bytes(self.screen)).await;
        let FileRead::Content(dump) = read.map_err(|error| failed(&error))? else {
            return Err(ToolError::new(
                ErrorCode::ExecutionError,
                "the memory file of the screen is missing",
            ));
        };
        let screen = self.screen;
        let picture = tokio::task::spawn_blocking(move || {
            xwd::to_png(&dump, screen).map(|png| BASE64_STANDARD.encode(png))
        });
        let picture =
            picture.await.map_err(|error| ToolError::new(ErrorCode::Unexpected, error.to_string()))?;
        let picture =
            picture.map_err(|error| ToolError::new(ErrorCode::ExecutionError, error.to_string()))?;
        Ok(json!({
            "result": format!("the screen, {} pixels wide and {} high", screen.width, screen.height),
            "image": picture, "format": "png", "width": screen.width, "height": screen.height,
        }))
    }
}

#[async_trait]
impl Session for Desktop {
    async fn call(&self, tool: &str, params: Params, call: &Call) -> Result<Value, ToolError> {
        match Action::new(tool, &params, self.screen)? {
            Action::Screenshot => self.screenshot().await,
            Action::Wait(time) => {
                tokio::time::sleep(time).await;
                Ok(json!({"result": format!("waited for {} seconds", time.as_secs_f64())}))
            }
            Action::Input { runs, done } => self.input(&runs, done, call.timeout).await,
        }
    }

    async fn close(self: Box<Self>) {
        end(self.environment).await;
    }
}

fn missing(program: &str, image: &str) -> ToolError {
    let package = match program {
        "Xvfb" => "xvfb",
        other => other,
    };
    let more = if matches!(program, "Xvfb" | "xdotool") {
        "; a desktop needs xvfb, xdotool and openbox"
    } else {
        ""
    };
    let message = format!(
        "{program} is not installed in the image {image:?}; install it (on Debian and Ubuntu: apt install \
         {package}){more}"
    );
    ToolError::new(ErrorCode::DependencyMissing, message)
}
