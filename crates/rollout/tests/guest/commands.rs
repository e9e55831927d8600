//! Commands: their output, their ends and what they leave behind.

use std::time::Duration;

use rollout::environment::{EnvironmentError, Exec, Exit, Outcome};

use super::support::{Container, until};

const SOON: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_command_tells_its_output_and_its_code() {
    let container = Container::start().await;
    let ran = container.bash("echo out; echo err >&2; exit 7").await;
    assert_eq!(ran.exit, Exit { outcome: Outcome::Code(7), oom_killed: false });
    assert_eq!((ran.text(), &ran.stderr[..]), ("out\n", &b"err\n"[..]));
    container.stop().await;
}

#[tokio::test]
async fn a_signal_is_told_from_a_code() {
    let container = Container::start().await;
    assert_eq!(container.bash("kill -TERM $$").await.exit.outcome, Outcome::Signal(15));
    assert_eq!(container.bash("exit 143").await.exit.outcome, Outcome::Code(143));
}
