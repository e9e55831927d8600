//! Desktops of the tool server in native environments: real windows, real keys.

use std::{
    io::Cursor,
    path::Path,
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rollout::environment::{CloudAccess, DockerAccess, HostPaths, KubernetesAccess};
use rollout_testkit::processes_and_mounts_below;
use rollout_tools::{
    Call, ErrorCode, Resource as _, Session, ToolError,
    vm::{Desktops, VmConfig},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long something may take to appear on the screen.
const PATIENCE: Duration = Duration::from_secs(600);

const WIDTH: u32 = 640;
const HEIGHT: u32 = 400;

/// Windows that fill the screen.
const RED: &str = "xterm -bg '#ff0000' -geometry 200x60+0+0";
const BLUE: &str = "xterm -bg '#0000ff' -geometry 200x60+0+0";

/// A picture of the screen.
#[derive(Clone, PartialEq)]
struct Picture(Vec<u8>);

impl Picture {
    fn at(&self, x: u32, y: u32) -> [u8; 3] {
        let start = 3 * (y * WIDTH + x) as usize;
        self.0[start..start + 3].try_into().unwrap()
    }

    /// A place that no text reaches, beside the mouse.
    fn middle(&self) -> [u8; 3] {
        self.at(WIDTH / 2 + 100, HEIGHT / 2 + 100)
    }
}

/// A desktop, and the directory that everything of it is in.
struct TestDesktop {
    dir: TempDir,
    desktops: Desktops,
    session: Box<dyn Session>,
}

impl TestDesktop {
    async fn start(start: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let desktops = desktops(dir.path(), json!({"width": WIDTH, "height": HEIGHT}));
        let config = json!({"start": start});
        let session = desktops.open(config.as_object().unwrap()).await.unwrap();
        Self { dir, desktops, session }
    }

    async fn call(&self, tool: &str, params: Value) -> Result<Value, ToolError> {
        let call = Call { worker_id: "w".to_owned(), session_id: "s".to_owned(), timeout: PATIENCE };
        self.session.call(tool, params.as_object().unwrap().clone(), &call).await
    }

    async fn reported(&self, tool: &str, params: Value) -> String {
        self.call(tool, params).await.unwrap()["result"].as_str().unwrap().to_owned()
    }

    async fn picture(&self) -> Picture {
        let shot = self.call("screenshot", json!({})).await.unwrap();
        assert_eq!(
            (&shot["format"], &shot["width"], &shot["height"]),
            (&json!("png"), &json!(WIDTH), &json!(HEIGHT))
        );
        let file = BASE64_STANDARD.decode(shot["image"].as_str().unwrap()).unwrap();
        let mut reader = png::Decoder::new(Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        Picture(pixels)
    }

    /// Looks until the screen is as wanted.
    async fn until(&self, what: &str, is_so: impl Fn(&Picture) -> bool) -> Picture {
        let started = Instant::now();
        loop {
            let picture = self.picture().await;
            if is_so(&picture) {
                return picture;
            }
            assert!(started.elapsed() < PATIENCE, "the screen does not show {what}");
            self.call("wait", json!({"seconds": 0.05})).await.unwrap();
        }
    }

    /// Ends the desktop and makes sure that nothing of it is left.
    async fn end(self) {
        self.session.close().await;
        drop(self.desktops);
        let started = Instant::now();
        while !processes_and_mounts_below(self.dir.path()).is_empty() {
            assert!(started.elapsed() < PATIENCE, "{:?}", processes_and_mounts_below(self.dir.path()));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn desktops(dir: &Path, config: Value) -> Desktops {
    // A link of the test's own, which distinguishes its processes from those of others.
    let helper = dir.join("rollout");
    let command = env!("CARGO_BIN_EXE_rollout");
    rollout_testkit::link_program(command.as_ref(), &helper);
    let place = HostPaths {
        state_dir: dir.join("state"),
        helper,
        docker: DockerAccess::default(),
        kubernetes: KubernetesAccess::default(),
        clouds: CloudAccess::default(),
    };
    let config: VmConfig = serde_json::from_value(config).unwrap();
    Desktops::new(config, place)
}

#[tokio::test]
async fn what_is_typed_arrives_as_it_is() {
    let text = "-n $(id) \"x\" 'y' <é> \\ |;&";
    let script = format!(r#"read -r line; if [ "$line" = "$0" ]; then exec {RED}; else exec {BLUE}; fi"#);
    let desktop = TestDesktop::start(&[
        "xterm",
        "-bg",
        "white",
        "-geometry",
        "200x60+0+0",
        "-e",
        "sh",
        "-c",
        &script,
        text,
    ])
    .await;
    desktop.until("the terminal", |picture| picture.middle() == [255, 255, 255]).await;
    assert_eq!(
        desktop.reported("click", json!({"x": WIDTH / 2, "y": HEIGHT / 2})).await,
        "clicked the left button at (320, 200)"
    );
    let before = desktop.picture().await;
    assert_eq!(desktop.reported("type", json!({"text": text})).await, "typed 26 characters");
    desktop.until("what was typed", |picture| *picture != before).await;
    assert_eq!(desktop.reported("key", json!({"key": "Enter"})).await, "pressed Return");
    let is_over = |picture: &Picture| [[255, 0, 0], [0, 0, 255]].contains(&picture.middle());
    let shown = desktop.until("another window", is_over).await;
    assert_eq!(shown.middle(), [255, 0, 0], "something else arrived");
    desktop.end().await;
}

#[tokio::test]
async fn the_mouse_reaches_windows_and_their_manager() {
    let desktop = TestDesktop::start(&["xterm", "-bg", "#00ff00", "-geometry", "30x8+40+60"]).await;
    let green = [0, 255, 0];
    desktop.until("the terminal", |picture| picture.at(150, 130) == green).await;
    // By its title, the window goes where the mouse goes.
    desktop.call("drag", json!({"x1": 100, "y1": 68, "x2": 400, "y2": 268})).await.unwrap();
    desktop
        .until("the window elsewhere", |picture| {
            picture.at(150, 130) != green && picture.at(450, 330) == green
        })
        .await;
    // The background has a menu, which goes away again.
    desktop.call("move", json!({"x": 5, "y": 5})).await.unwrap();
    let before = desktop.picture().await;
    desktop.call("right_click", json!({"x": 60, "y": 60})).await.unwrap();
    desktop.until("a menu", |picture| picture.at(75, 75) != before.at(75, 75)).await;
    desktop.call("key", json!({"key": "esc"})).await.unwrap();
    desktop.until("no menu", |picture| picture.at(75, 75) == before.at(75, 75)).await;
    desktop.end().await;
}

#[tokio::test]
async fn keys_are_held_and_combined_and_the_wheel_turns() {
    // Shift and the wheel are seen in what the terminal reports of its mouse.
    let script = format!(
        r#"
        stty -icanon -echo min 1; printf '\033[?1000h\033[?1006h'
        [ "$(dd bs=1 count=1 2>/dev/null)" = A ] || exec {BLUE}
        [ "$(dd bs=1 count=1 2>/dev/null)" = "$(printf '\003')" ] || exec {BLUE}
        wheel=$(dd bs=1 count=6 2>/dev/null); [ "$wheel" = "$(printf '\033[<65;')" ] || exec {BLUE}
        exec {RED}"#
    );
    let raw = format!("stty -isig; {script}");
    let desktop =
        TestDesktop::start(&["xterm", "-bg", "white", "-geometry", "200x60+0+0", "-e", "sh", "-c", &raw])
            .await;
    desktop.until("the terminal", |picture| picture.middle() == [255, 255, 255]).await;
    desktop.call("move", json!({"x": 300, "y": 300})).await.unwrap();
    // The terminal is ready when its program has asked it to report the mouse; keys before that are kept for it.
    desktop.call("key_down", json!({"key": "shift"})).await.unwrap();
    desktop.call("key", json!({"key": "a"})).await.unwrap();
    desktop.call("key_up", json!({"key": "shift"})).await.unwrap();
    desktop.call("hotkey", json!({"keys": ["ctrl", "c"]})).await.unwrap();
    let is_over = |picture: &Picture| [[255, 0, 0], [0, 0, 255]].contains(&picture.middle());
    let started = Instant::now();
    let shown = loop {
        desktop.call("scroll", json!({"x": 300, "y": 300, "direction": "down", "amount": 1})).await.unwrap();
        let picture = desktop.picture().await;
        if is_over(&picture) {
            break picture;
        }
        assert!(started.elapsed() < PATIENCE, "the wheel has no effect");
    };
    assert_eq!(shown.middle(), [255, 0, 0], "something else arrived");
    desktop.end().await;
}

#[tokio::test]
async fn what_cannot_be_done_leaves_the_desktop_as_it_is() {
    let desktop = TestDesktop::start(&[]).await;
    for (tool, params, code) in [
        ("click", json!({"x": WIDTH, "y": 0}), ErrorCode::InvalidInput),
        ("key", json!({"key": "NoSuchKey"}), ErrorCode::InvalidInput),
        ("type", json!({}), ErrorCode::MissingField),
    ] {
        assert_eq!(desktop.call(tool, params.clone()).await.unwrap_err().code, code, "{tool} {params}");
    }
    desktop.call("key", json!({"key": "a"})).await.unwrap();
    desktop.picture().await;
    desktop.end().await;
}

#[tokio::test]
async fn desktops_are_apart() {
    let first = TestDesktop::start(&["sh", "-c", RED]).await;
    let second = TestDesktop::start(&["sh", "-c", BLUE]).await;
    first.until("red", |picture| picture.middle() == [255, 0, 0]).await;
    second.until("blue", |picture| picture.middle() == [0, 0, 255]).await;
    assert_eq!(first.picture().await.middle(), [255, 0, 0]);
    first.end().await;
    second.end().await;
}

#[tokio::test]
async fn a_missing_program_is_reported_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let desktops = desktops(dir.path(), json!({}));
    let config = json!({"start": ["no-such-browser"]});
    let error = desktops.open(config.as_object().unwrap()).await.err().unwrap();
    assert_eq!(error.code, ErrorCode::DependencyMissing);
    assert_eq!(
        error.message,
        "no-such-browser is not installed in the image \"host\"; install it (on Debian and Ubuntu: apt install \
         no-such-browser)"
    );
    desktops.warm_up().await.unwrap();
    drop(desktops);
    let started = Instant::now();
    while !processes_and_mounts_below(dir.path()).is_empty() {
        assert!(started.elapsed() < PATIENCE, "{:?}", processes_and_mounts_below(dir.path()));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
