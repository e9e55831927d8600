//! The settings of desktops.

use std::time::Duration;

use rollout_core::quantity::{Bytes, Cpus};
use rollout_settings::{
    Settings as _,
    forms::{cpus, text, texts, whole},
};
use serde_json::Value;

use crate::{
    arguments,
    environments::{EnvironmentType, HOST, Settings},
    forms::{deserialize, environment, limit, memory, seconds},
    resource::{ErrorCode, Params, ToolError},
};

/// The largest width and height of a screen, in pixels.
const MAX_SIDE: u16 = 4096;
const MIN_SIDE: u16 = 64;

rollout_settings::settings! {
    /// Where desktops run, and their limits. The names are those of the configuration file.
    #[derive(Debug, Clone)]
    pub struct VmConfig {
        /// The provider of the environments of desktops.
        pub environment: EnvironmentType = environment(),
        /// The image: `host` for native; an image with Xvfb and xdotool for docker.
        pub image: Option<String> = text().optional().unset("`host`; required for docker"),
        /// Other images that a session may request.
        pub images: Vec<String> = texts(),
        /// The network: `none` or `host` for native, also `bridge` and others for docker.
        pub network: String = text().default("none".to_owned()),
        /// CPUs of each desktop.
        pub cpus: Cpus = cpus().default(Cpus { millis: 2000 }),
        /// Memory of each desktop.
        pub memory: Bytes = memory(2 << 30),
        /// The maximum number of processes of each desktop.
        pub pids: usize = limit(1024),
        /// The width of the screen in pixels.
        pub width: u16 = whole(MIN_SIDE.into()..=MAX_SIDE.into()).default(1280),
        /// The height of the screen in pixels.
        pub height: u16 = whole(MIN_SIDE.into()..=MAX_SIDE.into()).default(800),
        /// The program that is started on the screen, with its arguments. A session can request another program.
        pub start: Vec<String> = texts(),
        /// The timeout for starting a desktop, without fetching its image.
        pub start_timeout_sec: Duration = seconds(60),
    }
}

deserialize!(VmConfig);

impl Default for VmConfig {
    fn default() -> Self {
        Self::defaults().expect("every setting of desktops has a default")
    }
}

/// The settings of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) image: String,
    pub(super) width: u16,
    pub(super) height: u16,
    pub(super) start: Vec<String>,
}

impl VmConfig {
    /// The settings of environments.
    pub(super) fn settings(&self) -> Settings {
        let Self { environment, cpus, memory, pids, .. } = *self;
        Settings { environment, network: self.network.clone(), cpus, memory, pids }
    }

    /// The settings of a session with this configuration.
    pub(super) fn wanted(&self, session: &Params) -> Result<Wanted, ToolError> {
        const KNOWN: [&str; 4] = ["image", "width", "height", "start"];
        if let Some(unknown) = session.keys().find(|name| !KNOWN.contains(&name.as_str())) {
            let message = format!("a desktop has no setting {unknown:?}; it has {}", KNOWN.join(", "));
            return Err(ToolError::new(ErrorCode::InvalidInput, message));
        }
        let side = |name: &str, default: u16| match arguments::whole(session, name)? {
            None => Ok(default),
            Some(pixels) => u16::try_from(pixels).ok().filter(|pixels| is_side(*pixels)).ok_or_else(|| {
                let message = format!("{name} is {pixels}; it must be {MIN_SIDE} to {MAX_SIDE} pixels");
                ToolError::new(ErrorCode::InvalidInput, message)
            }),
        };
        let start = match session.get("start") {
            None | Some(Value::Null) => self.start.clone(),
            // A single text is split at white space; quotes are not supported.
            Some(Value::String(text)) => text.split_whitespace().map(str::to_owned).collect(),
            Some(_) => arguments::list(session, &["start"])?,
        };
        Ok(Wanted {
            image: self.image_for(arguments::text(session, "image")?)?,
            width: side("width", self.width)?,
            height: side("height", self.height)?,
            start,
        })
    }

    fn image_for(&self, asked: Option<&str>) -> Result<String, ToolError> {
        let default = match (&self.image, self.environment) {
            (Some(image), _) => Some(image.as_str()),
            (None, EnvironmentType::Native) => Some(HOST),
            (None, EnvironmentType::Docker) => None,
        };
        match asked.or(default) {
            None => Err(ToolError::new(ErrorCode::DependencyMissing, NO_IMAGE)),
            Some(image) if Some(image) == default || self.images.iter().any(|allowed| allowed == image) => {
                Ok(image.to_owned())
            }
            Some(image) => {
                let message = format!(
                    "sessions may not use the image {image:?}; list it in resources.vm.images of the tool server's configuration"
                );
                Err(ToolError::new(ErrorCode::Refused, message))
            }
        }
    }
}

/// Advice for an engine without an image.
const NO_IMAGE: &str = "no image for desktops is configured; set resources.vm.image in the tool server's configuration to an image that has Xvfb, xdotool and a window manager (on Debian and Ubuntu: apt install xvfb \
    xdotool openbox)";

fn is_side(pixels: u16) -> bool {
    (MIN_SIDE..=MAX_SIDE).contains(&pixels)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wanted(config: Value, session: Value) -> Result<Wanted, ErrorCode> {
        let config: VmConfig = serde_json::from_value(config).unwrap();
        config.wanted(session.as_object().unwrap()).map_err(|error| error.code)
    }

    #[test]
    fn a_session_gets_its_settings_if_they_are_allowed() {
        let config = || json!({"images": ["desktop:1"], "width": 800, "start": ["xterm"]});
        let host = |start: &[&str]| Wanted {
            image: "host".to_owned(),
            width: 800,
            height: 800,
            start: start.iter().map(|word| (*word).to_owned()).collect(),
        };
        assert_eq!(wanted(config(), json!({})), Ok(host(&["xterm"])));
        assert_eq!(wanted(config(), json!({"start": "xclock -digital"})), Ok(host(&["xclock", "-digital"])));
        assert_eq!(wanted(config(), json!({"start": ["a b", "c"], "image": null})), Ok(host(&["a b", "c"])));
        assert_eq!(wanted(config(), json!({"image": "desktop:1"})).unwrap().image, "desktop:1");
        assert_eq!(wanted(config(), json!({"image": "other"})), Err(ErrorCode::Refused));
        assert_eq!(wanted(config(), json!({"width": 5})), Err(ErrorCode::InvalidInput));
        assert_eq!(wanted(config(), json!({"heigth": 500})), Err(ErrorCode::InvalidInput));
        assert_eq!(wanted(json!({"environment": "docker"}), json!({})), Err(ErrorCode::DependencyMissing));
    }

    #[test]
    fn quantities_are_written_as_in_jobs() {
        let config: VmConfig = serde_json::from_value(json!({"memory": "512Mi", "cpus": 0.5})).unwrap();
        assert_eq!((config.memory.0, config.cpus.millis), (512 << 20, 500));
        for wrong in [
            json!({"memory": []}),
            json!({"width": 10}),
            json!({"start_timeout_sec": -1}),
            json!({"screen": 1}),
        ] {
            assert!(serde_json::from_value::<VmConfig>(wrong).is_err());
        }
    }
}
