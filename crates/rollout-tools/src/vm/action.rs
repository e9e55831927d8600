//! Converts tool calls to arguments of xdotool. No shell is involved: a typed text is one argument.

use std::time::Duration;

use super::key;
use crate::{
    arguments,
    resource::{ErrorCode, Params, ToolError},
};

/// The longest text that is typed at once: each character takes a moment.
const MAX_TYPED_CHARS: usize = 4000;

/// The time between two typed characters, in milliseconds. With a shorter one, programs that redraw for each
/// character miss some.
const TYPE_DELAY: &str = "12";

/// The same for characters that are not on the keyboard: xdotool assigns each of them to a key for half of that
/// time, and a program that reads the key too late finds nothing.
const SLOW_TYPE_DELAY: &str = "200";
const MAX_SLOW_CHARS: usize = 300;

/// The most clicks of the wheel at once.
const MAX_SCROLL: i64 = 100;

/// The longest time that a model can wait at once.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The number of points between the ends of a drag, because programs follow the path.
const DRAG_POINTS: i64 = 8;

/// The action of a tool.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    /// Takes a screenshot.
    Screenshot,
    /// Waits.
    Wait(Duration),
    /// Uses mouse and keyboard.
    Input {
        /// The arguments of each run of xdotool.
        runs: Vec<Vec<String>>,
        /// A description of the action for the model.
        done: String,
    },
}

/// The size of a screen in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Screen {
    pub(super) width: u16,
    pub(super) height: u16,
}

impl Action {
    /// Reads a call.
    pub(super) fn new(tool: &str, params: &Params, screen: Screen) -> Result<Self, ToolError> {
        let call = Reader { params, screen };
        match tool {
            "screenshot" => Ok(Self::Screenshot),
            "wait" => call.wait(),
            "click" => call.click(1),
            "double_click" => call.click(2),
            "right_click" => {
                let at = call.needed_point()?;
                Ok(input(format!("right-clicked at {at}"), [at.go(), words(&["click", "3"])]))
            }
            "move" => {
                let at = call.needed_point()?;
                Ok(input(format!("moved to {at}"), [at.go()]))
            }
            "drag" => call.drag(),
            "type" => call.type_text(),
            "key" => call.keys("key", "pressed"),
            "hotkey" => call.keys("key", "pressed"),
            "key_down" => call.keys("keydown", "held down"),
            "key_up" => call.keys("keyup", "released"),
            "mouse_down" => call.hold("mousedown", "held down"),
            "mouse_up" => call.hold("mouseup", "released"),
            "scroll" => call.scroll(),
            _ => Err(ToolError::new(ErrorCode::InvalidRequest, format!("vm has no tool {tool:?}"))),
        }
    }
}

fn input<const N: usize>(done: String, parts: [Vec<String>; N]) -> Action {
    Action::Input { done, runs: vec![parts.concat()] }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A point on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Point {
    x: i64,
    y: i64,
}

impl Point {
    fn go(self) -> Vec<String> {
        words(&["mousemove", &self.x.to_string(), &self.y.to_string()])
    }
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({}, {})", self.x, self.y)
    }
}

struct Reader<'p> {
    params: &'p Params,
    screen: Screen,
}

impl Reader<'_> {
    /// An optional point on the screen.
    fn point(&self, x_name: &str, y_name: &str) -> Result<Option<Point>, ToolError> {
        let number = |name| arguments::whole(self.params, name);
        let (x, y) = match (number(x_name)?, number(y_name)?) {
            (None, None) => return Ok(None),
            (Some(x), Some(y)) => (x, y),
            (None, Some(_)) => return Err(arguments::missing(x_name)),
            (Some(_), None) => return Err(arguments::missing(y_name)),
        };
        let Screen { width, height } = self.screen;
        if !(0..i64::from(width)).contains(&x) || !(0..i64::from(height)).contains(&y) {
            let message = format!(
                "({x}, {y}) is not on the screen, which is {width} pixels wide and {height} high; the upper left corner \
                 is (0, 0)"
            );
            return Err(ToolError::new(ErrorCode::InvalidInput, message));
        }
        Ok(Some(Point { x, y }))
    }

    fn needed_point(&self) -> Result<Point, ToolError> {
        self.point("x", "y")?.ok_or_else(|| arguments::missing("x"))
    }

    fn button(&self) -> Result<(&'static str, &'static str), ToolError> {
        match arguments::text(self.params, "button")?.map(str::to_ascii_lowercase).as_deref() {
            None | Some("left") => Ok(("1", "left")),
            Some("middle") => Ok(("2", "middle")),
            Some("right") => Ok(("3", "right")),
            Some(other) => {
                let message = format!("unknown button {other:?}; the buttons are left, middle and right");
                Err(ToolError::new(ErrorCode::InvalidInput, message))
            }
        }
    }

    fn click(&self, times: u8) -> Result<Action, ToolError> {
        let at = self.needed_point()?;
        let (number, name) = self.button()?;
        if times == 1 {
            return Ok(input(
                format!("clicked the {name} button at {at}"),
                [at.go(), words(&["click", number])],
            ));
        }
        let twice = words(&["click", "--repeat", "2", "--delay", "80", number]);
        Ok(input(format!("double-clicked the {name} button at {at}"), [at.go(), twice]))
    }

    fn hold(&self, verb: &str, done: &str) -> Result<Action, ToolError> {
        let (number, name) = self.button()?;
        let (go, at) = match self.point("x", "y")? {
            Some(at) => (at.go(), format!(" at {at}")),
            None => (Vec::new(), String::new()),
        };
        Ok(input(format!("{done} the {name} button{at}"), [go, words(&[verb, number])]))
    }

    fn drag(&self) -> Result<Action, ToolError> {
        let from = self.point("x1", "y1")?.ok_or_else(|| arguments::missing("x1"))?;
        let to = self.point("x2", "y2")?.ok_or_else(|| arguments::missing("x2"))?;
        let (number, _) = self.button()?;
        let mut way = Vec::new();
        for step in 1..=DRAG_POINTS {
            let between = |from: i64, to: i64| from + (to - from) * step / DRAG_POINTS;
            way.extend(Point { x: between(from.x, to.x), y: between(from.y, to.y) }.go());
            way.extend(words(&["sleep", "0.02"]));
        }
        let (press, release) = (words(&["mousedown", number, "sleep", "0.05"]), words(&["mouseup", number]));
        Ok(input(format!("dragged from {from} to {to}"), [from.go(), press, way, release]))
    }

    fn type_text(&self) -> Result<Action, ToolError> {
        let text = arguments::text(self.params, "text")?.ok_or_else(|| arguments::missing("text"))?;
        let count = text.chars().count();
        if count > MAX_TYPED_CHARS {
            let message =
                format!("the text has {count} characters; at most {MAX_TYPED_CHARS} are typed at once");
            return Err(ToolError::new(ErrorCode::InvalidInput, message));
        }
        if text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t' | '\r')) {
            let message = "the text contains control characters; press such keys with vm:key";
            return Err(ToolError::new(ErrorCode::InvalidInput, message));
        }
        if text.chars().filter(|c| !c.is_ascii()).count() > MAX_SLOW_CHARS {
            let message =
                format!("at most {MAX_SLOW_CHARS} characters that are not on the keyboard are typed at once");
            return Err(ToolError::new(ErrorCode::InvalidInput, message));
        }
        let text = text.replace("\r\n", "\n");
        let runs = alike(&text).into_iter().map(|run| {
            let delay = if run.is_ascii() { TYPE_DELAY } else { SLOW_TYPE_DELAY };
            words(&["type", "--clearmodifiers", "--delay", delay, "--", run])
        });
        Ok(Action::Input { runs: runs.collect(), done: format!("typed {count} characters") })
    }

    fn keys(&self, verb: &str, done: &str) -> Result<Action, ToolError> {
        let written = arguments::texts(self.params, &["key", "keys"])?.join("+");
        let name = key::named(&written).ok_or_else(|| {
            let message = format!("unknown key {written:?}; write keys as in Return, ctrl+c or F5");
            ToolError::new(ErrorCode::InvalidInput, message)
        })?;
        Ok(input(format!("{done} {name}"), [words(&[verb, "--", &name])]))
    }

    fn scroll(&self) -> Result<Action, ToolError> {
        let number = |name| arguments::whole(self.params, name);
        let amount = number("amount")?;
        let (dx, dy) =
            match arguments::text(self.params, "direction")?.map(str::to_ascii_lowercase).as_deref() {
                None => (number("dx")?.unwrap_or(0), number("dy")?.or(amount).unwrap_or(0)),
                Some("down") => (0, amount.unwrap_or(3)),
                Some("up") => (0, amount.unwrap_or(3).saturating_neg()),
                Some("right") => (amount.unwrap_or(3), 0),
                Some("left") => (amount.unwrap_or(3).saturating_neg(), 0),
                Some(other) => {
                    let message =
                        format!("unknown direction {other:?}; the directions are up, down, left and right");
                    return Err(ToolError::new(ErrorCode::InvalidInput, message));
                }
            };
        if (dx, dy) == (0, 0) {
            return Err(ToolError::new(
                ErrorCode::MissingField,
                "give a direction and an amount, or dx and dy",
            ));
        }
        if dx.unsigned_abs().max(dy.unsigned_abs()) > MAX_SCROLL.unsigned_abs() {
            let message = format!("at most {MAX_SCROLL} clicks of the wheel are possible at once");
            return Err(ToolError::new(ErrorCode::InvalidInput, message));
        }
        let turn = |clicks: i64, less: &str, more: &str| {
            let button = if clicks < 0 { less } else { more };
            let times = clicks.unsigned_abs().to_string();
            if clicks == 0 {
                Vec::new()
            } else {
                words(&["click", "--repeat", &times, "--delay", "10", button])
            }
        };
        let go = self.point("x", "y")?.map_or_else(Vec::new, Point::go);
        Ok(input(format!("scrolled by ({dx}, {dy})"), [go, turn(dy, "4", "5"), turn(dx, "6", "7")]))
    }

    fn wait(&self) -> Result<Action, ToolError> {
        let seconds = match self.params.get("seconds").filter(|value| !value.is_null()) {
            None => Some(1.0),
            Some(value) => value.as_f64(),
        };
        let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let time = time.filter(|time| *time <= MAX_WAIT).ok_or_else(|| {
            let message = format!("seconds must be a number from 0 to {}", MAX_WAIT.as_secs());
            ToolError::new(ErrorCode::InvalidInput, message)
        })?;
        Ok(Action::Wait(time))
    }
}

/// Splits a text into runs of ASCII and non-ASCII characters.
fn alike(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| c.is_ascii() != first.is_ascii()).unwrap_or(rest.len());
        let (part, later) = rest.split_at(end);
        parts.push(part);
        rest = later;
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const SCREEN: Screen = Screen { width: 800, height: 600 };

    fn action(tool: &str, params: Value) -> Result<Action, ToolError> {
        Action::new(tool, params.as_object().unwrap(), SCREEN)
    }

    /// The arguments, and the description of the action.
    fn done(tool: &str, params: Value) -> (String, String) {
        match action(tool, params).unwrap() {
            Action::Input { runs, done } => (runs.concat().join(" "), done),
            other => panic!("{other:?} is no input"),
        }
    }

    #[test]
    fn tools_become_arguments() {
        for (tool, params, arguments, description) in [
            (
                "click",
                json!({"x": 10, "y": "20"}),
                "mousemove 10 20 click 1",
                "clicked the left button at (10, 20)",
            ),
            (
                "click",
                json!({"x": 0, "y": 599.0, "button": "Middle"}),
                "mousemove 0 599 click 2",
                "clicked the middle button at (0, 599)",
            ),
            (
                "double_click",
                json!({"x": 1, "y": 2}),
                "mousemove 1 2 click --repeat 2 --delay 80 1",
                "double-clicked the left button at (1, 2)",
            ),
            ("right_click", json!({"x": 1, "y": 2}), "mousemove 1 2 click 3", "right-clicked at (1, 2)"),
            ("move", json!({"x": 1, "y": 2}), "mousemove 1 2", "moved to (1, 2)"),
            ("mouse_down", json!({}), "mousedown 1", "held down the left button"),
            (
                "mouse_up",
                json!({"x": 5, "y": 6, "button": "right"}),
                "mousemove 5 6 mouseup 3",
                "released the right button at (5, 6)",
            ),
            ("key", json!({"key": "Enter"}), "key -- Return", "pressed Return"),
            (
                "hotkey",
                json!({"keys": ["ctrl", "Shift", "t"]}),
                "key -- ctrl+shift+t",
                "pressed ctrl+shift+t",
            ),
            ("hotkey", json!({"keys": "alt+F4"}), "key -- alt+F4", "pressed alt+F4"),
            ("key_down", json!({"key": "shift"}), "keydown -- shift", "held down shift"),
            ("key_up", json!({"key": "shift"}), "keyup -- shift", "released shift"),
            ("scroll", json!({"direction": "down"}), "click --repeat 3 --delay 10 5", "scrolled by (0, 3)"),
            (
                "scroll",
                json!({"x": 1, "y": 2, "direction": "left", "amount": 2}),
                "mousemove 1 2 click --repeat 2 --delay 10 6",
                "scrolled by (-2, 0)",
            ),
            (
                "scroll",
                json!({"dx": 1, "dy": -4}),
                "click --repeat 4 --delay 10 4 click --repeat 1 --delay 10 7",
                "scrolled by (1, -4)",
            ),
            (
                "type",
                json!({"text": "-x $(y)"}),
                "type --clearmodifiers --delay 12 -- -x $(y)",
                "typed 7 characters",
            ),
            ("type", json!({"text": ""}), "", "typed 0 characters"),
        ] {
            assert_eq!(
                done(tool, params.clone()),
                (arguments.to_owned(), description.to_owned()),
                "{tool} {params}"
            );
        }
        assert_eq!(action("screenshot", json!({"seed_path": "x"})), Ok(Action::Screenshot));
        assert_eq!(action("wait", json!({"seconds": 0.5})), Ok(Action::Wait(Duration::from_millis(500))));
    }

    #[test]
    fn a_drag_goes_from_one_end_to_the_other_by_points_between() {
        let (arguments, _) = done("drag", json!({"x1": 0, "y1": 10, "x2": 80, "y2": 10}));
        assert!(
            arguments.starts_with(
                "mousemove 0 10 mousedown 1 sleep 0.05 mousemove 10 10 sleep 0.02 mousemove 20 10"
            )
        );
        assert!(arguments.ends_with("mousemove 80 10 sleep 0.02 mouseup 1"));
    }

    #[test]
    fn invalid_actions_are_reported() {
        for (tool, params, code) in [
            ("click", json!({}), ErrorCode::MissingField),
            ("click", json!({"x": 1}), ErrorCode::MissingField),
            ("click", json!({"x": 800, "y": 0}), ErrorCode::InvalidInput),
            ("click", json!({"x": 0, "y": -1}), ErrorCode::InvalidInput),
            ("click", json!({"x": "left", "y": 1}), ErrorCode::InvalidType),
            ("click", json!({"x": 1, "y": 1, "button": "4"}), ErrorCode::InvalidInput),
            ("drag", json!({"x1": 1, "y1": 1}), ErrorCode::MissingField),
            ("type", json!({}), ErrorCode::MissingField),
            ("type", json!({"text": 5}), ErrorCode::InvalidType),
            ("type", json!({"text": "x".repeat(4001)}), ErrorCode::InvalidInput),
            ("type", json!({"text": "\u{1b}[2J"}), ErrorCode::InvalidInput),
            ("type", json!({"text": "\0"}), ErrorCode::InvalidInput),
            ("key", json!({"key": "--window"}), ErrorCode::InvalidInput),
            ("key", json!({"key": ""}), ErrorCode::InvalidInput),
            ("scroll", json!({}), ErrorCode::MissingField),
            ("scroll", json!({"direction": "in"}), ErrorCode::InvalidInput),
            ("scroll", json!({"dy": 101}), ErrorCode::InvalidInput),
            ("scroll", json!({"dy": i64::MIN}), ErrorCode::InvalidInput),
            ("scroll", json!({"direction": "up", "amount": i64::MIN}), ErrorCode::InvalidInput),
            ("wait", json!({"seconds": 31}), ErrorCode::InvalidInput),
            ("wait", json!({"seconds": -1}), ErrorCode::InvalidInput),
            ("dance", json!({}), ErrorCode::InvalidRequest),
        ] {
            assert_eq!(action(tool, params.clone()).unwrap_err().code, code, "{tool} {params}");
        }
    }

    proptest! {
        #[test]
        fn what_is_typed_is_always_the_last_argument(text in "[^\\p{Cc}]{1,50}") {
            let Ok(Action::Input { runs, .. }) = action("type", json!({"text": text.clone()})) else {
                panic!("the text is not typed")
            };
            prop_assert!(runs.iter().all(|run| run.len() == 6 && run[4] == "--"));
            prop_assert_eq!(runs.iter().map(|run| run[5].as_str()).collect::<String>(), text);
        }
    }
}
