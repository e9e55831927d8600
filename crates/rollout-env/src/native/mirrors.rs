//! The setting `mirrors`: registries that are asked before others.

use rollout_settings::Form;
use serde_json::json;

/// The mirrors of registries, by the names of the registries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RegistryMirrors(pub(super) Vec<(String, Vec<String>)>);

impl RegistryMirrors {
    /// The form of the setting.
    pub(super) fn form() -> Form<RegistryMirrors> {
        let schema = || {
            let mirrors = json!({ "type": "array", "items": { "type": "string", "minLength": 1 } });
            json!({ "type": "object", "additionalProperties": mirrors })
        };
        Form::written("mapping of registry to list of strings", schema, |section, key| {
            let registries = section.mapping(key)?;
            let mut all = Vec::new();
            for entry in registries.entries {
                if entry.key.contains('/') {
                    let path = section.at(key);
                    let problem = format!(
                        "`{path}` cannot have the registry `{}`; write `docker.io`, `host` or `host:port`",
                        entry.key
                    );
                    registries.invalid(&entry.key, problem);
                }
                let Some(mirrors) = registries.strings(&entry.key) else { continue };
                for mirror in mirrors.iter().filter(|mirror| !is_valid(mirror)) {
                    let path = registries.at(&entry.key);
                    let problem =
                        format!("`{path}` cannot have `{mirror}`; write `host`, `host:port` or `host/path`");
                    registries.invalid(&entry.key, problem);
                }
                // Images have only the first of the names of Docker Hub.
                let name = match entry.key.as_str() {
                    "index.docker.io" | "registry-1.docker.io" => "docker.io",
                    name => name,
                };
                all.push((name.to_owned(), mirrors));
            }
            Some(RegistryMirrors(all))
        })
        .or_empty()
    }
}

/// Whether a mirror has a host, and nothing that is not part of the name of an image.
fn is_valid(mirror: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._:/[]".contains(c);
    let is_address = !mirror.contains("//") && !mirror.starts_with('/') && mirror.chars().all(fits);
    is_address && reqwest::Url::parse(&format!("https://{mirror}")).is_ok()
}
