//! Reads one service of a compose file.

use std::path::Path;

use rollout_settings::{EnvValue, Node, Section, Value, diagnostic::quoted, env_lines, read_text};

use super::{
    BuildOptions, ComposeService, ContainerSettings, Dependency, DependencyCondition, HealthcheckSource,
    MAIN_SERVICE, MountSource, RestartPolicy, ServiceBuild, ServiceHealthcheck, ServiceMount, keys,
    parse::{Context, DEFAULT_NETWORK, FileSources, NamedFiles},
    values,
};

/// Reads a service. `None` if it is invalid, or if only a profile would start it.
pub(super) fn read(
    context: &Context<'_>,
    name: &str,
    section: &Section<'_>,
    files: &FileSources,
    secrets: &mut Vec<String>,
) -> Option<ComposeService> {
    let profiles = section.node("profiles").map(|node| context.texts(node, &section.at("profiles")));
    if profiles.is_some_and(|profiles| !profiles.is_empty()) && name != MAIN_SERVICE {
        return None;
    }
    let build = section.node("build").and_then(|node| build(context, section, node));
    let image = text(context, section, "image").filter(|image| !image.is_empty());
    if build.is_none() && image.is_none() && section.node("build").is_none() && name != MAIN_SERVICE {
        let known = section.node("image").is_some_and(|node| context.is_unknown(node));
        if !known {
            section.missing("image", "write `image` or `build`");
        }
    }
    let (mut mounts, tmpfs) = mounts(context, name, section);
    mounts.extend(attached(context, section, "configs", "/", &files.configs));
    mounts.extend(attached(context, section, "secrets", "/run/secrets/", &files.secrets));
    let networks = networks(context, section);
    Some(ComposeService {
        name: name.to_owned(),
        image,
        build,
        command: command(context, section, "command"),
        entrypoint: command(context, section, "entrypoint"),
        environment: environment(context, section, secrets),
        networks,
        depends_on: depends_on(context, section),
        healthcheck: healthcheck(context, section),
        mounts,
        restart: restart(context, section),
        is_interactive: context.flag(section, "tty") || context.flag(section, "stdin_open"),
        container: container(context, section, tmpfs),
    })
}

fn text(context: &Context<'_>, section: &Section<'_>, key: &str) -> Option<String> {
    context.text(section.node(key)?, &section.at(key))
}

fn texts(context: &Context<'_>, section: &Section<'_>, key: &str) -> Vec<String> {
    section.node(key).map(|node| context.texts(node, &section.at(key))).unwrap_or_default()
}

fn build(context: &Context<'_>, section: &Section<'_>, node: &Node) -> Option<ServiceBuild> {
    if let Value::String(written) = &node.value {
        let context_dir = build_context(context, node, written)?;
        return Some(ServiceBuild { context: context_dir, options: BuildOptions::default() });
    }
    let section = context.section(node, &section.at("build"), &keys::BUILD)?;
    let dir = match section.node("context") {
        Some(node) => build_context(context, node, &context.text(node, &section.at("context"))?)?,
        None => context.dir.clone(),
    };
    let inline = text(context, &section, "dockerfile_inline");
    if inline.is_some() && section.node("dockerfile").is_some() {
        let message = format!("`{}` cannot be combined with `dockerfile`", section.at("dockerfile_inline"));
        section.invalid("dockerfile_inline", message);
        return None;
    }
    let dockerfile = match section.node("dockerfile") {
        Some(node) => Some(dockerfile(context, node, &dir, &context.text(node, &section.at("dockerfile"))?)?),
        None => None,
    };
    let mut args = Vec::new();
    if let Some(node) = section.node("args") {
        for (key, value, _) in context.pairs(node, &section.at("args")) {
            let value = value.or_else(|| context.vars.and_then(|vars| vars(&key)));
            args.extend(value.map(|value| (key, value)));
        }
    }
    let target = text(context, &section, "target");
    let dockerfile = dockerfile.filter(|dockerfile| dockerfile != "Dockerfile");
    let options = BuildOptions { dockerfile, inline, args, target };
    Some(ServiceBuild { context: dir, options })
}

fn build_context(context: &Context<'_>, node: &Node, written: &str) -> Option<std::path::PathBuf> {
    if context.is_unknown(node) {
        return Some(context.dir.clone());
    }
    if written.contains("://") || written.starts_with("git@") {
        context
            .invalid(node, format!("the build context {} is not a directory of the task", quoted(written)));
        return None;
    }
    let dir = context.task_path(node, written)?;
    if !dir.is_dir() {
        context.invalid(node, format!("the build context {} is not a directory", quoted(written)));
        return None;
    }
    Some(dir)
}

/// The path of a Dockerfile inside its context.
fn dockerfile(context: &Context<'_>, node: &Node, dir: &Path, written: &str) -> Option<String> {
    let inside = Path::new(written)
        .components()
        .all(|component| matches!(component, std::path::Component::Normal(_) | std::path::Component::CurDir));
    if !inside {
        context.invalid(node, format!("the Dockerfile {} must be inside its build context", quoted(written)));
        return None;
    }
    if !context.is_unknown(node) && !dir.join(written).is_file() {
        context.invalid(node, format!("there is no file {} in the build context", quoted(written)));
        return None;
    }
    Some(written.trim_start_matches("./").to_owned())
}

fn command(context: &Context<'_>, section: &Section<'_>, key: &str) -> Option<Vec<String>> {
    let node = section.node(key)?;
    if let Value::List(_) = node.value {
        return Some(context.texts(node, &section.at(key)));
    }
    let words = values::split_words(&context.text(node, &section.at(key))?);
    if words.is_none() {
        context.invalid(node, format!("`{}` has a quote that is not closed", section.at(key)));
    }
    words
}

fn environment(
    context: &Context<'_>,
    section: &Section<'_>,
    secrets: &mut Vec<String>,
) -> Vec<(String, EnvValue)> {
    let mut all: Vec<(String, EnvValue)> = Vec::new();
    let mut set = |key: String, value: EnvValue| match all.iter_mut().find(|(known, _)| *known == key) {
        Some((_, known)) => *known = value,
        None => all.push((key, value)),
    };
    for (key, value) in env_files(context, section) {
        // Files of the task are no secrets.
        set(key, EnvValue { value, secret: false });
    }
    if let Some(node) = section.node("environment") {
        for (key, value, span) in context.pairs(node, &section.at("environment")) {
            let (text, mut expanded) = match value {
                Some(value) => (value.clone(), context.expanded(span, value)),
                // A name alone passes the variable on, if it is set.
                None => match context.vars.and_then(|vars| vars(&key)) {
                    Some(value) => (value.clone(), context.expanded(span, value)),
                    None => continue,
                },
            };
            if expanded.variables.is_empty()
                && context.vars.and_then(|vars| vars(&key)).as_ref() == Some(&text)
            {
                expanded.variables.push((key.clone(), text.clone()));
            }
            let secret = expanded.is_secret(&key);
            if secret {
                secrets.extend(expanded.secrets());
            }
            set(key, EnvValue { value: text, secret });
        }
    }
    all
}

fn env_files(context: &Context<'_>, section: &Section<'_>) -> Vec<(String, String)> {
    let Some(node) = section.node("env_file") else { return Vec::new() };
    let path = section.at("env_file");
    let nodes = match &node.value {
        Value::List(nodes) => nodes.as_slice(),
        _ => std::slice::from_ref(node),
    };
    let mut all = Vec::new();
    for node in nodes {
        let (node, written, required) = match &node.value {
            Value::Map(_) => {
                let Some(entry) = context.section(node, &path, &keys::ENV_FILE) else { continue };
                let Some(node) = entry.node("path") else {
                    entry.missing("path", "write the path of the file");
                    continue;
                };
                let required = entry.node("required").is_none() || context.flag(&entry, "required");
                (node, context.text(node, &path), required)
            }
            _ => (node, context.text(node, &path), true),
        };
        let Some(file) = written.and_then(|written| context.task_path(node, &written)) else { continue };
        if !required && !file.exists() {
            continue;
        }
        match read_text(&file) {
            Ok(text) => {
                for (_, key, value) in env_lines(&text) {
                    let value = value.map(str::to_owned).or_else(|| context.vars.and_then(|vars| vars(key)));
                    all.extend(value.map(|value| (key.to_owned(), value)));
                }
            }
            Err(problem) => context.invalid(node, format!("env_file: {problem}")),
        }
    }
    all
}

fn networks(context: &Context<'_>, section: &Section<'_>) -> Vec<(String, Vec<String>)> {
    if let Some(entry) = section.entry("network_mode") {
        let mode = context.text(&entry.node, &section.at("network_mode")).unwrap_or_default();
        match mode.as_str() {
            "none" => return Vec::new(),
            "bridge" | "default" => {}
            _ if context.is_unknown(&entry.node) => {}
            _ => {
                let what = format!("`{}: {mode}`", section.at("network_mode"));
                context.unsupported(entry.node.span, &what, "services share a network of the trial");
            }
        }
    }
    let default = vec![(DEFAULT_NETWORK.to_owned(), Vec::new())];
    let Some(node) = section.node("networks") else { return default };
    match &node.value {
        Value::Map(entries) => entries
            .iter()
            .filter_map(|entry| {
                let path = section.at(&format!("networks.{}", entry.key));
                let options = context.section(&entry.node, &path, &keys::ENDPOINT)?;
                Some((entry.key.clone(), texts(context, &options, "aliases")))
            })
            .collect(),
        _ => {
            let names = context.texts(node, &section.at("networks"));
            names.into_iter().map(|name| (name, Vec::new())).collect()
        }
    }
}

fn depends_on(context: &Context<'_>, section: &Section<'_>) -> Vec<Dependency> {
    let Some(node) = section.node("depends_on") else { return Vec::new() };
    let path = section.at("depends_on");
    let Value::Map(entries) = &node.value else {
        let started = |service| Dependency { service, condition: DependencyCondition::Started };
        return context.texts(node, &path).into_iter().map(started).collect();
    };
    let mut all = Vec::new();
    for entry in entries {
        let path = format!("{path}.{}", entry.key);
        let Some(options) = context.section(&entry.node, &path, &keys::DEPENDENCY) else { continue };
        let words = [
            ("service_started", DependencyCondition::Started),
            ("service_healthy", DependencyCondition::Healthy),
            ("service_completed_successfully", DependencyCondition::Completed),
        ];
        let condition = options.word("condition", &words).unwrap_or(DependencyCondition::Started);
        all.push(Dependency { service: entry.key.clone(), condition });
    }
    all
}

fn healthcheck(context: &Context<'_>, section: &Section<'_>) -> HealthcheckSource {
    let Some(node) = section.node("healthcheck") else { return HealthcheckSource::Image };
    let Some(section) = context.section(node, &section.at("healthcheck"), &keys::HEALTHCHECK) else {
        return HealthcheckSource::Image;
    };
    if context.flag(&section, "disable") {
        return HealthcheckSource::Disabled;
    }
    let argv = match section.node("test") {
        None => None,
        Some(node) => match &node.value {
            Value::List(_) => {
                let words = context.texts(node, &section.at("test"));
                match words.split_first() {
                    Some((kind, _)) if kind == "NONE" => return HealthcheckSource::Disabled,
                    Some((kind, rest)) if kind == "CMD" && !rest.is_empty() => Some(rest.to_vec()),
                    Some((kind, [line])) if kind == "CMD-SHELL" => Some(shell(line)),
                    _ => {
                        let message =
                            format!("`{}` must begin with `CMD`, `CMD-SHELL` or `NONE`", section.at("test"));
                        context.invalid(node, message);
                        None
                    }
                }
            }
            _ => context.text(node, &section.at("test")).map(|line| shell(&line)),
        },
    };
    let time = |key: &str| context.parsed(&section, key, "a duration such as `10s`", values::duration);
    HealthcheckSource::File(ServiceHealthcheck {
        argv,
        interval: time("interval"),
        timeout: time("timeout"),
        start_period: time("start_period"),
        retries: context.parsed(&section, "retries", "a whole number", |text| text.trim().parse().ok()),
    })
}

fn shell(line: &str) -> Vec<String> {
    ["sh", "-c", line].map(str::to_owned).to_vec()
}

fn restart(context: &Context<'_>, section: &Section<'_>) -> RestartPolicy {
    let policy =
        context.parsed(section, "restart", "`no`, `always`, `unless-stopped` or `on-failure`", |text| {
            match text.split_once(':') {
                None => match text {
                    "no" | "false" => Some(RestartPolicy::Never),
                    "always" | "unless-stopped" => Some(RestartPolicy::Always),
                    "on-failure" => Some(RestartPolicy::OnFailure(None)),
                    _ => None,
                },
                Some(("on-failure", times)) => {
                    times.parse().ok().map(|times| RestartPolicy::OnFailure(Some(times)))
                }
                Some(_) => None,
            }
        });
    policy.unwrap_or(RestartPolicy::Never)
}

type Tmpfs = Vec<(String, String)>;

fn mounts(context: &Context<'_>, name: &str, section: &Section<'_>) -> (Vec<ServiceMount>, Tmpfs) {
    let (mut mounts, mut tmpfs) = (Vec::new(), Vec::new());
    for text in texts(context, section, "tmpfs") {
        let (path, options) = text.split_once(':').unwrap_or((&text, ""));
        tmpfs.push((path.to_owned(), options.to_owned()));
    }
    for node in section.list("volumes").unwrap_or_default() {
        let path = section.at("volumes");
        let (kind, source, target, read_only) = match &node.value {
            Value::Map(_) => {
                let Some(mount) = context.section(node, &path, &keys::MOUNT) else { continue };
                let kind = text(context, &mount, "type").unwrap_or_default();
                let Some(target) = text(context, &mount, "target") else {
                    mount.missing("target", "write an absolute path inside");
                    continue;
                };
                (kind, text(context, &mount, "source"), target, context.flag(&mount, "read_only"))
            }
            _ => {
                let Some(written) = context.text(node, &path) else { continue };
                if context.is_unknown(node) {
                    continue;
                }
                let (source, target, options) = values::short_mount(&written);
                let kind = match source {
                    Some(source) if source.starts_with(['.', '/', '~']) => "bind",
                    _ => "volume",
                };
                let read_only = options.contains(&"ro");
                (kind.to_owned(), source.map(str::to_owned), target.to_owned(), read_only)
            }
        };
        // Rollout provides the directories of logs itself.
        if name == MAIN_SERVICE && (target == "/logs" || target.starts_with("/logs/")) {
            continue;
        }
        if !target.starts_with('/') {
            context.invalid(node, format!("the path {} of a volume must be absolute", quoted(&target)));
            continue;
        }
        let source = match (kind.as_str(), source) {
            ("tmpfs", _) => {
                tmpfs.push((target, String::new()));
                continue;
            }
            ("bind", Some(source)) => match context.task_path(node, &source) {
                Some(path) => MountSource::Files(path),
                None => continue,
            },
            ("volume", Some(source)) => MountSource::Volume(source),
            // An anonymous volume starts with the files of the image, as the container itself does.
            ("volume", None) => continue,
            _ => {
                context.invalid(node, "a volume must be of type `bind`, `volume` or `tmpfs`");
                continue;
            }
        };
        mounts.push(ServiceMount { source, target, read_only });
    }
    (mounts, tmpfs)
}

/// The mounts of `configs` or `secrets`. A target that is not absolute is below `base`.
fn attached(
    context: &Context<'_>,
    section: &Section<'_>,
    key: &str,
    base: &str,
    known: &NamedFiles,
) -> Vec<ServiceMount> {
    let path = section.at(key);
    let mut mounts = Vec::new();
    for node in section.list(key).unwrap_or_default() {
        let (name, target) = match &node.value {
            Value::Map(_) => {
                let Some(entry) = context.section(node, &path, &keys::FILE_TARGET) else { continue };
                let Some(name) = text(context, &entry, "source") else {
                    entry.missing("source", &format!("write a name of `{key}`"));
                    continue;
                };
                (name, text(context, &entry, "target"))
            }
            _ => {
                let Some(name) = context.text(node, &path) else { continue };
                (name, None)
            }
        };
        let Some(file) = known.get(&name) else {
            context.invalid(node, format!("`{key}` has no {}", quoted(&name)));
            continue;
        };
        let target = target.unwrap_or(name);
        let target = if target.starts_with('/') { target } else { format!("{base}{target}") };
        let mount = |file: &std::path::PathBuf| ServiceMount {
            source: MountSource::Files(file.clone()),
            target,
            read_only: true,
        };
        mounts.extend(file.as_ref().map(mount));
    }
    mounts
}

/// Whether the programs of a service cannot gain privileges. Options that loosen the isolation are reported.
fn no_new_privileges(context: &Context<'_>, section: &Section<'_>) -> bool {
    let mut set = false;
    for option in texts(context, section, "security_opt") {
        match option.replacen('=', ":", 1).as_str() {
            "no-new-privileges" | "no-new-privileges:true" => set = true,
            "no-new-privileges:false" => {}
            _ => {
                let Some(entry) = section.entry("security_opt") else { continue };
                let what = quoted(&section.at("security_opt"));
                context.unsupported(
                    entry.key_span,
                    &what,
                    "only the option `no-new-privileges` is supported",
                );
            }
        }
    }
    set
}

/// The platform of a service. Whether it is the engine's is found when the container is created.
fn platform(context: &Context<'_>, section: &Section<'_>) -> Option<String> {
    context.parsed(section, "platform", "a Linux platform such as `linux/amd64`", |text| {
        let parts: Vec<&str> = text.split('/').collect();
        let is_platform = matches!(parts[..], ["linux", arch] | ["linux", arch, _] if !arch.is_empty());
        is_platform.then(|| text.to_owned())
    })
}

fn container(context: &Context<'_>, section: &Section<'_>, tmpfs: Tmpfs) -> ContainerSettings {
    let size = |section: &Section<'_>, key: &str| {
        context.parsed(section, key, "a size such as `64m`", values::bytes)
    };
    let millis = |section: &Section<'_>, key: &str| {
        let parse = |text: &str| text.trim().parse::<f64>().ok().filter(|cpus| *cpus >= 0.0 && *cpus < 1e6);
        context.parsed(section, key, "a number of CPUs", parse).map(|cpus| (cpus * 1000.0) as u64)
    };
    let whole = |section: &Section<'_>, key: &str| {
        context.parsed(section, key, "a whole number", |text| text.trim().parse::<i64>().ok())
    };
    let mut memory = size(section, "mem_limit");
    let mut cpus = millis(section, "cpus");
    let mut pids = whole(section, "pids_limit");
    if let Some(deploy) =
        section.node("deploy").and_then(|node| context.section(node, &section.at("deploy"), &keys::DEPLOY))
    {
        if let Some(node) = deploy.node("replicas")
            && whole(&deploy, "replicas").is_some_and(|replicas| replicas != 1)
        {
            let what = format!("`{}` other than 1", deploy.at("replicas"));
            context.unsupported(node.span, &what, "a service is one container");
        }
        if let Some(resources) = deploy
            .node("resources")
            .and_then(|node| context.section(node, &deploy.at("resources"), &keys::RESOURCES))
        {
            if let Some(node) = resources.node("reservations") {
                let _ = context.section(node, &resources.at("reservations"), &keys::RESERVATIONS);
            }
            if let Some(limits) = resources
                .node("limits")
                .and_then(|node| context.section(node, &resources.at("limits"), &keys::LIMITS))
            {
                memory = memory.or(size(&limits, "memory"));
                cpus = cpus.or(millis(&limits, "cpus"));
                pids = pids.or(whole(&limits, "pids"));
            }
        }
    }
    let pairs = |key: &str| {
        let pairs = section.node(key).map(|node| context.pairs(node, &section.at(key))).unwrap_or_default();
        pairs.into_iter().map(|(key, value, _)| (key, value.unwrap_or_default())).collect::<Vec<_>>()
    };
    let hosts = match section.node("extra_hosts").map(|node| &node.value) {
        Some(Value::Map(_)) => {
            pairs("extra_hosts").into_iter().map(|(name, address)| format!("{name}:{address}")).collect()
        }
        Some(_) => texts(context, section, "extra_hosts")
            .into_iter()
            .map(|host| host.replacen('=', ":", 1))
            .collect(),
        None => Vec::new(),
    };
    ContainerSettings {
        user: text(context, section, "user"),
        working_dir: text(context, section, "working_dir"),
        hostname: text(context, section, "hostname"),
        cap_add: texts(context, section, "cap_add"),
        cap_drop: texts(context, section, "cap_drop"),
        shm_bytes: size(section, "shm_size"),
        tmpfs,
        extra_hosts: hosts,
        dns: texts(context, section, "dns"),
        sysctls: pairs("sysctls"),
        ulimits: ulimits(context, section),
        group_add: texts(context, section, "group_add"),
        read_only: context.flag(section, "read_only"),
        privileged: context.flag(section, "privileged"),
        no_new_privileges: no_new_privileges(context, section),
        platform: platform(context, section),
        memory_bytes: memory.filter(|bytes| *bytes > 0),
        cpu_millis: cpus.filter(|millis| *millis > 0),
        pids: pids.and_then(|pids| u64::try_from(pids).ok()).filter(|pids| *pids > 0),
        ..ContainerSettings::default()
    }
}

fn ulimits(context: &Context<'_>, section: &Section<'_>) -> Vec<(String, i64, i64)> {
    let Some(limits) = section.mapping("ulimits") else { return Vec::new() };
    let mut all = Vec::new();
    for entry in limits.entries {
        let number = |section: &Section<'_>, key: &str| {
            context.parsed(section, key, "a whole number", |text| text.trim().parse::<i64>().ok())
        };
        let both = match &entry.node.value {
            Value::Map(_) => {
                let pair = limits.inside(&entry.key);
                number(&pair, "soft").zip(number(&pair, "hard"))
            }
            _ => number(&limits, &entry.key).map(|limit| (limit, limit)),
        };
        all.extend(both.map(|(soft, hard)| (entry.key.clone(), soft, hard)));
    }
    all
}
