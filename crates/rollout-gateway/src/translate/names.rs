//! Names of tools that every upstream accepts.

use std::collections::BTreeMap;

use super::neutral::{Conversation, Part, ToolOrigin};

/// The longest name that every provider accepts.
const LENGTH: usize = 64;

/// The name of a tool in a namespace, as one name.
pub(super) fn flat(namespace: Option<&str>, name: &str) -> String {
    match namespace.filter(|namespace| !namespace.is_empty()) {
        None => name.to_owned(),
        Some(namespace) if namespace.ends_with("__") => format!("{namespace}{name}"),
        Some(namespace) => format!("{namespace}__{name}"),
    }
}

/// Replaces the names of tools and calls by ones that every provider accepts: letters, digits, `_` and `-`, at most 64
/// of them, no digit first. Returns how the client declared each.
pub(super) fn fit(conversation: &mut Conversation) -> BTreeMap<String, ToolOrigin> {
    let mut tools: BTreeMap<String, ToolOrigin> = BTreeMap::new();
    let mut fitted: BTreeMap<String, String> = BTreeMap::new();
    // The next number for each name that comes again, so that many tools of one name do not take forever.
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    for tool in &mut conversation.tools {
        let plain = fit_name(&tool.name);
        let mut name = plain.clone();
        while tools.contains_key(&name) {
            let number = numbers.entry(plain.clone()).or_insert(1);
            *number += 1;
            let suffix = format!("_{number}");
            name = format!("{}{suffix}", &plain[..plain.len().min(LENGTH - suffix.len())]);
        }
        fitted.insert(tool.name.clone(), name.clone());
        tools.insert(name.clone(), tool.origin.clone());
        tool.name = name;
    }
    let replace = |name: &mut String| *name = fitted.get(name).cloned().unwrap_or_else(|| fit_name(name));
    for part in conversation.turns.iter_mut().flat_map(|turn| &mut turn.parts) {
        match part {
            Part::Call(call) => replace(&mut call.name),
            Part::Result(result) => result.name.iter_mut().for_each(replace),
            _ => {}
        }
    }
    if let Some(choice) = &mut conversation.choice {
        choice.only.iter_mut().for_each(replace);
    }
    tools
}

fn fit_name(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    let mut fitted: String = name.chars().take(LENGTH).map(letter).collect();
    if !fitted.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        fitted.insert(0, '_');
        fitted.truncate(LENGTH);
    }
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::neutral::ToolSpec;

    #[test]
    fn names_fit_every_provider() {
        let long = "a".repeat(80);
        for (name, expected) in [
            ("exec_command", "exec_command"),
            ("mcp.files:read", "mcp_files_read"),
            ("7zip", "_7zip"),
            ("", "_"),
            ("größe", "gr__e"),
            (&long, &long[..64]),
        ] {
            assert_eq!(fit_name(name), expected);
        }
    }

    #[test]
    fn tools_of_one_name_get_numbers() {
        let tool = |name: &str| ToolSpec {
            name: name.to_owned(),
            description: None,
            schema: serde_json::Value::Null,
            strict: None,
            origin: ToolOrigin::function(name),
        };
        let mut conversation =
            Conversation { tools: ["a.b", "a:b", "a_b"].map(tool).into(), ..Conversation::default() };
        let origins = fit(&mut conversation);
        let names: Vec<&str> = conversation.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["a_b", "a_b_2", "a_b_3"]);
        assert_eq!(origins["a_b_2"].name, "a:b");
    }

    #[test]
    fn a_namespace_becomes_part_of_the_name() {
        assert_eq!(flat(Some("mcp__files__"), "read"), "mcp__files__read");
        assert_eq!(flat(Some("files"), "read"), "files__read");
        assert_eq!(flat(None, "read"), "read");
    }
}
