//! The forms of tool settings: numbers that are limited to sensible ranges.

use std::{path::PathBuf, time::Duration};

use rollout_core::quantity::Bytes;
use rollout_settings::{
    Form, Section,
    forms::{self, Whole, number, whole},
    section::above_zero,
};
use serde_json::json;

use crate::environments::EnvironmentType;

/// One day: longer than any operation here.
pub(crate) const MAX_SECONDS: u64 = 86_400;

/// A time in seconds.
pub(crate) fn seconds(default: u64) -> Form<Duration> {
    number(above_zero(MAX_SECONDS as f64))
        .kind("seconds > 0")
        .map(Duration::from_secs_f64, |time| time.as_secs_f64())
        .default(Duration::from_secs(default))
}

/// A time in whole seconds.
pub(crate) fn whole_seconds(default: u64) -> Form<u64> {
    whole(1..=MAX_SECONDS).default(default)
}

/// A count, up to more than any machine supports.
pub(crate) fn limit(default: usize) -> Form<usize> {
    whole(1..=1 << 30).default(default)
}

/// A size in bytes, up to one tebibyte.
pub(crate) fn size<T: Whole>(default: T) -> Form<T> {
    whole(1..=1 << 40).kind("bytes").default(default)
}

/// An amount of memory. A number without a unit is in bytes.
pub(crate) fn memory(default: u64) -> Form<Bytes> {
    forms::bytes().read_by(|section, key| section.quantity(key)).default(Bytes(default))
}

/// Folders or files that may be read, relative to the configuration file.
pub(crate) fn roots() -> Form<Vec<PathBuf>> {
    let schema = || json!({ "type": "array", "items": { "type": "string" } });
    let read = |section: &Section<'_>, key: &str| {
        let paths = section.strings(key)?;
        Some(paths.into_iter().map(|path| section.reader.dir.join(path)).collect())
    };
    Form::written("list of paths", schema, read)
        .recorded(|paths: &Vec<PathBuf>, _| paths.iter().map(|path| path.to_string_lossy()).collect())
        .default(crate::seed::default_roots())
        .unset("where the server was started")
}

/// The provider of environments.
pub(crate) fn environment() -> Form<EnvironmentType> {
    const TYPES: [(&str, EnvironmentType); 2] =
        [("native", EnvironmentType::Native), ("docker", EnvironmentType::Docker)];
    forms::word(&TYPES).default(EnvironmentType::Native)
}

/// Deserializes settings from JSON through their declarations.
macro_rules! deserialize {
    ($($config:ty),*) => {
        $(
            impl<'de> serde::Deserialize<'de> for $config {
                fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                    let settings = serde::Deserialize::deserialize(from)?;
                    rollout_settings::read_json::<Self>("", &settings).map_err(serde::de::Error::custom)
                }
            }
        )*
    };
}
pub(crate) use deserialize;
