//! Runs every command of the documentation as written.
//!
//! Each page has a copy of the examples, a network of its own with only loopback, and the commands that are built
//! already. Its blocks run in order in one shell, from the root of the copy.

use std::{
    fmt::Write as _,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
};

use rollout_testkit::{Python, TestEngine, link_program};

use super::{
    markdown::{Block, Shown, blocks, commands},
    pages, read, repository,
};

/// Stands for cargo: `cargo run` runs the command that is built already.
const CARGO: &str = r#"#!/bin/sh
case "$*" in
  "run --release -- "*) shift 3; program=rollout ;;
  "run --release -p rollout-testkit --bin model-server -- "*) shift 7; program=model-server ;;
  "run --release -p rollout-example-safe") shift 4; program=rollout-example-safe ;;
  *) echo "not expected in the documentation: cargo $*" >&2; exit 1 ;;
esac
[ -x "$BUILT/$program" ] || { echo "$program is not built: run cargo build --workspace --bins" >&2; exit 1; }
exec "$BUILT/$program" "$@"
"#;

/// Brings up loopback in the new network.
const LOOPBACK: &str = r#"python3 -c '
import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh", b"lo", 0x41))
'"#;

/// One command of the script that runs a page.
struct Step<'p> {
    line: usize,
    shown: Shown<'p>,
    exit_status: i32,
    terminal: Option<&'p str>,
}

fn steps<'p>(blocks: &[Block<'p>]) -> Vec<Step<'p>> {
    let mut steps = Vec::new();
    for block in blocks {
        let step = |command: &str| Step {
            line: block.line,
            shown: Shown { command: command.to_owned(), prints: Vec::new() },
            exit_status: 0,
            terminal: None,
        };
        steps.extend(block.before.setup.iter().map(|command| step(command)));
        if let Some(file) = block.before.file {
            steps.push(step(&format!("cat >{file} <<'EOF'\n{}\nEOF", block.lines.join("\n"))));
        } else if block.language == "console" && block.before.not_run.is_none() {
            let shown = commands(block);
            let last = shown.len() - 1;
            steps.extend(shown.into_iter().enumerate().map(|(place, shown)| Step {
                line: block.line,
                shown,
                exit_status: if place == last { block.before.exit_status.unwrap_or(0) } else { 0 },
                terminal: block.before.terminal,
            }));
        }
    }
    steps
}

/// The script for a page. The output of each step is in a file of its number, and `failed` has the step that failed.
fn script(steps: &[Step<'_>]) -> String {
    let mut script = format!("{LOOPBACK}\n");
    script += "fail() { echo $1 >\"$OUT/failed\"; exit 1; }\n";
    for (place, Step { shown: Shown { command, .. }, exit_status, terminal, .. }) in steps.iter().enumerate()
    {
        let out = format!("\"$OUT/{place}\"");
        let _ = match terminal {
            _ if command.contains("# leave it running") => writeln!(
                script,
                "{{\n{command}\n}} >{out} 2>&1 &\n\
                 until [ -s {out} ]; do kill -0 $! || fail {place}; sleep 0.02; done"
            ),
            Some(keys) => {
                let quoted = command.replace('\'', r"'\''");
                writeln!(script, "script -qec '{quoted}' /dev/null >{out} 2>&1 <<<'{keys}' || fail {place}")
            }
            None => {
                writeln!(script, "{{\n{command}\n}} >{out} 2>&1\n[ $? -eq {exit_status} ] || fail {place}")
            }
        };
    }
    script
}

/// Runs the commands of a page, with these variables.
#[track_caller]
fn run(page: &str, variables: &[(&str, &str)]) {
    let text = read(page);
    let steps = steps(&blocks(&text));
    assert!(!steps.is_empty(), "{page} has no command that can be run");
    let dir = tempfile::tempdir().unwrap();
    let [root, out, bin] = ["root", "out", "bin"].map(|name| dir.path().join(name));
    for dir in [&root, &out, &bin] {
        fs::create_dir(dir).unwrap();
    }
    let copied = Command::new("cp").arg("-r").arg(repository().join("examples")).arg(&root).status();
    assert!(copied.unwrap().success());
    let program = Path::new(env!("CARGO_BIN_EXE_rollout"));
    link_program(program, &bin.join("rollout"));
    fs::write(bin.join("cargo"), CARGO).unwrap();
    fs::set_permissions(bin.join("cargo"), Permissions::from_mode(0o755)).unwrap();

    let path = [&*bin, Python::new().programs()].map(|dir| dir.display().to_string()).join(":");
    let output = Command::new("unshare")
        // Everything that a page leaves running ends with its shell, the first process of its own namespace.
        .args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["--", "bash", "-c", &script(&steps)])
        .current_dir(&root)
        .env_clear()
        .env("PATH", format!("{path}:{}", std::env::var("PATH").unwrap()))
        .env("BUILT", program.parent().unwrap())
        .env("OUT", &out)
        .env("HOME", dir.path())
        .env("LANG", "C.UTF-8")
        .env("TERM", "xterm")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let failed = fs::read_to_string(out.join("failed")).ok();
    for (place, Step { line, shown: Shown { command, prints }, .. }) in steps.iter().enumerate() {
        let at = format!("{page}:{line}: $ {command}");
        let printed = fs::read_to_string(out.join(place.to_string())).unwrap_or_default();
        let printed = printed.replace(root.to_str().unwrap(), "/home/me");
        if failed.as_ref().is_some_and(|failed| *failed == format!("{place}\n")) {
            panic!("{at}\nfails, and prints:\n{printed}");
        }
        if prints.iter().any(|line| !line.is_empty()) {
            let (expected, printed) = (settled(&prints.join("\n")), settled(&printed));
            assert!(matches(&expected, &printed), "{at}\nprints:\n{}", printed.join("\n"));
        }
    }
    assert!(output.status.success(), "{page}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Output without times, dates, hashes and the widths of columns, and finished trials in the order of their names.
fn settled(text: &str) -> Vec<String> {
    let (mut lines, mut trials) = (Vec::new(), Vec::new());
    let kept = text.lines().filter(|line| !line.starts_with("warning: low disk space"));
    for line in kept.chain([""]) {
        let words: Vec<String> = line.split_whitespace().map(settled_word).collect();
        let line = words.join(" ");
        match line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
            // The average so far depends on the order.
            Some((_, trial)) => trials.push(trial.split(',').next().unwrap_or_default().to_owned()),
            None => {
                trials.sort();
                lines.append(&mut trials);
                lines.push(line);
            }
        }
    }
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

fn settled_word(word: &str) -> String {
    let inner = word.trim_matches([':', ',', ';', '(', ')']);
    let seconds = inner.strip_suffix('s').is_some_and(|number| number.parse::<f64>().is_ok());
    if seconds || inner.starts_with('×') {
        return word.replace(inner, "[measured]");
    }
    let mut settled = String::new();
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        let in_id = |c: &char| c.is_ascii_hexdigit() || "_T-…".contains(*c);
        let part: usize = rest.chars().take_while(in_id).map(char::len_utf8).sum();
        let digits = rest[..part].chars().filter(char::is_ascii_digit).count();
        if part >= 12 && digits >= 4 {
            settled += "[id]";
            rest = &rest[part..];
        } else {
            let length = part.max(first.len_utf8());
            settled += &rest[..length];
            rest = &rest[length..];
        }
    }
    settled
}

/// Whether the lines are as expected, where `…` stands for any lines.
fn matches(expected: &[String], printed: &[String]) -> bool {
    match expected.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first == "…" => {
            (0..=printed.len()).any(|skipped| matches(rest, &printed[skipped..]))
        }
        Some((first, rest)) => printed.first() == Some(first) && matches(rest, &printed[1..]),
    }
}

/// A test for each page with commands that need no engine.
macro_rules! run_pages {
    ($($test:ident: $page:literal,)*) => {
        const RUN: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $test() {
                run($page, &[]);
            }
        )*
    };
}

run_pages! {
    the_commands_of_readme_run_as_written: "README.md",
    the_commands_of_agents_run_as_written: "docs/agents.md",
    the_commands_of_benchmarks_run_as_written: "docs/benchmarks.md",
    the_commands_of_checking_run_as_written: "docs/checking.md",
    the_commands_of_commands_run_as_written: "docs/commands.md",
    the_commands_of_datasets_run_as_written: "docs/datasets.md",
    the_commands_of_environments_run_as_written: "docs/environments.md",
    the_commands_of_eval_log_run_as_written: "docs/eval-log.md",
    the_commands_of_events_run_as_written: "docs/events.md",
    the_commands_of_exports_eee_run_as_written: "docs/exports-eee.md",
    the_commands_of_exports_tables_run_as_written: "docs/exports-tables.md",
    the_commands_of_exports_run_as_written: "docs/exports.md",
    the_commands_of_first_job_run_as_written: "docs/first-job.md",
    the_commands_of_first_model_run_as_written: "docs/first-model.md",
    the_commands_of_gateway_run_as_written: "docs/gateway.md",
    the_commands_of_harbor_run_as_written: "docs/harbor.md",
    the_commands_of_jobs_run_as_written: "docs/jobs.md",
    the_commands_of_models_run_as_written: "docs/models.md",
    the_commands_of_regrading_run_as_written: "docs/regrading.md",
    the_commands_of_reproducing_run_as_written: "docs/reproducing.md",
    the_commands_of_results_run_as_written: "docs/results.md",
    the_commands_of_scoring_run_as_written: "docs/scoring.md",
    the_commands_of_statistics_run_as_written: "docs/statistics.md",
    the_commands_of_tools_run_as_written: "docs/tools.md",
    the_commands_of_training_run_as_written: "docs/training.md",
    the_commands_of_translation_run_as_written: "docs/translation.md",
    the_commands_of_variables_run_as_written: "docs/variables.md",
    the_commands_of_viewing_run_as_written: "docs/viewing.md",
}

const RUN_WITH_ENGINE: &str = "docs/docker.md";

#[test]
fn the_commands_of_docker_run_as_written() {
    run(RUN_WITH_ENGINE, &[("DOCKER_HOST", TestEngine::shared().host())]);
}

/// Pages of which no command can be run: all need a cluster, an account or minutes, or change the machine.
const NOT_RUN: &[&str] = &[
    "docs/clouds.md",
    "docs/kubernetes.md",
    "docs/performance.md",
    "docs/providers.md",
    "docs/publishing.md",
    "docs/tools-desktop.md",
];

#[test]
fn every_page_with_commands_is_run_unless_none_of_them_can_be() {
    let has_commands = |page: &String| blocks(&read(page)).iter().any(|block| block.language == "console");
    let with_commands = pages().into_iter().filter(has_commands);
    let (run, not_run): (Vec<_>, Vec<_>) =
        with_commands.partition(|page| !steps(&blocks(&read(page))).is_empty());
    assert_eq!(not_run, NOT_RUN);
    assert_eq!(run.into_iter().filter(|page| page != RUN_WITH_ENGINE).collect::<Vec<_>>(), RUN);
}

/// The programs that the documentation starts.
const PROGRAMS: &[&str] = &[
    "apt", "apt-get", "bash", "cargo", "cd", "cp", "curl", "daytona", "docker", "e2b", "echo", "export",
    "fly", "git", "helm", "jq", "kind", "kubectl", "mkdir", "modal", "npm", "npx", "pip", "pipx", "podman",
    "python", "python3", "rollout", "sh", "ssh", "sudo", "uv", "uvx", "wget",
];

/// Whether a line of a block starts a program.
fn is_command(line: &str) -> bool {
    let first = line.split(' ').next().unwrap_or_default();
    let is_script = ["./", "scripts/"].iter().any(|dir| first.len() > dir.len() && first.starts_with(dir));
    PROGRAMS.contains(&first) || (is_script && !first.ends_with('/'))
}

#[test]
fn commands_are_only_in_console_blocks() {
    for page in pages() {
        for block in blocks(&read(&page)) {
            let at = format!("{page}:{}", block.line);
            assert!(!["sh", "shell", "zsh"].contains(&block.language), "{at}: use a `console` block");
            let is_file = block.before.file.is_some();
            assert!(block.language != "bash" || is_file, "{at}: name the file of this script");
            let prompt = block.lines.iter().any(|line| line.starts_with("$ "));
            let command =
                block.language.is_empty() && block.lines.iter().any(|line| is_command(line.trim_start()));
            let is_console = block.language == "console";
            assert!(is_console || !(prompt || command), "{at}: a block with commands is `console`");
        }
    }
}

#[test]
fn the_commands_that_are_not_run_are_few_and_have_a_reason() {
    let mut list = String::new();
    for page in pages() {
        for block in blocks(&read(&page)) {
            for Shown { command, .. } in block.before.not_run.map(|_| commands(&block)).unwrap_or_default() {
                let _ = writeln!(list, "{page}: {command}  ({})", block.before.not_run.unwrap());
            }
        }
    }
    insta::assert_snapshot!(list, @r#"
    README.md: rollout run -d terminal-bench@2.0 -a claude-code -m anthropic/claude-sonnet-4-5  (it needs a network and keys of model providers)
    README.md: rollout run -d gsm8k -m openai/gpt-5.5  (it needs a network and keys of model providers)
    README.md: pip install rollout-*.whl  (the wheel is part of a release, and the release checks that it installs)
    README.md: ./test                                                  # run all checks and tests  (./test runs this check)
    docs/agents.md: rollout run -d tasks/ -a claude-code -m anthropic/claude-sonnet-4-5  (it needs the packages of agents, and a key of a model provider)
    docs/agents.md: rollout run -d tasks/ -a codex -m openai/gpt-5.5 -k 3 -n 8 -e docker  (it needs the packages of agents, and a key of a model provider)
    docs/agents.md: rollout run -d tasks/ -a mini-swe-agent -m qwen3 --base-url http://127.0.0.1:8000/v1  (it needs the packages of agents, and a key of a model provider)
    docs/clouds.md: cargo install --path crates/rollout-cli --features e2b,daytona,fly,modal  (it builds Rollout from source)
    docs/clouds.md: export DAYTONA_API_KEY=dtn_…      # from app.daytona.io, with permissions for sandboxes and snapshots  (it needs an account of Daytona)
    docs/clouds.md: rollout run -d examples/quickstart/tasks -a oracle --set environment.type=daytona --dry-run    # show the maximum cost  (it needs an account of Daytona)
    docs/clouds.md: rollout run -d examples/quickstart/tasks -a oracle --set environment.type=daytona  (it needs an account of Daytona)
    docs/clouds.md: rollout clean --all-providers     # delete sandboxes that are left  (it needs an account of Daytona)
    docs/clouds.md: export E2B_API_KEY=e2b_…          # or: e2b auth login  (it needs an account of E2B)
    docs/clouds.md: rollout run -d examples/quickstart/tasks -a oracle --set environment.type=e2b --dry-run    # show the maximum cost  (it needs an account of E2B)
    docs/clouds.md: rollout run -d examples/quickstart/tasks -a oracle --set environment.type=e2b  (it needs an account of E2B)
    docs/clouds.md: rollout clean --all-providers     # delete sandboxes that are left  (it needs an account of E2B)
    docs/clouds.md: fly tokens create org --expiry 720h          # prints a token  (it needs an account of Fly)
    docs/clouds.md: export FLY_API_TOKEN='FlyV1 fm2_…'  (it needs an account of Fly)
    docs/clouds.md: export FLY_ORG=personal                      # the organization of the token  (it needs an account of Fly)
    docs/clouds.md: rollout run -d examples/quickstart/tasks -a oracle --set environment.type=fly --dry-run    # show the maximum cost  (it needs an account of Fly)
    docs/clouds.md: rollout run -d examples/quickstart/tasks -a oracle --set environment.type=fly  (it needs an account of Fly)
    docs/clouds.md: rollout clean --all-providers                # delete machines that are left  (it needs an account of Fly)
    docs/clouds.md: export MODAL_TOKEN_ID=ak-… MODAL_TOKEN_SECRET=as-…          # or: modal token new  (it needs an account of Modal)
    docs/clouds.md: rollout run -d examples/quickstart/tasks -a oracle --set environment.type=modal --dry-run    # show the maximum cost  (it needs an account of Modal)
    docs/clouds.md: rollout run -d examples/quickstart/tasks -a oracle --set environment.type=modal  (it needs an account of Modal)
    docs/clouds.md: rollout clean --all-providers     # delete sandboxes that are left  (it needs an account of Modal)
    docs/datasets.md: rollout run -d terminal-bench@2.0 -a claude-code -m anthropic/claude-sonnet-4-5  (it needs a network and keys of model providers)
    docs/datasets.md: rollout run -d gsm8k -m openai/gpt-5.5 --limit 100  (it needs a network and keys of model providers)
    docs/datasets.md: rollout run -d git+https://github.com/team/tasks.git@v1.2#easy -a codex -m openai/gpt-5.5  (it needs a network and keys of model providers)
    docs/datasets.md: rollout datasets list 'terminal*'  (it needs a network)
    docs/kubernetes.md: docker run -d --name registry -p 127.0.0.1:5001:5000 registry:2  (it needs a Docker engine and kind)
    docs/kubernetes.md: kind create cluster && docker network connect kind registry  (it needs a Docker engine and kind)
    docs/kubernetes.md: docker exec -i kind-control-plane sh -c 'mkdir -p $0 && cat > $0/hosts.toml' /etc/containerd/certs.d/127.0.0.1:5001 <<'TOML'
    [host."http://registry:5000"]
    TOML  (it needs a Docker engine and kind)
    docs/kubernetes.md: rollout run -d examples/quickstart/tasks -a oracle --set environment.type=k8s \
      --set environment.provider_config.registry=127.0.0.1:5001  (it needs a Docker engine and kind)
    docs/kubernetes.md: rollout clean --namespace rollout                # delete pods of dead runs in the namespace of your jobs  (it needs a Kubernetes cluster)
    docs/kubernetes.md: rollout clean --namespace rollout --preserved    # also delete preserved pods  (it needs a Kubernetes cluster)
    docs/kubernetes.md: docker build -f deploy/kubernetes/Dockerfile -t registry.example.com/rollout/rollout .  (it needs a Kubernetes cluster)
    docs/kubernetes.md: docker push registry.example.com/rollout/rollout  (it needs a Kubernetes cluster)
    docs/kubernetes.md: kubectl create namespace rollout && kubectl config set-context --current --namespace rollout  (it needs a Kubernetes cluster)
    docs/kubernetes.md: kubectl apply -f deploy/kubernetes/rbac.yaml  (it needs a Kubernetes cluster)
    docs/kubernetes.md: kubectl create configmap job --from-file=job.yaml  (it needs a Kubernetes cluster)
    docs/kubernetes.md: kubectl apply -f deploy/kubernetes/job.yaml  (it needs a Kubernetes cluster)
    docs/kubernetes.md: kubectl apply -f deploy/kubernetes/view.yaml  (it needs a Kubernetes cluster)
    docs/kubernetes.md: kubectl logs deployment/rollout-view  (it needs a Kubernetes cluster)
    docs/kubernetes.md: kubectl port-forward deployment/rollout-view 8080  (it needs a Kubernetes cluster)
    docs/performance.md: cargo bench -p rollout-cli  (it measures the machine for minutes)
    docs/providers.md: scripts/with-services cargo nextest run -p rollout-example-provider  (it starts container engines)
    docs/publishing.md: export HF_TOKEN=…      # a token that may write  (it needs an account of the Hugging Face Hub)
    docs/publishing.md: rollout export eee jobs/2026-01-15__10-30-00 -o out --push-to-hub my-team/results --hub-private  (it needs an account of the Hugging Face Hub)
    docs/tools-desktop.md: apt install xvfb xdotool openbox  (it installs packages on the machine)
    "#);
}
