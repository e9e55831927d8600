//! Lists the tools, and finds a tool by its name.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use crate::resource::{ErrorCode, Resource, ToolError, ToolSpec};

/// The separators between prefix and tool name besides `:`.
const SEPARATORS: [char; 3] = ['.', '_', '-'];

/// The longest name that is looked up. Longer names are not compared.
const MAX_NAME_BYTES: usize = 256;

/// All resources of a server.
pub struct Registry {
    resources: IndexMap<String, Arc<dyn Resource>>,
    /// The tools that the resources last reported: some know theirs only after they have been warmed up.
    table: RwLock<Arc<Table>>,
}

/// A tool that was found by its name.
#[derive(Clone)]
pub struct FoundTool {
    /// The resource of the tool.
    pub resource: Arc<dyn Resource>,
    /// Its name without the prefix.
    pub(super) tool: String,
    /// Its name with the prefix.
    pub(super) full_name: String,
    /// Whether its resource lists it.
    pub(super) is_known: bool,
}

/// The tools at one time.
#[derive(Default)]
struct Table {
    /// By full name, in the order of the resources.
    tools: IndexMap<String, Entry>,
    /// Full names by alias.
    aliases: HashMap<String, String>,
}

struct Entry {
    resource: String,
    spec: ToolSpec,
}

impl Registry {
    /// Creates a registry; of two resources with the same name, the later one is used.
    pub(crate) fn new(resources: impl IntoIterator<Item = Arc<dyn Resource>>) -> Self {
        let resources =
            resources.into_iter().map(|resource| (resource.name().to_owned(), resource)).collect();
        let registry = Self { resources, table: RwLock::default() };
        registry.refresh();
        registry
    }

    /// Asks the resources for their tools again.
    pub fn refresh(&self) {
        let mut table = Table::default();
        for (name, resource) in &self.resources {
            for spec in resource.tools() {
                let full_name = format!("{name}:{}", spec.name);
                for alias in &spec.aliases {
                    table.aliases.entry(format!("{name}:{alias}")).or_insert_with(|| full_name.clone());
                }
                table.tools.insert(full_name, Entry { resource: name.clone(), spec });
            }
        }
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
    }

    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The resources by name.
    pub fn resources(&self) -> impl Iterator<Item = (&str, &Arc<dyn Resource>)> {
        self.resources.iter().map(|(name, resource)| (name.as_str(), resource))
    }

    /// The resource of this name.
    pub(super) fn resource(&self, name: &str) -> Result<&Arc<dyn Resource>, ToolError> {
        self.resources.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.resources.keys().map(String::as_str).collect();
            let text = format!("unknown resource type {}; there are {}", quoted(name), names.join(", "));
            ToolError::new(ErrorCode::InvalidRequest, text)
        })
    }

    /// The number of tools.
    pub fn len(&self) -> usize {
        self.table().tools.len()
    }

    /// Whether there are no tools.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Finds the tool of a name.
    ///
    /// A full name is tried first, then a name with another separator after a known prefix, then the name of a
    /// tool without prefix, if only one tool has it.
    pub fn find(&self, name: &str) -> Result<FoundTool, ToolError> {
        let found = self.table().find(name, &self.resources);
        let is_known = found.is_ok();
        let full_name = found.or_else(|unknown| match name.split_once(':') {
            Some((prefix, tool)) if self.resources.get(prefix).is_some_and(|all| all.may_have(tool)) => {
                Ok(name.to_owned())
            }
            _ => Err(unknown),
        })?;
        let (prefix, tool) = full_name.split_once(':').unwrap_or((&full_name, ""));
        let resource = Arc::clone(self.resource(prefix)?);
        Ok(FoundTool { resource, tool: tool.to_owned(), full_name: full_name.clone(), is_known })
    }

    /// Descriptions of all tools for clients.
    pub(super) fn describe(&self) -> Vec<Value> {
        self.table().tools.iter().map(|(name, entry)| description(name, entry)).collect()
    }

    /// The description of one tool for clients.
    pub(super) fn describe_one(&self, name: &str) -> Result<Value, ToolError> {
        let table = self.table();
        let name = table.find(name, &self.resources)?;
        Ok(table.tools.get(&name).map_or(Value::Null, |entry| description(&name, entry)))
    }

    /// The full names and the specifications of all tools.
    pub fn tools(&self) -> Vec<(String, ToolSpec)> {
        self.table().tools.iter().map(|(name, entry)| (name.clone(), entry.spec.clone())).collect()
    }
}

impl Table {
    fn find(&self, name: &str, resources: &IndexMap<String, Arc<dyn Resource>>) -> Result<String, ToolError> {
        if name.len() > MAX_NAME_BYTES {
            return Err(ToolError::new(ErrorCode::InvalidRequest, "the tool name is too long"));
        }
        if let Some(found) = self.full(name) {
            return Ok(found.to_owned());
        }
        if !name.contains(':') {
            for separator in SEPARATORS {
                if let Some((prefix, tool)) = name.split_once(separator)
                    && resources.contains_key(prefix)
                    && let Some(found) = self.full(&format!("{prefix}:{tool}"))
                {
                    return Ok(found.to_owned());
                }
            }
            match &self.simple(name)[..] {
                [] => {}
                [one] => return Ok((*one).to_owned()),
                several => {
                    let text = format!("{} can mean {}", quoted(name), several.join(" or "));
                    let data = json!({"candidates": several});
                    return Err(ToolError { code: ErrorCode::InvalidRequest, message: text, data });
                }
            }
        }
        Err(self.unknown(name))
    }

    fn full(&self, name: &str) -> Option<&str> {
        let own = self.tools.get_key_value(name).map(|(name, _)| name);
        own.or_else(|| self.aliases.get(name)).map(String::as_str)
    }

    /// The tools of this name without their prefixes. Names are preferred to aliases.
    fn simple(&self, name: &str) -> Vec<&str> {
        let of = |full: &str| full.split_once(':').is_some_and(|(_, tool)| tool == name);
        let own: Vec<&str> = self.tools.keys().map(String::as_str).filter(|full| of(full)).collect();
        if !own.is_empty() {
            return own;
        }
        let mut others: Vec<&str> =
            self.aliases.iter().filter(|(alias, _)| of(alias)).map(|(_, full)| full.as_str()).collect();
        others.sort_unstable();
        others.dedup();
        others
    }

    fn unknown(&self, name: &str) -> ToolError {
        let meant = name.replacen(SEPARATORS, ":", usize::from(!name.contains(':')));
        let near = self.tools.keys().map(|full| {
            let tool = full.split_once(':').map_or("", |(_, tool)| tool);
            let distance =
                strsim::damerau_levenshtein(&meant, full).min(strsim::damerau_levenshtein(name, tool));
            (distance, full)
        });
        let nearest = near.filter(|(distance, full)| *distance <= (full.len() / 3).max(1)).min();
        let hint = match nearest {
            Some((_, nearest)) => format!("; did you mean {nearest}?"),
            None => "; `rollout tools list` and GET /api/v1/tools list the tools".to_owned(),
        };
        ToolError::new(ErrorCode::InvalidRequest, format!("unknown tool {}{hint}", quoted(name)))
    }
}

/// A client's text, quoted and shortened for a message.
fn quoted(name: &str) -> String {
    let short: String = name.chars().take(64).flat_map(char::escape_debug).collect();
    format!("`{short}`")
}

fn description(name: &str, entry: &Entry) -> Value {
    let Entry { resource, spec } = entry;
    let mut description = json!({
        "name": name,
        "resource_type": resource,
        "description": spec.description,
        "parameters": parameters(&spec.parameters),
        "input_schema": spec.parameters,
    });
    if !spec.aliases.is_empty() {
        description["aliases"] = spec.aliases.iter().map(|alias| format!("{resource}:{alias}")).collect();
    }
    description
}

/// The parameters as a list, for clients that do not support JSON Schema.
fn parameters(schema: &Value) -> Vec<Value> {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().into_iter().flatten();
    let one = |(name, property): (&String, &Value)| {
        let mut parameter = Map::new();
        parameter.insert("name".to_owned(), name.as_str().into());
        parameter.insert("type".to_owned(), kind(property).into());
        parameter
            .insert("description".to_owned(), property["description"].as_str().unwrap_or_default().into());
        parameter.insert("required".to_owned(), required.contains(&name.as_str()).into());
        if let Some(items) = property.get("items") {
            parameter.insert("array_type".to_owned(), kind(items).into());
        }
        if let Some(values) = property.get("enum") {
            parameter.insert("enum".to_owned(), values.clone());
        }
        Value::Object(parameter)
    };
    properties.map(one).collect()
}

/// The type of a property; the first one if there are several.
fn kind(property: &Value) -> &str {
    let of = |value: &Value| match value.as_str() {
        Some("null") | None => None,
        Some(kind) => match kind {
            "integer" => Some("integer"),
            "number" => Some("number"),
            "boolean" => Some("boolean"),
            "array" => Some("array"),
            "object" => Some("object"),
            _ => Some("string"),
        },
    };
    let kind = &property["type"];
    of(kind).or_else(|| kind.as_array()?.iter().find_map(of)).unwrap_or("string")
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use proptest::prelude::*;

    use super::*;
    use crate::resource::{Params, Session};

    struct Fake(&'static str, &'static [(&'static str, &'static [&'static str])]);

    #[async_trait]
    impl Resource for Fake {
        fn name(&self) -> &str {
            self.0
        }

        fn tools(&self) -> Vec<ToolSpec> {
            let spec = |(name, aliases): &(&str, &[&str])| ToolSpec {
                name: (*name).to_owned(),
                aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
                description: format!("does {name}"),
                parameters: json!({
                    "type": "object",
                    "properties": {
                        "query": {"type": ["null", "string"], "description": "What for."},
                        "urls": {"type": "array", "items": {"type": "string"}},
                        "how": {"type": "string", "enum": ["fast", "slow"]},
                    },
                    "required": ["query"],
                }),
            };
            self.1.iter().map(spec).collect()
        }

        async fn open(&self, _: &Params) -> Result<Box<dyn Session>, ToolError> {
            Err(ToolError::new(ErrorCode::ResourceFailed, "it is made for names only"))
        }
    }

    fn registry() -> Registry {
        let web = Fake("web", &[("search", &[]), ("browse", &["visit"]), ("image_search", &[])]);
        let doc = Fake("doc", &[("search", &[]), ("read", &["visit"])]);
        let mcp = Fake("mcp", &[("files.read_file", &[])]);
        let resources: [Arc<dyn Resource>; 3] = [Arc::new(web), Arc::new(doc), Arc::new(mcp)];
        Registry::new(resources)
    }

    fn found(name: &str) -> String {
        match registry().find(name) {
            Ok(found) => found.full_name,
            Err(error) => format!("{} {}", error.code as u16, error.message),
        }
    }

    #[test]
    fn a_tool_is_found_by_its_full_name_with_any_separator() {
        for name in ["web:search", "web.search", "web_search", "web-search"] {
            assert_eq!(found(name), "web:search", "{name}");
        }
        assert_eq!(found("web:visit"), "web:browse");
        assert_eq!(found("web_image_search"), "web:image_search");
        assert_eq!(found("mcp:files.read_file"), "mcp:files.read_file");
        assert_eq!(found("mcp-files.read_file"), "mcp:files.read_file");
    }

    #[test]
    fn a_name_without_a_prefix_is_enough_if_only_one_tool_has_it() {
        assert_eq!(found("browse"), "web:browse");
        assert_eq!(found("image_search"), "web:image_search");
        assert_eq!(found("search"), "4002 `search` can mean web:search or doc:search");
        assert_eq!(found("visit"), "4002 `visit` can mean doc:read or web:browse");
    }

    #[test]
    fn an_unknown_name_suggests_the_nearest() {
        assert_eq!(found("web:serch"), "4002 unknown tool `web:serch`; did you mean web:search?");
        assert_eq!(found("doc-raed"), "4002 unknown tool `doc-raed`; did you mean doc:read?");
        assert_eq!(found("brwse"), "4002 unknown tool `brwse`; did you mean web:browse?");
        let nothing =
            "4002 unknown tool `launch_missiles`; `rollout tools list` and GET /api/v1/tools list the tools";
        assert_eq!(found("launch_missiles"), nothing);
        assert_eq!(found(&"x".repeat(300)), "4002 the tool name is too long");
    }

    #[test]
    fn a_schema_is_also_described_as_a_list_of_parameters() {
        let description = registry().describe_one("web_search").unwrap();
        assert_eq!(description["name"], "web:search");
        assert_eq!(
            description["parameters"],
            json!([
                {"name": "query", "type": "string", "description": "What for.", "required": true},
                {"name": "urls", "type": "array", "description": "", "required": false, "array_type": "string"},
                {"name": "how", "type": "string", "description": "", "required": false, "enum": ["fast", "slow"]},
            ])
        );
        assert_eq!(description["input_schema"]["required"], json!(["query"]));
    }

    proptest! {
        #[test]
        fn any_text_is_a_tool_or_an_error(name in ".{0,300}") {
            if let Err(error) = registry().find(&name) {
                prop_assert_eq!(error.code, ErrorCode::InvalidRequest);
            }
        }
    }
}
