//! Parses the mounts of `RUN --mount`.

use super::error::ImageBuildError;
use super::parse::{Location, Stage};
use super::plan::Origin;
use super::stages::stage_or_image;

/// The directory of secrets without a target.
const SECRETS: &str = "/run/secrets";

/// The mode of a new cache.
const CACHE_MODE: u32 = 0o755;

/// What is mounted while a command runs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunMount {
    /// Where, as an absolute path.
    pub(crate) target: String,
    pub(crate) kind: MountKind,
}

/// The kind of a mount.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MountKind {
    /// A directory that later builds see again.
    Cache { id: String, mode: u32, owner: (u32, u32), read_only: bool },
    /// A directory in memory.
    Tmpfs { size: Option<u64> },
    /// A copy of files of the context or another image.
    Bind { from: Origin, source: String, writable: bool },
}

impl RunMount {
    /// Where the files of a mount come from.
    pub(crate) fn origin(&self) -> Option<&Origin> {
        match &self.kind {
            MountKind::Bind { from, .. } => Some(from),
            MountKind::Cache { .. } | MountKind::Tmpfs { .. } => None,
        }
    }
}

/// The fields of a mount as they are written.
#[derive(Default)]
struct Fields<'a> {
    kind: Option<&'a str>,
    target: Option<&'a str>,
    source: Option<&'a str>,
    from: Option<&'a str>,
    id: Option<&'a str>,
    mode: Option<u32>,
    uid: u32,
    gid: u32,
    size: Option<u64>,
    read_only: Option<bool>,
    required: bool,
}

/// Parses the value of `--mount`. A secret that is not required is no mount, because builds have no secrets.
pub(crate) fn parse_mount(
    at: &Location,
    value: &str,
    stages: &[Stage],
    absolute: impl Fn(&str) -> String,
) -> Result<Option<RunMount>, ImageBuildError> {
    let syntax = |message: String| ImageBuildError::Syntax { at: at.clone(), message };
    let fields = fields(value).map_err(syntax)?;
    let kind = fields.kind.unwrap_or("bind");
    let target = match (fields.target, kind) {
        (Some(target), _) => absolute(target),
        (None, "secret" | "ssh") => format!("{SECRETS}/{}", fields.id.unwrap_or("default")),
        (None, _) => return Err(syntax("the mount has no target=".to_owned())),
    };
    let kind = match kind {
        "tmpfs" => MountKind::Tmpfs { size: fields.size },
        "cache" if fields.from.is_some() => {
            return Err(ImageBuildError::Unsupported {
                at: at.clone(),
                what: "RUN --mount=type=cache with from=".to_owned(),
                instead: "copy the files with COPY".to_owned(),
            });
        }
        "cache" => MountKind::Cache {
            id: fields.id.unwrap_or(&target).to_owned(),
            mode: fields.mode.unwrap_or(CACHE_MODE),
            owner: (fields.uid, fields.gid),
            read_only: fields.read_only.unwrap_or(false),
        },
        "bind" => MountKind::Bind {
            from: fields
                .from
                .map_or(Origin::Context, |reference| Origin::Other(stage_or_image(stages, reference))),
            source: fields.source.unwrap_or("/").to_owned(),
            writable: !fields.read_only.unwrap_or(true),
        },
        "secret" | "ssh" if !fields.required => return Ok(None),
        kind => {
            return Err(ImageBuildError::Unsupported {
                at: at.clone(),
                what: format!("RUN --mount=type={kind}"),
                instead: "bring the files in with COPY".to_owned(),
            });
        }
    };
    Ok(Some(RunMount { target, kind }))
}

fn fields(text: &str) -> Result<Fields<'_>, String> {
    let mut fields = Fields::default();
    for field in text.split(',').filter(|field| !field.is_empty()) {
        let (name, value) = field.split_once('=').unwrap_or((field, "true"));
        let number =
            |radix| u32::from_str_radix(value, radix).map_err(|_| format!("`{value}` is not a number"));
        let truth = || value.parse::<bool>().map_err(|_| format!("`{value}` is neither true nor false"));
        match name.to_ascii_lowercase().as_str() {
            "type" => fields.kind = Some(value),
            "target" | "dst" | "destination" => fields.target = Some(value),
            "source" | "src" => fields.source = Some(value),
            "from" => fields.from = Some(value),
            "id" => fields.id = Some(value),
            "mode" => fields.mode = Some(number(8)?),
            "uid" => fields.uid = number(10)?,
            "gid" => fields.gid = number(10)?,
            "size" => {
                fields.size = Some(value.parse().map_err(|_| format!("`{value}` is not a size in bytes"))?)
            }
            "ro" | "readonly" => fields.read_only = Some(truth()?),
            "rw" | "readwrite" => fields.read_only = Some(!truth()?),
            "required" => fields.required = truth()?,
            // One build at a time uses a cache here.
            "sharing" | "env" => {}
            _ => return Err(format!("a mount has no field `{name}`")),
        }
    }
    Ok(fields)
}
