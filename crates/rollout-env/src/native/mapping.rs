//! The setting `images`: what stands for the image of a name.

use std::path::{Path, PathBuf};

use rollout_sandbox::{build::reference_matches, oci::ImageSource};
use rollout_settings::Form;
use serde_json::json;

/// The forms of a value, for messages and documentation.
const FORMS: &str = "`host`, `docker:NAME`, `docker-archive:FILE`, `oci:DIRECTORY[:NAME]` or `rootfs:FILE`";

/// What stands for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MappedImage {
    /// This machine's own system.
    Host,
    /// An image of the local Docker engine.
    Docker(String),
    /// A file or directory.
    Source(ImageSource),
}

impl MappedImage {
    fn parse(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let file = || match Path::new(rest).is_absolute() {
            true => Ok(PathBuf::from(rest)),
            false => Err(format!("needs an absolute path after `{kind}:`")),
        };
        match kind {
            "host" if text == "host" => Ok(Self::Host),
            "docker" if !rest.is_empty() => Ok(Self::Docker(rest.to_owned())),
            "docker-archive" => Ok(Self::Source(ImageSource::Archive(file()?))),
            "rootfs" => Ok(Self::Source(ImageSource::Rootfs(file()?))),
            "oci" => {
                file()?;
                // A colon after the last slash is not part of the path.
                let (path, name) = match rest.rsplit_once(':') {
                    Some((path, name)) if !name.contains('/') => (path, Some(name.to_owned())),
                    _ => (rest, None),
                };
                Ok(Self::Source(ImageSource::Layout(path.into(), name)))
            }
            _ => Err(format!("cannot be `{text}`; it can be {FORMS}")),
        }
    }

    /// The file or directory that must exist.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Source(
                ImageSource::Archive(path) | ImageSource::Rootfs(path) | ImageSource::Layout(path, _),
            ) => Some(path),
            Self::Host | Self::Docker(_) => None,
        }
    }
}

/// The images of names. An exact name is preferred to a pattern, and an earlier pattern to a later one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ImageMapping(Vec<(String, MappedImage)>);

impl ImageMapping {
    /// Finds what stands for an image.
    pub(super) fn find(&self, reference: &str) -> Option<&MappedImage> {
        let exact = self.0.iter().find(|(name, _)| name == reference);
        let found = exact.or_else(|| self.0.iter().find(|(name, _)| reference_matches(name, reference)));
        found.map(|(_, image)| image)
    }

    /// The form of the setting.
    pub(super) fn form() -> Form<ImageMapping> {
        let schema = || {
            let pattern = "^(host|docker:.+|docker-archive:/.+|oci:/.+|rootfs:/.+)$";
            json!({ "type": "object", "additionalProperties": { "type": "string", "pattern": pattern } })
        };
        let kind = "mapping of name to `host`, `docker:…`, `docker-archive:…`, `oci:…` or `rootfs:…`";
        Form::written(kind, schema, |section, key| {
            let images = section.mapping(key)?;
            let mut mapping = Vec::new();
            for entry in images.entries {
                match MappedImage::parse(images.string(&entry.key)?) {
                    Ok(image) => mapping.push((entry.key.clone(), image)),
                    Err(problem) => {
                        images.invalid(&entry.key, format!("`{}` {problem}", images.at(&entry.key)));
                    }
                }
            }
            Some(ImageMapping(mapping))
        })
        .or_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_a_value() {
        let archive = MappedImage::Source(ImageSource::Archive("/a/b.tar".into()));
        assert_eq!(MappedImage::parse("docker-archive:/a/b.tar"), Ok(archive));
        let layout = |path: &str, name: Option<&str>| {
            Ok(MappedImage::Source(ImageSource::Layout(path.into(), name.map(str::to_owned))))
        };
        assert_eq!(MappedImage::parse("oci:/a/b"), layout("/a/b", None));
        assert_eq!(MappedImage::parse("oci:/a/b:1.0"), layout("/a/b", Some("1.0")));
        assert_eq!(MappedImage::parse("oci:/a:b/c"), layout("/a:b/c", None));
        assert_eq!(MappedImage::parse("docker:name:tag"), Ok(MappedImage::Docker("name:tag".into())));
        assert_eq!(MappedImage::parse("host"), Ok(MappedImage::Host));
        for text in ["", "guest", "docker:", "host:x", "rootfs:relative", "oci:", "docker-archive:"] {
            assert!(MappedImage::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_exact_name_is_preferred_to_a_pattern() {
        let docker = |name: &str| MappedImage::Docker(name.into());
        let mapping = ImageMapping(vec![
            ("py*".into(), docker("first")),
            ("*".into(), MappedImage::Host),
            ("python:3".into(), docker("exact")),
        ]);
        assert_eq!(mapping.find("python:3"), Some(&docker("exact")));
        assert_eq!(mapping.find("python:4"), Some(&docker("first")));
        assert_eq!(mapping.find("scratch"), Some(&MappedImage::Host));
        assert_eq!(ImageMapping::default().find("x"), None);
    }
}
