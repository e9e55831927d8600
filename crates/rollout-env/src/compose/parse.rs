//! Reads a compose file: its text, its variables, and its top level.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Component, Path, PathBuf},
};

use rollout_settings::{
    Code, Diagnostic, Expanded, Node, Problems, Reader, Section, SourceFiles, Span, Value, Vars,
    diagnostic::{nearest, quoted},
    read_text,
    section::scalar_text,
    yaml,
};

use super::{
    ComposeFile, ComposeNetwork,
    interpolate::interpolate,
    keys::{self, Keys},
    order::order,
    service,
};

/// The network of services that name none.
pub(super) const DEFAULT_NETWORK: &str = "default";

/// A compose file to read.
pub struct ComposeSource<'a> {
    /// The file. Relative paths in it are relative to its directory.
    pub file: &'a Path,
    /// The directory that paths in it must not leave.
    pub task_dir: &'a Path,
    /// The variables. Without them, values with variables are not checked.
    pub vars: Option<&'a Vars<'a>>,
}

/// A file that is being read.
pub(super) struct Context<'a> {
    pub(super) reader: Reader<'a>,
    /// The directory of the file.
    pub(super) dir: PathBuf,
    /// The directory of the task.
    task_dir: PathBuf,
    pub(super) vars: Option<&'a Vars<'a>>,
    /// The variables that were inserted in values, by the position of the value.
    inserted: HashMap<usize, Vec<(String, String)>>,
    /// The positions of values whose variables are unknown.
    unknown: HashSet<usize>,
}

impl ComposeFile {
    /// Reads a compose file. An error has all problems.
    pub fn load(source: &ComposeSource<'_>) -> Result<Self, Problems> {
        let name = source.file.display().to_string();
        let unreadable =
            |message: String| Problems::new(vec![Diagnostic::about_file(&name, Code::Unreadable, message)]);
        let text = read_text(source.file).map_err(unreadable)?;
        Self::parse(source, &text)
    }

    /// Reads the text of a compose file.
    pub fn parse(source: &ComposeSource<'_>, text: &str) -> Result<Self, Problems> {
        let mut sources = SourceFiles::default();
        let name = source.file.display().to_string();
        let mut tree = yaml::parse_file(&mut sources, &name, source.file, text)?;
        let reader = Reader::new(&sources, "", &|_| None);
        reader.check_duplicates(&tree);
        let canonical = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut context = Context {
            reader,
            dir: canonical(source.file.parent().unwrap_or(Path::new("."))),
            task_dir: canonical(source.task_dir),
            vars: source.vars,
            inserted: HashMap::new(),
            unknown: HashSet::new(),
        };
        context.expand(&mut tree);
        let file = read(&context, &tree);
        let (found, failed) = context.reader.finish();
        file.filter(|_| !failed).ok_or_else(|| Problems::new(found))
    }
}

impl Context<'_> {
    /// Expands the variables in all values.
    fn expand(&mut self, node: &mut Node) {
        let start = node.span.start;
        match &mut node.value {
            Value::String(text) if text.contains('$') => {
                let Some(vars) = self.vars else {
                    self.unknown.insert(start);
                    return;
                };
                match interpolate(text, vars) {
                    Ok(expanded) => {
                        self.inserted.insert(start, expanded.variables);
                        *text = expanded.text;
                    }
                    Err(error) => {
                        self.unknown.insert(start);
                        self.reader.error(node.span, Code::Variable, error.to_string());
                    }
                }
            }
            Value::List(items) => items.iter_mut().for_each(|item| self.expand(item)),
            Value::Map(entries) => entries.iter_mut().for_each(|entry| self.expand(&mut entry.node)),
            _ => {}
        }
    }

    /// Whether the value is not known, because its variables are not.
    pub(super) fn is_unknown(&self, node: &Node) -> bool {
        self.unknown.contains(&node.span.start)
    }

    /// The value at a position with the variables that were inserted in it.
    pub(super) fn expanded(&self, span: Span, text: String) -> Expanded {
        Expanded { text, variables: self.inserted.get(&span.start).cloned().unwrap_or_default() }
    }

    pub(super) fn invalid(&self, node: &Node, message: impl Into<String>) {
        if !self.is_unknown(node) {
            self.reader.error(node.span, Code::InvalidValue, message);
        }
    }

    pub(super) fn unsupported(&self, span: Span, what: &str, hint: &str) {
        let message = format!("{what} is not supported");
        self.reader.error_with_hint(span, Code::UnknownKey, message, hint);
    }

    /// A mapping whose keys are all known.
    pub(super) fn section<'r>(&'r self, node: &'r Node, path: &str, keys: &Keys) -> Option<Section<'r>> {
        let section = self.reader.mapping(node, path)?;
        for entry in section.entries.iter().filter(|entry| !keys.allows(&entry.key)) {
            let known: Vec<&str> = keys.read.iter().chain(keys.ignored).copied().collect();
            let hint = match nearest(&entry.key, &known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "the task would have a different meaning without it".to_owned(),
            };
            self.unsupported(entry.key_span, &quoted(&section.at(&entry.key)), &hint);
        }
        Some(section)
    }

    /// A text, or a number or boolean as text.
    pub(super) fn text(&self, node: &Node, path: &str) -> Option<String> {
        let text = scalar_text(self.reader.sources, node);
        if text.is_none() {
            self.reader.wrong_type(node, path, "a string");
        }
        text
    }

    /// A text, or a list of texts.
    pub(super) fn texts(&self, node: &Node, path: &str) -> Vec<String> {
        match &node.value {
            Value::List(items) => items.iter().filter_map(|item| self.text(item, path)).collect(),
            _ => self.text(node, path).into_iter().collect(),
        }
    }

    /// True or false, also as a text from a variable.
    pub(super) fn flag(&self, section: &Section<'_>, key: &str) -> bool {
        let Some(node) = section.node(key) else { return false };
        match &node.value {
            Value::Bool(flag) => *flag,
            Value::String(text) if ["true", "false"].contains(&text.as_str()) => text == "true",
            _ if self.is_unknown(node) => false,
            _ => {
                self.reader.wrong_type(node, &section.at(key), "true or false");
                false
            }
        }
    }

    /// A value in a form of its own.
    pub(super) fn parsed<T>(
        &self,
        section: &Section<'_>,
        key: &str,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let node = section.node(key)?;
        let text = self.text(node, &section.at(key))?;
        let parsed = parse(&text);
        if parsed.is_none() {
            self.invalid(node, format!("`{}` must be {expected}, not {}", section.at(key), quoted(&text)));
        }
        parsed
    }

    /// Pairs of a mapping, or of a list of `KEY=value`. A value may be absent.
    pub(super) fn pairs(&self, node: &Node, path: &str) -> Vec<(String, Option<String>, Span)> {
        let mut pairs = Vec::new();
        match &node.value {
            Value::Map(entries) => {
                for entry in entries {
                    let value = match entry.node.is_null() {
                        true => None,
                        false => match self.text(&entry.node, &format!("{path}.{}", entry.key)) {
                            Some(text) => Some(text),
                            None => continue,
                        },
                    };
                    pairs.push((entry.key.clone(), value, entry.node.span));
                }
            }
            Value::List(items) => {
                for item in items {
                    let Some(text) = self.text(item, path) else { continue };
                    match text.split_once('=') {
                        Some((key, value)) => pairs.push((key.to_owned(), Some(value.to_owned()), item.span)),
                        None => pairs.push((text, None, item.span)),
                    }
                }
            }
            Value::Null => {}
            _ => self.reader.wrong_type(node, path, "a mapping or a list"),
        }
        pairs
    }

    /// A path of the task, made absolute. Reports a path outside of it.
    pub(super) fn task_path(&self, node: &Node, written: &str) -> Option<PathBuf> {
        let mut path = self.dir.clone();
        for component in Path::new(written).components() {
            match component {
                Component::Normal(name) => path.push(name),
                Component::CurDir => {}
                Component::ParentDir => _ = path.pop(),
                Component::RootDir | Component::Prefix(_) => path = PathBuf::from("/"),
            }
        }
        // A link may lead elsewhere.
        let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        if !path.starts_with(&self.task_dir) || !real.starts_with(&self.task_dir) {
            let message = format!("{} is outside of the task", quoted(written));
            self.invalid(node, message);
            return None;
        }
        Some(path)
    }
}

fn read(context: &Context<'_>, tree: &Node) -> Option<ComposeFile> {
    let root = context.section(tree, "", &keys::FILE)?;
    let networks = networks(context, &root);
    let volumes = volumes(context, &root);
    let files = FileSources {
        configs: file_sources(context, &root, "configs"),
        secrets: file_sources(context, &root, "secrets"),
    };
    let Some(listed) = root.mapping("services") else {
        root.missing("services", "write at least the service `main`");
        return None;
    };
    let mut services = Vec::new();
    let mut secrets = Vec::new();
    for entry in listed.entries {
        if !is_name(&entry.key) {
            let message = format!("{} cannot be the name of a service", quoted(&entry.key));
            context.reader.error(entry.key_span, Code::InvalidName, message);
            continue;
        }
        let path = format!("services.{}", entry.key);
        if let Some(section) = context.section(&entry.node, &path, &keys::SERVICE) {
            services.extend(service::read(context, &entry.key, &section, &files, &mut secrets));
        }
    }
    let known: HashSet<String> = services.iter().map(|service| service.name.clone()).collect();
    for service in &mut services {
        let names = listed.inside(&service.name);
        service.depends_on.retain(|dependency| {
            let is_known = known.contains(&dependency.service);
            // A service that another profile would start does not exist.
            if !is_known && listed.entry(&dependency.service).is_none() {
                let message =
                    format!("there is no service {}, on which this one depends", quoted(&dependency.service));
                names.invalid("depends_on", message);
            }
            is_known
        });
        for (network, _) in &service.networks {
            let is_known = network == DEFAULT_NETWORK || networks.iter().any(|known| known.name == *network);
            if !is_known {
                names.invalid("networks", format!("there is no network {} in this file", quoted(network)));
            }
        }
        for mount in &service.mounts {
            if let super::MountSource::Volume(volume) = &mount.source
                && !volumes.contains(volume)
            {
                names.invalid("volumes", format!("there is no volume {} in this file", quoted(volume)));
            }
        }
    }
    let services = match order(services) {
        Ok(services) => services,
        Err(cycle) => {
            let message = format!("services depend on each other: {}", cycle.join(", "));
            root.invalid("services", message);
            return None;
        }
    };
    Some(ComposeFile { services, networks, volumes, secrets })
}

/// The files of `configs` or `secrets`, by name. An invalid one was reported, and has no path.
pub(super) type NamedFiles = HashMap<String, Option<PathBuf>>;

/// Files that services can name.
pub(super) struct FileSources {
    pub(super) configs: NamedFiles,
    pub(super) secrets: NamedFiles,
}

fn file_sources(context: &Context<'_>, root: &Section<'_>, key: &str) -> NamedFiles {
    let listed = root.mapping(key).unwrap_or_else(|| root.empty(key));
    let file = |entry: &rollout_settings::Entry| {
        let section = context.section(&entry.node, &listed.at(&entry.key), &keys::FILE_SOURCE)?;
        let Some(node) = section.node("file") else {
            section.missing("file", "write the path of a file of the task");
            return None;
        };
        let written = context.text(node, &section.at("file"))?;
        let path = context.task_path(node, &written)?;
        if !context.is_unknown(node) && !path.is_file() {
            context.invalid(node, format!("there is no file {}", quoted(&written)));
            return None;
        }
        Some(path)
    };
    listed.entries.iter().map(|entry| (entry.key.clone(), file(entry))).collect()
}

fn is_name(name: &str) -> bool {
    let allowed = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    !name.is_empty()
        && name.chars().all(allowed)
        && name.starts_with(|char: char| char.is_ascii_alphanumeric())
}

fn networks(context: &Context<'_>, root: &Section<'_>) -> Vec<ComposeNetwork> {
    let mut networks = Vec::new();
    let listed = root.mapping("networks").unwrap_or_else(|| root.empty("networks"));
    for entry in listed.entries {
        let Some(section) = context.section(&entry.node, &listed.at(&entry.key), &keys::NETWORK) else {
            continue;
        };
        if let Some(external) = section.entry("external")
            && context.flag(&section, "external")
        {
            let hint = "networks are created for each trial";
            context.unsupported(external.key_span, &quoted(&section.at("external")), hint);
        }
        if let Some(node) = section.node("driver")
            && context.text(node, &section.at("driver")).is_some_and(|driver| driver != "bridge")
        {
            context.invalid(node, format!("`{}` can only be `bridge`", section.at("driver")));
        }
        let internal = context.flag(&section, "internal");
        networks.push(ComposeNetwork { name: entry.key.clone(), internal });
    }
    networks
}

fn volumes(context: &Context<'_>, root: &Section<'_>) -> Vec<String> {
    let mut volumes = Vec::new();
    let listed = root.mapping("volumes").unwrap_or_else(|| root.empty("volumes"));
    for entry in listed.entries {
        let Some(section) = context.section(&entry.node, &listed.at(&entry.key), &keys::VOLUME) else {
            continue;
        };
        if let Some(external) = section.entry("external")
            && context.flag(&section, "external")
        {
            let hint = "volumes are created for each trial";
            context.unsupported(external.key_span, &quoted(&section.at("external")), hint);
        }
        if let Some(node) = section.node("driver")
            && context.text(node, &section.at("driver")).is_some_and(|driver| driver != "local")
        {
            context.invalid(node, format!("`{}` can only be `local`", section.at("driver")));
        }
        volumes.push(entry.key.clone());
    }
    volumes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, vars: Option<&Vars<'_>>) -> Result<ComposeFile, String> {
        let dir = tempfile::tempdir().unwrap();
        let environment = dir.path().join("environment");
        fs::create_dir(&environment).unwrap();
        let file = environment.join("docker-compose.yaml");
        let source = ComposeSource { file: &file, task_dir: dir.path(), vars };
        ComposeFile::parse(&source, text).map_err(|problems| {
            problems.to_string().replace(&environment.canonicalize().unwrap().display().to_string(), "")
        })
    }

    #[test]
    fn services_are_ordered_by_what_they_depend_on_and_main_is_last() {
        let text = "
x-common: &common
  image: busybox
  environment: {A: one}
services:
  main: {depends_on: [web]}
  web: {<<: *common, depends_on: {db: {condition: service_healthy}}}
  db: *common
  tool: {image: busybox, profiles: [manual]}
";
        let file = parse(text, None).unwrap();
        let names: Vec<&str> = file.services.iter().map(|service| service.name.as_str()).collect();
        assert_eq!(names, ["db", "web", "main"]);
        assert_eq!(file.services[1].environment[0].1.value, "one");
        assert!(!file.is_plain());
        assert!(parse("services: {main: {image: busybox}}", None).unwrap().is_plain());
        assert!(!parse("services: {main: {image: busybox, shm_size: 1g}}", None).unwrap().is_plain());
    }

    #[test]
    fn values_with_variables_are_not_checked_before_the_variables_are_known() {
        let text = "services: {main: {image: \"${IMAGE}\", shm_size: \"${SIZE}\", privileged: \"${BIG}\"}}";
        parse(text, None).unwrap();
        let vars = |name: &str| Some(if name == "SIZE" { "much" } else { "x" }.to_owned());
        let problem = parse(text, Some(&vars)).unwrap_err();
        assert!(
            problem.contains("`services.main.shm_size` must be a size such as `64m`, not `much`"),
            "{problem}"
        );
        let missing = parse(text, Some(&|_| None)).unwrap_err();
        assert!(missing.contains("the variable `IMAGE` is not set"), "{missing}");
    }

    #[test]
    fn secrets_are_values_of_variables_in_the_environment_of_services() {
        let text = "services: {main: {environment: {API_KEY: \"${KEY}\", MODE: \"${MODE}\"}}}";
        let vars = |name: &str| Some(if name == "KEY" { "sk-very-secret" } else { "fast" }.to_owned());
        let file = parse(text, Some(&vars)).unwrap();
        assert!(file.secrets.contains(&"sk-very-secret".to_owned()), "{:?}", file.secrets);
        assert!(!file.secrets.contains(&"fast".to_owned()), "{:?}", file.secrets);
    }

    #[test]
    fn platforms_inline_dockerfiles_and_security_options_are_read() {
        let text = "
services:
  main:
    platform: linux/amd64
    security_opt: ['no-new-privileges:true']
    build: {dockerfile_inline: \"FROM test\\nRUN true\\n\"}
";
        let file = parse(text, None).unwrap();
        let main = file.main().unwrap();
        assert_eq!(main.container.platform.as_deref(), Some("linux/amd64"));
        assert!(main.container.no_new_privileges && !file.is_plain());
        let inline = main.build.as_ref().unwrap().options.inline.as_deref();
        assert_eq!(inline, Some("FROM test\nRUN true\n"));
        for (main, expected) in [
            (
                "platform: windows/amd64",
                "`services.main.platform` must be a Linux platform such as `linux/amd64`",
            ),
            ("security_opt: ['apparmor:unconfined']", "`services.main.security_opt` is not supported"),
            (
                "build: {dockerfile: x, dockerfile_inline: FROM y}",
                "`services.main.build.dockerfile_inline` cannot be combined with `dockerfile`",
            ),
        ] {
            let problem = parse(&format!("services: {{main: {{{main}}}}}"), None).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
    }

    #[test]
    fn configs_and_secrets_are_files_of_the_task() {
        let text = "
services:
  main:
    image: test
    configs: [app, nowhere]
    secrets: [{source: token, target: own-token, mode: 0400}, outside]
configs: {app: {file: ./absent.conf}}
secrets:
  token: {environment: TOKEN}
  outside: {file: /etc/passwd}
";
        let problem = parse(text, None).unwrap_err();
        for expected in [
            "there is no file `./absent.conf`",
            "`configs` has no `nowhere`",
            "`secrets.token.environment` is not supported",
            "`/etc/passwd` is outside of the task",
        ] {
            assert!(problem.contains(expected), "{expected}: {problem}");
        }
    }

    #[test]
    fn services_that_depend_on_each_other_are_reported() {
        let text = "services: {a: {image: x, depends_on: [b]}, b: {image: x, depends_on: [a]}}";
        let problem = parse(text, None).unwrap_err();
        assert!(problem.contains("services depend on each other: a, b"), "{problem}");
        let external = parse("services: {main: {}}\nnetworks: {x: {external: true}}\n", None).unwrap_err();
        assert!(external.contains("`networks.x.external` is not supported"), "{external}");
    }
}
