//! The tools of models that work inside an environment, in the native one.

use std::{path::Path, sync::Arc, time::Duration};

use rollout::{
    config::{EnvironmentConfig, EnvironmentKind},
    environment::{CloudAccess, DockerAccess, HostPaths, KubernetesAccess, Provider, connect},
    model::{
        Client, Interaction as _, Limits, Message, Model, RolloutInput, SamplingArgs, Sandboxed, State,
        ToolUse,
        client::ClientConfig,
        rollout,
        tool::container::{self, COMMAND_EXECUTION_TIME, READY_WAIT_TIME, Sandbox},
    },
    name::TaskName,
    task::load_task,
};
use rollout_testkit::{
    ModelReply, ModelServer, TestTask, long_enough_async, processes_and_mounts_below, runs_in,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// A provider in a directory of its own.
struct Natively {
    dir: TempDir,
    provider: Arc<dyn Provider>,
}

impl Natively {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let images = json!({"images": {"test": "host"}});
        let config = EnvironmentConfig {
            kind: Some(EnvironmentKind::Native),
            provider_config: images.as_object().unwrap().clone(),
            ..EnvironmentConfig::default()
        };
        // A link of the test's own, so that its processes differ from those of others.
        let helper = dir.path().join("rollout");
        let command = env!("CARGO_BIN_EXE_rollout");
        rollout_testkit::link_program(command.as_ref(), &helper);
        let place = HostPaths {
            state_dir: dir.path().join("state"),
            helper,
            docker: DockerAccess::default(),
            kubernetes: KubernetesAccess::default(),
            clouds: CloudAccess::default(),
        };
        let provider = connect(&config, &place).await.unwrap();
        Self { dir, provider }
    }

    /// All container tools, in environments with `/app/notes.txt` in them.
    fn interaction(&self, timeout: Duration) -> Sandboxed {
        let dockerfile = "FROM test\nWORKDIR /app\nRUN printf 'one\\ntwo\\nthree\\n' > notes.txt\n\
                          RUN printf '#!/bin/sh\\necho old\\n' > run.sh && chmod 750 run.sh\n";
        TestTask::new("task").dockerfile(dockerfile).write(self.dir.path());
        let name = TaskName::try_from("task".to_owned()).unwrap();
        let (task, _) = load_task(&self.dir.path().join("task"), name).unwrap();
        let tools = ToolUse::new(container::tools(&container::ALL, timeout)).unwrap();
        Sandboxed::new(Arc::clone(&self.provider), task.template(), "job", tools)
    }

    /// Runs a rollout whose model makes these calls, one in each turn, and returns what the tools said.
    async fn answers(&self, calls: &[(&str, Value)]) -> (Vec<String>, State) {
        let replies = calls.iter().map(|(name, arguments)| ModelReply::tool_call(name, arguments));
        let server = ModelServer::turns(replies.chain([ModelReply::text("done")]));
        let interaction = self.interaction(Duration::from_secs(60));
        let limits = Limits { max_turns: Some(50), ..Limits::default() };
        let state = rollout(&interaction, &limits, input(), model(&server), &CancellationToken::new()).await;
        let state = state.unwrap();
        assert_eq!((state.stop_condition.as_deref(), &state.error), (Some("no_tools_called"), &None));
        let tools = state.completion.iter().flatten().filter(|message| message.tool_call_id.is_some());
        (tools.map(|message| message.text().into_owned()).collect(), state)
    }
}

fn input() -> RolloutInput {
    RolloutInput { prompt: vec![Arc::new(Message::user("Do it."))], ..RolloutInput::default() }
}

fn model(server: &ModelServer) -> Arc<Model> {
    let config = ClientConfig { max_retries: 0, ..ClientConfig::new(server.url()) };
    let client = Client::new(config).unwrap();
    Arc::new(Model { client, name: "test".to_owned(), sampling: SamplingArgs::new(), max_seq_len: None })
}

/// Waits until a dropped provider has removed everything that it created.
async fn nothing_left(dir: &Path) {
    let found = || [processes_and_mounts_below(dir), runs_in(&dir.join("state"))].concat();
    for _ in 0..60_000 {
        if found().is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", found());
}

fn bash(command: &str) -> (&'static str, Value) {
    ("bash", json!({"command": command}))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rollout_has_an_environment_until_its_end() {
    let native = Natively::new().await;
    let (answers, state) = native
        .answers(&[
            bash("echo out; echo err >&2; pwd"),
            bash("exit 3"),
            bash("kill -9 $$"),
            bash("touch /app/mine"),
            bash("ls /app"),
        ])
        .await;
    assert_eq!(answers[0], "out\nerr\n/app\n[exit code 0]");
    assert_eq!(answers[1..3], ["[exit code 3]", "[killed by signal 9]"]);
    assert_eq!(answers[4], "mine\nnotes.txt\nrun.sh\n[exit code 0]");
    let seconds = |field: &str| state.get(field).and_then(|field| field.as_f64()).unwrap();
    assert!(seconds(READY_WAIT_TIME) > 0.0 && seconds(COMMAND_EXECUTION_TIME) > 0.0);
    assert!(state.resources.get::<Sandbox>().is_none());
    // The next rollout has another one.
    assert_eq!(native.answers(&[bash("ls /app")]).await.0, ["notes.txt\nrun.sh\n[exit code 0]"]);
    let Natively { dir, provider } = native;
    drop(provider);
    nothing_left(dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_output_is_cut_in_the_middle() {
    let native = Natively::new().await;
    let (answers, _) =
        native.answers(&[bash("echo first; head -c 100000 /dev/zero | tr '\\0' x; echo; echo last")]).await;
    assert!(answers[0].len() < 30_000, "{}", answers[0].len());
    assert!(answers[0].starts_with("first\nxxx") && answers[0].ends_with("xxx\nlast\n[exit code 0]"));
    assert!(answers[0].contains(" bytes are left out here]\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_times_out_is_killed_with_its_processes() {
    let native = Natively::new().await;
    long_enough_async(Duration::from_secs(2), async |timeout| {
        let server = ModelServer::turns([
            ModelReply::tool_call("bash", &json!({"command": "sleep 1000 & echo started; sleep 1000"})),
            ModelReply::tool_call(
                "bash",
                &json!({"command": "grep -lz ^sleep /proc/[0-9]*/cmdline || echo none"}),
            ),
            ModelReply::text("done"),
        ]);
        let interaction = native.interaction(timeout);
        let never = CancellationToken::new();
        let state = rollout(&interaction, &Limits::default(), input(), model(&server), &never).await.unwrap();
        let completion = state.completion.unwrap();
        let killed = format!("[killed: timed out after {} seconds]", timeout.as_secs());
        let [first, second] = [1, 3].map(|message: usize| completion[message].text());
        if first == killed || second.ends_with(&killed) {
            return None;
        }
        assert_eq!(first, format!("started\n{killed}"));
        assert_eq!(second, "none\n[exit code 0]");
        Some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_read_and_written_and_keep_their_mode() {
    let native = Natively::new().await;
    let read = |path: &str| ("read_file", json!({"path": path}));
    let (answers, _) = native
        .answers(&[
            read("/app/notes.txt"),
            read("notes.txt"),
            ("read_file", json!({"path": "notes.txt", "start_line": 2, "line_count": 1})),
            read("/app"),
            read("missing"),
            ("write_file", json!({"path": "run.sh", "content": "#!/bin/sh\necho new\n"})),
            ("write_file", json!({"path": "/made/on/the way/é.txt", "content": "new"})),
            bash("./run.sh; stat -c %a run.sh '/made/on/the way/é.txt'; cat '/made/on/the way/é.txt'"),
            ("write_file", json!({"path": "/app", "content": "x"})),
            bash("ln -s /etc/hostname link; ls -A /tmp"),
            read("link"),
        ])
        .await;
    assert_eq!(answers[0], "one\ntwo\nthree\n");
    assert_eq!(answers[1], answers[0]);
    assert_eq!(answers[2..5], ["two\n", "/app is not a regular file", "missing does not exist"]);
    assert_eq!(answers[7], "new\n750\n644\nnew\n[exit code 0]");
    assert!(answers[8].contains("/app"), "{}", answers[8]);
    assert_eq!(answers[10], "link is not a regular file");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_changes_all_of_its_files_or_none() {
    let native = Natively::new().await;
    let patch = |text: &str| ("apply_patch", json!({"patch": text}));
    let (answers, _) = native
        .answers(&[
            patch(
                "*** Begin Patch\n*** Update File: notes.txt\n@@\n one\n-two\n+2\n*** Add File: new/a.txt\n+a\n\
                 *** Delete File: /app/run.sh\n*** End Patch\n",
            ),
            bash("cat notes.txt new/a.txt; ls"),
            patch("--- a/notes.txt\n+++ b/moved.txt\n@@ -1,2 +1,2 @@\n-one\n+1\n 2\n"),
            bash("cat moved.txt; ls"),
            patch("*** Add File: b.txt\n+b\n*** Update File: moved.txt\n@@\n-nothing\n+something\n"),
            bash("ls"),
            patch("*** Update File: moved.txt\n*** Move to: ./moved.txt\n@@\n-1\n+one\n"),
            bash("cat moved.txt"),
        ])
        .await;
    assert_eq!(answers[0], "updated notes.txt\nadded new/a.txt\ndeleted /app/run.sh");
    assert_eq!(answers[1], "one\n2\nthree\na\nnew\nnotes.txt\n[exit code 0]");
    assert_eq!(answers[2], "updated notes.txt as moved.txt");
    assert_eq!(answers[3], "1\n2\nthree\nmoved.txt\nnew\n[exit code 0]");
    assert_eq!(answers[4], "moved.txt does not contain these lines, in this order:\nnothing");
    assert_eq!(answers[5], "moved.txt\nnew\n[exit code 0]");
    assert_eq!(answers[7], "one\n2\nthree\n[exit code 0]");
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_work_in_an_environment_that_they_did_not_create() {
    let native = Natively::new().await;
    let interaction = native.interaction(Duration::from_secs(60));
    let server = ModelServer::turns([
        ModelReply::tool_call("bash", &json!({"command": "cat notes.txt"})),
        ModelReply::text("done"),
    ]);
    let mut owner = State::new(input(), model(&server), Arc::new([]));
    interaction.setup_state(&mut owner).await.unwrap();
    let Sandbox(environment) = owner.resources.remove().unwrap();
    let tools = container::tools_in(&*environment, &container::ALL, Duration::from_secs(60), &[]);
    let borrowed = ToolUse::new(tools).unwrap();
    let never = CancellationToken::new();
    let state = rollout(&borrowed, &Limits::default(), input(), model(&server), &never).await.unwrap();
    assert_eq!(state.completion.unwrap()[1].text(), "one\ntwo\nthree\n[exit code 0]");
    drop(borrowed);
    environment.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_environment_that_went_away_ends_the_rollout_as_one_to_try_again() {
    let native = Natively::new().await;
    let interaction = native.interaction(Duration::from_secs(60));
    let server = ModelServer::always(ModelReply::tool_call("bash", &json!({"command": "true"})));
    let mut state = State::new(input(), model(&server), Arc::new([]));
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "1", "name": "bash", "arguments": "{\"command\": \"true\"}"}]});
    let call = [Arc::new(serde_json::from_value::<Message>(call).unwrap())];
    let error = interaction.env_response(&call, &mut state).await.unwrap_err();
    assert_eq!((error.chain().as_str(), error.kind.is_retried()), ("SandboxError", true));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_not_to_be_had_ends_the_rollout_before_the_model_is_asked() {
    let native = Natively::new().await;
    TestTask::new("task").dockerfile("FROM test\nRUN exit 7\n").write(native.dir.path());
    let name = TaskName::try_from("task".to_owned()).unwrap();
    let (task, _) = load_task(&native.dir.path().join("task"), name).unwrap();
    let tools = ToolUse::new([]).unwrap();
    let broken = Sandboxed::new(Arc::clone(&native.provider), task.template(), "job", tools);
    let server = ModelServer::arithmetic();
    let never = CancellationToken::new();
    let state = rollout(&broken, &Limits::default(), input(), model(&server), &never).await.unwrap();
    let error = state.error.unwrap();
    assert_eq!((error.chain().as_str(), server.served()), ("SandboxError -> EnvironmentError", 0));
    assert!(error.to_string().contains("exit 7"), "{error}");
}
