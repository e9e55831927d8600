//! The table of agents in docs/agents.md, which is generated from the presets.

use std::path::Path;

use super::{images, solving};
use rollout::config::{PresetConfig, dialect_name, preset, preset_names};

/// Where the tests of this directory let an agent solve tasks with its preset.
fn runs(agent: &str) -> String {
    let kinds = [
        ("native, docker", solving::SOLVING),
        ("docker as an ordinary user", images::AS_AN_ORDINARY_USER),
        ("docker with musl", images::WITH_MUSL),
    ];
    let ran = kinds.iter().filter(|(_, agents)| agents.contains(&agent)).map(|(kind, _)| *kind);
    ran.collect::<Vec<_>>().join(", ")
}

const START: &str = "<!-- agents -->\n";
const END: &str = "<!-- end of agents -->\n";

fn row(agent: &PresetConfig) -> String {
    let install = &agent.install;
    let source = match (&install.npm, &install.node, install.pip.first()) {
        (_, _, Some(pip)) => format!("PyPI `{}`", pip.split("==").next().unwrap_or(pip)),
        (Some(_), Some(_), None) => "npm, with Node".to_owned(),
        (Some(_), None, None) => "npm, a native program".to_owned(),
        (None, _, None) => "a script".to_owned(),
    };
    let mut versions = install.python.clone();
    versions.sort();
    let image = match versions.as_slice() {
        [first, .., last] => format!("Python {first} to {last}"),
        [only] => format!("Python {only}"),
        [] if install.npm == install.npm_musl => "any".to_owned(),
        [] if install.npm_musl.is_some() => "glibc or musl".to_owned(),
        [] => "glibc".to_owned(),
    };
    let dialects: Vec<_> = agent.dialects.iter().map(|dialect| dialect_name(*dialect)).collect();
    let extensions = match (agent.mcp.is_some(), agent.skills.is_some()) {
        (true, true) => "MCP servers, skills",
        (true, false) => "MCP servers",
        (false, true) => "skills",
        (false, false) => "",
    };
    let run = runs(&agent.name);
    assert!(!run.is_empty(), "{} is not untested, so a test must run it", agent.name);
    let version = agent.tested.as_deref().expect("a tested agent has a version");
    format!(
        "| `{}` | {version} | {} | {source} | {image} | {extensions} | {run} |\n",
        agent.name,
        dialects.join(", ")
    )
}

/// `UPDATE_SCHEMAS=1` writes the table, like the other generated parts of the documentation.
#[test]
fn the_table_of_agents_agrees_with_the_presets_like_a_schema() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/agents.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(START).expect("the page has the table");
    let (found, after) = rest.split_once(END).expect("the table has an end");
    let mut table =
        "| agent | tested version | dialects | comes from | image | extensions | solved tasks in |\n\
                     | --- | --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
    let tested = preset_names().filter_map(preset).filter(|preset| !preset.untested);
    tested.for_each(|preset| table.push_str(&row(&preset)));
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        std::fs::write(&path, format!("{before}{START}{table}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(found, table, "run UPDATE_SCHEMAS=1 cargo nextest run schema");
}
