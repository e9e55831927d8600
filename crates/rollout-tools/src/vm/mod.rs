//! Desktops: a screen to look at, a mouse and a keyboard, in an environment for each session.

mod action;
mod config;
mod desktop;
mod key;
mod xwd;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use rollout::{
    config::{EnvironmentConfig, EnvironmentKind, TaskConfig, load_task_config},
    environment::{
        ConnectError, Environment, EnvironmentSpec, ImageRequest, Origin, Place, Provider, connect,
    },
    name::TaskName,
    task::Task,
};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, Semaphore};

pub use config::{VmConfig, VmEnvironment};

use self::{
    config::HOST,
    desktop::{Desktop, failed},
};
use crate::{Code, Params, Resource, Session, ToolError, ToolSpec};

/// How many desktops start at the same time: more of them would only be slower.
const MAX_STARTS: usize = 4;

/// What the provider's labels say of environments of this kind.
const JOB: &str = "tools";

/// Names environments apart: no two that run in this process may have the same name.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// Desktops.
pub struct Desktops {
    config: VmConfig,
    place: Place,
    provider: OnceCell<Arc<dyn Provider>>,
    starts: Semaphore,
}

impl Desktops {
    /// Makes desktops as configured, with what providers need of this machine. Nothing is started yet.
    pub fn new(config: VmConfig, place: Place) -> Self {
        Self { config, place, provider: OnceCell::new(), starts: Semaphore::new(MAX_STARTS) }
    }

    /// The provider, connected once.
    async fn provider(&self) -> Result<&Arc<dyn Provider>, ToolError> {
        let connected = self.provider.get_or_try_init(|| async {
            let (kind, mut settings) = match self.config.environment {
                VmEnvironment::Native => (EnvironmentKind::Native, json!({"images": {HOST: "host"}})),
                VmEnvironment::Docker => (EnvironmentKind::Docker, json!({})),
            };
            settings["network"] = self.config.network.as_str().into();
            settings["pids"] = self.config.pids.into();
            let provider_config = settings.as_object().cloned().unwrap_or_default();
            let config =
                EnvironmentConfig { kind: Some(kind), provider_config, ..EnvironmentConfig::default() };
            connect(&config, &self.place).await.map_err(|error| not_connected(&error))
        });
        connected.await
    }

    async fn environment(&self, image: &str) -> Result<Box<dyn Environment>, ToolError> {
        let provider = self.provider().await?;
        let name = format!("vm-{}", STARTED.fetch_add(1, Ordering::Relaxed));
        let origin = Origin { job: JOB, trial: &name };
        let task = task(image);
        // Nothing is built, so nothing is logged; the provider wants to know where it would be.
        let log = std::env::temp_dir().join("rollout-tools-build.txt");
        let request = ImageRequest { origin, task: &task, force_build: false, log: &log };
        let image = provider.prepare(request).await.map_err(|error| failed(&error))?;
        let spec = EnvironmentSpec {
            origin,
            image: &image,
            name: &name,
            cpus: self.config.cpus,
            memory: self.config.memory,
            storage: task.config.storage,
        };
        provider.create(spec).await.map_err(|error| failed(&error))
    }

    async fn start(&self, config: &Params) -> Result<Desktop, ToolError> {
        let wanted = self.config.wanted(config)?;
        let _turn = self.starts.acquire().await;
        let environment = self.environment(&wanted.image).await?;
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

    async fn open(&self, config: &Params) -> Result<Box<dyn Session>, ToolError> {
        Ok(Box::new(self.start(config).await?))
    }
}

fn tools() -> Vec<ToolSpec> {
    let whole = |description: &str| json!({"type": "integer", "description": description});
    let text = |description: &str| json!({"type": "string", "description": description});
    let (x, y) = (
        whole("Pixels from the left edge of the screen."),
        whole("Pixels from the upper edge of the screen."),
    );
    let button = json!({"type": "string", "enum": ["left", "middle", "right"], "description": "The button; left if it is left out."});
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
        spec("click", &["left_click"], "Clicks at a place on the screen.", at_with_button(), &["x", "y"]),
        spec("double_click", &[], "Clicks twice at a place on the screen.", at_with_button(), &["x", "y"]),
        spec("right_click", &[], "Clicks the right button at a place on the screen.", at(), &["x", "y"]),
        spec("move", &["mouse_move"], "Moves the mouse to a place on the screen.", at(), &["x", "y"]),
        spec(
            "drag",
            &[],
            "Moves the mouse from one place to another with a button held down.",
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
            "Types a text where the keyboard is. A line break is the Return key.",
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
            "Turns the wheel of the mouse.",
            json!({
                "direction": {"type": "string", "enum": ["up", "down", "left", "right"], "description": "Where to."},
                "amount": whole("By how many clicks; 3 if it is left out."),
                "x": whole("Where the mouse is moved to first, from the left; where it is if it is left out."),
                "y": whole("The same from the top."),
            }),
            &["direction"],
        ),
        spec("mouse_down", &[], "Presses a button of the mouse and holds it.", at_with_button(), &[]),
        spec("mouse_up", &[], "Releases a button of the mouse.", at_with_button(), &[]),
        spec("key_down", &[], "Presses a key and holds it.", json!({"key": key}), &["key"]),
        spec("key_up", &[], "Releases a key.", json!({"key": key}), &["key"]),
        spec(
            "wait",
            &[],
            "Waits, for a program to start or a page to load.",
            json!({"seconds": {"type": "number", "description": "For how long, up to 30; 1 if it is left out."}}),
            &[],
        ),
    ]
}

/// What providers need to know of an image: a task with nothing but that.
fn task(image: &str) -> Task {
    let (defaults, _) = load_task_config("task.toml".as_ref(), "").expect("every setting has a default");
    Task {
        name: TaskName::new("vm").expect("it is a name"),
        // Providers prepare the image of a directory once, so each needs a key of its own.
        dir: image.into(),
        context: PathBuf::new(),
        config: TaskConfig { docker_image: Some(image.to_owned()), ..defaults },
        git_commit_id: None,
        has_solution: false,
        has_config: false,
    }
}

fn not_connected(error: &ConnectError) -> ToolError {
    let mut text = format!("desktops cannot run: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    if let Some(hint) = error.hint() {
        text = format!("{text}; {hint}");
    }
    ToolError::new(Code::DependencyMissing, text)
}
