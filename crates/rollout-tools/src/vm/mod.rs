//! Desktops: a screen, a mouse and a keyboard, in one environment per session.

mod action;
mod config;
mod desktop;
mod key;
mod xwd;

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use rollout_env::HostPaths;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

pub use config::VmConfig;

use self::desktop::Desktop;
use crate::{
    environments::Environments,
    resource::{Params, PlannedUse, Resource, Session, ToolError, ToolSpec},
};

/// The number of desktops that start at the same time: more would only be slower.
const MAX_STARTS: usize = 4;

/// Makes the names of environments unique in this process.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// Desktops.
pub struct Desktops {
    config: VmConfig,
    environments: Environments,
    starts: Semaphore,
}

impl Desktops {
    /// Creates desktops from their configuration and the paths that providers need. Nothing is started yet.
    pub fn new(config: VmConfig, place: HostPaths) -> Self {
        let environments = Environments::new("vm", config.settings(), place, MAX_STARTS);
        Self { config, environments, starts: Semaphore::new(MAX_STARTS) }
    }

    async fn start(&self, config: &Params) -> Result<Desktop, ToolError> {
        let wanted = self.config.wanted(config)?;
        let _turn = self.starts.acquire().await;
        let name = format!("vm-{}", STARTED.fetch_add(1, Ordering::Relaxed));
        let environment = self.environments.start(&name, &wanted.image).await?;
        Desktop::start(environment, &wanted, self.config.start_timeout_sec).await
    }
}

#[async_trait]
impl Resource for Desktops {
    fn name(&self) -> &str {
        "vm"
    }

    fn tools(&self) -> Vec<ToolSpec> {
        tools()
    }

    async fn warm_up(&self) -> Result<(), ToolError> {
        Box::new(self.start(&Params::new()).await?).close().await;
        Ok(())
    }

    async fn check(&self, planned: &PlannedUse) -> Result<Vec<String>, ToolError> {
        self.config.wanted(&planned.config).map(|_| Vec::new())
    }

    async fn open(&self, config: &Params) -> Result<Box<dyn Session>, ToolError> {
        Ok(Box::new(self.start(config).await?))
    }

    async fn close(&self) {
        self.environments.settle().await;
    }
}

fn tools() -> Vec<ToolSpec> {
    let whole = |description: &str| json!({"type": "integer", "description": description});
    let text = |description: &str| json!({"type": "string", "description": description});
    let (x, y) = (
        whole("Pixels from the left edge of the screen."),
        whole("Pixels from the upper edge of the screen."),
    );
    let button = json!({"type": "string", "enum": ["left", "middle", "right"], "description": "The button; left by default."});
    let key = text("The key, as in Return, a, F5 or ctrl+c.");
    let spec =
        |name: &str, aliases: &[&str], description: &str, properties: Value, required: &[&str]| ToolSpec {
            name: name.to_owned(),
            aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
            description: description.to_owned(),
            parameters: json!({"type": "object", "properties": properties, "required": required}),
        };
    let at = || json!({"x": x, "y": y});
    let at_with_button = || json!({"x": x, "y": y, "button": button});
    vec![
        spec("screenshot", &[], "Shows the screen.", json!({}), &[]),
        spec("click", &["left_click"], "Clicks at a point on the screen.", at_with_button(), &["x", "y"]),
        spec("double_click", &[], "Double-clicks at a point on the screen.", at_with_button(), &["x", "y"]),
        spec("right_click", &[], "Right-clicks at a point on the screen.", at(), &["x", "y"]),
        spec("move", &["mouse_move"], "Moves the mouse to a point on the screen.", at(), &["x", "y"]),
        spec(
            "drag",
            &[],
            "Moves the mouse from one point to another with a button held down.",
            json!({
                "x1": whole("Where it starts, from the left."), "y1": whole("Where it starts, from the top."),
                "x2": whole("Where it ends, from the left."), "y2": whole("Where it ends, from the top."),
                "button": button,
            }),
            &["x1", "y1", "x2", "y2"],
        ),
        spec(
            "type",
            &[],
            "Types a text into the focused window. A line break is the Return key.",
            json!({"text": text("The text.")}),
            &["text"],
        ),
        spec("key", &["press"], "Presses a key or a combination of keys.", json!({"key": key}), &["key"]),
        spec(
            "hotkey",
            &[],
            "Presses several keys together.",
            json!({"keys": {"type": "array", "items": {"type": "string"}, "description": "The keys, as in [\"ctrl\", \"c\"]."}}),
            &["keys"],
        ),
        spec(
            "scroll",
            &[],
            "Turns the mouse wheel.",
            json!({
                "direction": {"type": "string", "enum": ["up", "down", "left", "right"], "description": "Where to."},
                "amount": whole("The number of clicks; 3 by default."),
                "x": whole("The point to move the mouse to first, from the left; its current point by default."),
                "y": whole("The same from the top."),
            }),
            &["direction"],
        ),
        spec("mouse_down", &[], "Presses a mouse button and holds it.", at_with_button(), &[]),
        spec("mouse_up", &[], "Releases a mouse button.", at_with_button(), &[]),
        spec("key_down", &[], "Presses a key and holds it.", json!({"key": key}), &["key"]),
        spec("key_up", &[], "Releases a key.", json!({"key": key}), &["key"]),
        spec(
            "wait",
            &[],
            "Waits, for a program to start or a page to load.",
            json!({"seconds": {"type": "number", "description": "How long, up to 30; 1 by default."}}),
            &[],
        ),
    ]
}
