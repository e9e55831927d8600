//! Names of tools: patterns in configurations, and names for models.

use std::collections::HashSet;

/// The separators between the kind of a tool and its own name.
const SEPARATORS: [char; 4] = [':', '_', '-', '.'];

/// The longest name that model servers accept.
const MAX_CHARS: usize = 64;

/// Whether two names differ only in their separators.
pub(crate) fn is_same(a: &str, b: &str) -> bool {
    plain(a) == plain(b)
}

/// Whether a tool matches a pattern of a configuration: `web:search`, `web_search`, `web:*`, `*`.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => plain(name).starts_with(&plain(start)),
        None => is_same(pattern, name),
    }
}

fn plain(name: &str) -> String {
    name.trim().replace(SEPARATORS, "-")
}

/// The selected tools of a server, in the order of the server. A pattern without a match is an error.
pub(super) fn chosen<T>(
    wanted: &[String],
    tools: Vec<T>,
    names: impl for<'t> Fn(&'t T) -> Vec<&'t str>,
) -> Result<Vec<T>, NoSuchTool> {
    let matches = |pattern: &String, tool: &T| names(tool).into_iter().any(|name| matches(pattern, name));
    for pattern in wanted {
        if !tools.iter().any(|tool| matches(pattern, tool)) {
            let likeness = |name: &&str| (strsim::jaro_winkler(&plain(name), &plain(pattern)) * 1e6) as u64;
            let nearest = tools.iter().filter_map(|tool| names(tool).into_iter().next()).max_by_key(likeness);
            return Err(NoSuchTool { pattern: pattern.clone(), nearest: nearest.map(str::to_owned) });
        }
    }
    Ok(tools.into_iter().filter(|tool| wanted.iter().any(|pattern| matches(pattern, tool))).collect())
}

/// An unknown name in `available_tools`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NoSuchTool {
    pub(super) pattern: String,
    pub(super) nearest: Option<String>,
}

/// Names that every model server accepts: ASCII letters, digits, `_` and `-`, at most 64, and unique.
pub(super) fn shown<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut taken = HashSet::new();
    let mut shown = Vec::new();
    for name in names {
        let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        let whole: String = name.chars().map(allowed).collect();
        let mut short: String = whole.chars().take(MAX_CHARS).collect();
        for number in 2.. {
            if taken.insert(short.clone()) {
                break;
            }
            let suffix = format!("-{number}");
            short = whole.chars().take(MAX_CHARS - suffix.len()).collect::<String>() + &suffix;
        }
        shown.push(short);
    }
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tool_is_selected_by_its_name_with_any_separator() {
        for (pattern, name, expected) in [
            ("web:search", "web:search", true),
            ("web_search", "web:search", true),
            ("web-search", "web:search", true),
            ("web.search", "web-search", true),
            ("vm:*", "vm:screenshot", true),
            ("vm*", "vm:screenshot", true),
            ("*", "mcp:files.read_file", true),
            ("mcp:files.*", "mcp:files.read_file", true),
            ("vm:*", "vmware:start", false),
            ("web:sea", "web:search", false),
            ("search", "web:search", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn an_unknown_name_is_reported_with_the_most_similar_one() {
        let tools = vec!["web:search", "web:browse", "doc:read"];
        let choose = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(|&name| name.to_owned()).collect();
            chosen(&wanted, tools.clone(), |name| vec![name])
        };
        assert_eq!(choose(&["doc:*", "web:browse"]), Ok(vec!["web:browse", "doc:read"]));
        let nearest = Some("web:browse".to_owned());
        assert_eq!(
            choose(&["doc:*", "web:brwose"]),
            Err(NoSuchTool { pattern: "web:brwose".to_owned(), nearest })
        );
    }

    proptest! {
        #[test]
        fn names_for_models_are_valid_and_unique(names in prop::collection::vec(".{0,80}", 0..20)) {
            let names: HashSet<String> = names.into_iter().filter(|name| !name.is_empty()).collect();
            let all = shown(names.iter().map(String::as_str));
            prop_assert_eq!(all.len(), names.len());
            prop_assert_eq!(all.iter().collect::<HashSet<_>>().len(), names.len());
            for name in all {
                prop_assert!((1..=MAX_CHARS).contains(&name.len()));
                prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-'));
            }
        }
    }

    #[test]
    fn a_name_is_shown_with_dashes() {
        assert_eq!(
            shown(["web:search", "mcp:files.read_file", "mcp:files-read_file"].into_iter()),
            ["web-search", "mcp-files-read_file", "mcp-files-read_file-2",]
        );
    }
}
