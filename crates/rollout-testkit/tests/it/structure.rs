//! What keeps the code easy to follow: crates and modules import in one direction, and a name means one type.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The crates from the bottom up. A crate depends only on those before it.
const LAYERS: [&str; 14] = [
    "rollout-core",
    "rollout-settings",
    "rollout-guest",
    "rollout-sandbox",
    "rollout-env",
    "rollout-model",
    "rollout-record",
    "rollout-http",
    "rollout-tools",
    "rollout-gateway",
    "rollout",
    "rollout-view",
    "rollout-testkit",
    "rollout-cli",
];

fn crates() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut crates: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    crates.retain(|path| path.join("Cargo.toml").exists());
    crates.sort();
    crates
}

/// The crates of examples/.
fn examples() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut examples: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    examples.retain(|path| path.join("src").is_dir());
    assert!(!examples.is_empty());
    examples
}

fn name(krate: &Path) -> &str {
    krate.file_name().unwrap().to_str().unwrap()
}

/// A source file without comments and without its tests.
struct Source {
    /// The path of its module, without the crate.
    module: Vec<String>,
    text: String,
}

fn sources(src: &Path) -> Vec<Source> {
    fn visit(dir: &Path, module: &[String], found: &mut Vec<Source>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let below = || module.iter().cloned().chain([stem.clone()]).collect::<Vec<_>>();
            if path.is_dir() {
                // Each program of src/bin is a crate of its own.
                if stem != "bin" {
                    visit(&path, &below(), found);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") && stem != "tests" {
                let module = if ["mod", "lib", "main"].contains(&&*stem) { module.to_vec() } else { below() };
                let code = without_tests(&fs::read_to_string(&path).unwrap());
                let code = code.lines().map(|line| line.split("//").next().unwrap());
                found.push(Source { module, text: code.collect::<Vec<_>>().join("\n") });
            }
        }
    }
    let mut found = Vec::new();
    visit(src, &[], &mut found);
    found
}

/// A source file without its test modules: those in files of their own, and those in braces.
fn without_tests(text: &str) -> String {
    let mut parts = text.split("\n#[cfg(test)]\nmod ");
    let mut code = parts.next().unwrap().to_owned();
    for part in parts {
        let end = if part.lines().next().unwrap().ends_with(';') { "\n" } else { "\n}\n" };
        code.push('\n');
        code.push_str(part.split_once(end).map_or("", |(_, rest)| rest));
    }
    code
}

/// The words of a text: names and the punctuation of paths.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let length = match first {
            ':' if rest.starts_with("::") => 2,
            c if is_name(c) => rest.find(|c| !is_name(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        words.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    words
}

/// Reads the tree of a path such as `a::{b, c::d as e}` behind its first words, and returns its leaves. Each ends with
/// the name that it is known by.
fn leaves<'t>(words: &[&'t str], at: &mut usize, path: &[&'t str], found: &mut Vec<Vec<&'t str>>) {
    let mut path = path.to_vec();
    while words.get(*at) == Some(&"::") {
        *at += 1;
        match words.get(*at) {
            Some(&"{") => {
                *at += 1;
                while let Some(&word) = words.get(*at).filter(|&&word| word != "}") {
                    *at += 1;
                    if word != "," {
                        let inner: Vec<&str> = path.iter().copied().chain([word]).collect();
                        leaves(words, at, &inner, found);
                    }
                }
                *at += 1;
                return;
            }
            Some(&word) => path.push(word),
            None => break,
        }
        *at += 1;
    }
    if words.get(*at) == Some(&"as") {
        *at += 2;
    }
    found.push(path);
}

/// The paths in a text that start with `crate` or `super`, from the root of the crate.
fn inner_paths(source: &Source) -> Vec<Vec<String>> {
    let words = words(&source.text);
    let mut found = Vec::new();
    let mut module = source.module.clone();
    // Modules in the text itself, each with the depth of braces that it ends at.
    let (mut depth, mut inline) = (0, Vec::new());
    let mut at = 0;
    while at < words.len() {
        let (start, word) = (at, words[at]);
        at += 1;
        match word {
            // `mod name {`, and `mod $name {` of a macro.
            "mod" if words[at..].iter().take(3).take_while(|&&word| word != ";").any(|&word| word == "{") => {
                module.push(words[start + 1].to_owned());
                inline.push(depth);
            }
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                if inline.last() == Some(&depth) {
                    inline.pop();
                    module.pop();
                }
            }
            _ => {}
        }
        if !["crate", "super"].contains(&word) || (start > 0 && ["::", "$"].contains(&words[start - 1])) {
            continue;
        }
        let mut tree = Vec::new();
        leaves(&words, &mut at, &[word], &mut tree);
        for path in tree {
            let ups = path.iter().take_while(|&&word| word == "super").count();
            let base = if ups == 0 { &[][..] } else { &module[..module.len().saturating_sub(ups)] };
            let rest = path.iter().skip(ups.max(1)).filter(|&&word| word != "self");
            found.push(base.iter().cloned().chain(rest.map(|&word| word.to_owned())).collect());
        }
    }
    found
}

/// What the root of a crate re-exports, by name, with the top-level module that has it.
fn re_exports(roots: &[&Source], modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for root in roots {
        let words = words(&root.text);
        for at in 0..words.len() {
            if words[at] != "use" {
                continue;
            }
            let mut next = at + 1;
            let start = if ["self", "crate"].contains(&words[next]) { next + 2 } else { next };
            next = start + 1;
            let mut tree = Vec::new();
            leaves(&words, &mut next, &[words[start]], &mut tree);
            for path in tree.iter().filter(|path| modules.contains(path[0])) {
                found.insert((*path.last().unwrap()).to_owned(), path[0].to_owned());
            }
        }
    }
    found
}

/// The top-level modules of a crate, each with those that it imports.
fn imports(krate: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let sources = sources(&krate.join("src"));
    let modules: BTreeSet<String> =
        sources.iter().filter_map(|source| source.module.first().cloned()).collect();
    let (roots, others): (Vec<&Source>, Vec<&Source>) =
        sources.iter().partition(|source| source.module.is_empty());
    let re_exports = re_exports(&roots, &modules);
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in others {
        let of = &source.module[0];
        let edges = graph.entry(of.clone()).or_default();
        for path in inner_paths(source) {
            let Some(first) = path.first() else { continue };
            match modules.get(first).or_else(|| re_exports.get(first)) {
                Some(module) => edges.extend((module != of).then(|| module.clone())),
                None => panic!("{}: {of} imports `{first}`, which lib.rs defines itself", name(krate)),
            }
        }
    }
    graph
}

/// Modules that import one another, in a circle.
fn cycle(graph: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    fn visit<'g>(
        module: &'g str,
        graph: &'g BTreeMap<String, BTreeSet<String>>,
        path: &mut Vec<&'g str>,
        done: &mut BTreeSet<&'g str>,
    ) -> Option<Vec<String>> {
        if let Some(start) = path.iter().position(|&before| before == module) {
            return Some(path[start..].iter().chain([&module]).map(|&name| name.to_owned()).collect());
        }
        if !done.contains(module) {
            path.push(module);
            let found =
                graph.get(module).into_iter().flatten().find_map(|next| visit(next, graph, path, done));
            if found.is_some() {
                return found;
            }
            path.pop();
            done.insert(module);
        }
        None
    }
    let mut done = BTreeSet::new();
    graph.keys().find_map(|module| visit(module, graph, &mut Vec::new(), &mut done))
}

#[test]
fn no_top_level_modules_import_one_another() {
    let mut checked = 0;
    for krate in crates() {
        let graph = imports(&krate);
        checked += graph.len();
        if let Some(cycle) = cycle(&graph) {
            panic!(
                "{}: {} form a cycle; move what they share into a module below both",
                name(&krate),
                cycle.join(" → ")
            );
        }
    }
    assert!(checked > 50, "only {checked} modules were found");
}

#[test]
fn a_cycle_is_found_through_re_exports_and_groups() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    fs::create_dir(&src).unwrap();
    let write = |file: &str, text: &str| fs::write(src.join(file), text).unwrap();
    write("lib.rs", "mod one;\nmod two;\npub use two::{Second as Renamed, Two};\n");
    write("one.rs", "//! Uses `crate::nothing`.\nuse super::Two;\n");
    write("two.rs", "use std::fmt;\npub(crate) struct Two;\n");
    assert_eq!(cycle(&imports(dir.path())), None);
    write("two.rs", "use crate::{\n    one::{self, One},\n};\n");
    assert_eq!(cycle(&imports(dir.path())).unwrap().join(" "), "one two one");
    // Test modules may import anything, and the code behind them is checked.
    let tests = "\n#[cfg(test)]\nmod tests;\n\n#[cfg(test)]\nmod more {\n    use crate::one;\n}\n";
    write("two.rs", &format!("use std::fmt;\n{tests}pub(crate) struct Two;\n"));
    assert_eq!(cycle(&imports(dir.path())), None);
    write("two.rs", &format!("use std::fmt;\n{tests}use crate::one;\n"));
    assert_eq!(cycle(&imports(dir.path())).unwrap().join(" "), "one two one");
}

#[test]
fn crates_depend_only_on_crates_below_them() {
    for krate in crates() {
        let place = |wanted: &str| {
            let found = LAYERS.iter().position(|layer| *layer == wanted);
            found.unwrap_or_else(|| panic!("{wanted} is missing from the layers"))
        };
        let manifest = fs::read_to_string(krate.join("Cargo.toml")).unwrap();
        for dependency in dependencies(&manifest) {
            let own = name(&krate);
            assert!(place(dependency) < place(own), "{own} depends on {dependency}, which is above it");
        }
    }
}

/// The crates of the workspace that a manifest names, except for tests.
fn dependencies(manifest: &str) -> Vec<&str> {
    let sections = manifest.split("\n[").filter(|section| {
        let heading = section.lines().next().unwrap_or_default();
        heading.ends_with("dependencies]") && !heading.ends_with("dev-dependencies]")
    });
    let names = sections.flat_map(str::lines).map(|line| line.split(['.', ' ', '=']).next().unwrap());
    names.filter(|name| name.starts_with("rollout")).collect()
}

#[test]
fn dependencies_of_all_kinds_except_those_of_tests_are_checked() {
    let manifest = "[package]\nname = \"rollout-x\"\n\n[dependencies]\nrollout-a.workspace = true\nserde = \"1\"\n\n\
        [dev-dependencies]\nrollout-b.workspace = true\n\n[build-dependencies]\nrollout-c = { path = \"c\" }\n\n\
        [target.'cfg(unix)'.dependencies]\nrollout-d.workspace = true\n\n\
        [target.'cfg(unix)'.dev-dependencies]\nrollout-e.workspace = true\n";
    assert_eq!(dependencies(manifest), ["rollout-a", "rollout-c", "rollout-d"]);
}

/// The files of a walk of ARCHITECTURE.md, each as its crate and its path in `src/`. A name without a crate belongs to
/// the crate of the file before it.
fn walk(text: &str) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = Vec::new();
    for name in text.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs")) {
        let (krate, path) = match (name.split_once("/src/"), files.last()) {
            (Some((krate, path)), _) => (krate.to_owned(), path),
            (None, Some((krate, _))) => (krate.clone(), name),
            (None, None) => panic!("the first file of a walk has no crate: {name}"),
        };
        files.push((krate, path.to_owned()));
    }
    files
}

/// The module of a file in `src/`.
fn module(path: &str) -> Vec<String> {
    let path = path.strip_suffix(".rs").unwrap();
    let mut module: Vec<String> = path.split('/').map(str::to_owned).collect();
    if ["mod", "lib", "main"].contains(&&*module[module.len() - 1]) {
        module.pop();
    }
    module
}

/// The walks of ARCHITECTURE.md: the text of each.
fn walks(text: &str) -> Vec<&str> {
    let part = text.split_once("\n## Four walks through the code\n").unwrap().1;
    let part = part.split("\n## ").next().unwrap();
    let starts = part.split("\n**").skip(1);
    // The first walk is a list, and every other one a paragraph.
    starts
        .map(|walk| match walk.split_once("\n\n1. ") {
            Some((_, list)) => list.split("\n\n").next().unwrap(),
            None => walk.split("\n\n").next().unwrap(),
        })
        .collect()
}

#[test]
fn files_of_a_walk_use_no_functions_of_files_before_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let walks = walks(&text);
    assert_eq!(walks.len(), 4);
    let of_a_container = walk(walks[0]).len();
    assert!(of_a_container <= 20, "the walk of a container trial opens {of_a_container} files");
    let mut backwards = Vec::new();
    for files in walks.into_iter().map(walk) {
        assert!(files.len() > 5, "a walk has only {files:?}");
        for (place, (krate, path)) in files.iter().enumerate() {
            let src = root.join("crates").join(krate).join("src");
            let modules: BTreeSet<Vec<String>> =
                sources(&src).into_iter().map(|source| source.module).collect();
            let own = module(path);
            let source =
                sources(&src).into_iter().find(|source| source.module == own && src.join(path).is_file());
            let source = source.unwrap_or_else(|| panic!("{krate}/src/{path} does not exist"));
            let before = files[..place].iter().filter(|(other, _)| other == krate);
            let before: Vec<_> = before.map(|(_, path)| module(path)).collect();
            for used in inner_paths(&source) {
                let is_before = |path: &[String]| before.iter().any(|module| **module == *path);
                let is_function =
                    used.last().is_some_and(|name| name.starts_with(|c: char| c.is_lowercase()))
                        && !modules.contains(&used);
                // A module above is only named to limit who sees something, as in `pub(super)`.
                let is_module = is_before(&used) && !own.starts_with(&used);
                if is_module || (is_function && is_before(&used[..used.len() - 1])) {
                    backwards.push(format!("{krate}/src/{path} uses {}", used.join("::")));
                }
            }
        }
    }
    assert_eq!(backwards, Vec::<String>::new());
}

#[test]
fn no_two_public_types_have_one_name() {
    let mut types: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for krate in crates().into_iter().chain(examples()) {
        for source in sources(&krate.join("src")) {
            let words = words(&source.text);
            for three in words.windows(3) {
                if three[0] == "pub" && ["struct", "enum", "trait", "type", "union"].contains(&three[1]) {
                    let place = format!("{}::{}", name(&krate), source.module.join("::"));
                    assert!(
                        types.entry(three[2].to_owned()).or_default().insert(place.clone()),
                        "{place} has two types named {}",
                        three[2]
                    );
                }
            }
        }
    }
    types.retain(|_, places| places.len() > 1);
    assert!(types.is_empty(), "give each of these types a name of its own: {types:#?}");
}
