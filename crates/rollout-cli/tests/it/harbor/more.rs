//! Tasks for an engine: limits, images, errors, and combinations of Harbor's fields.

use rollout_testkit::TestTask;

use super::{
    compose::{composed, with_config},
    graded_by,
    rows::solved_by,
    steps::{TWO, steps},
    task,
};

/// The name of an image that has tests in `/tests`; it must exist before the tasks run.
pub(super) const JUDGE: &str = "harbor-judge:latest";

/// The Dockerfile of [`JUDGE`].
pub(super) const JUDGE_DOCKERFILE: &str = "FROM test\nWORKDIR /app\nRUN mkdir /tests && \
     printf '[ -e /app/done ]\\necho $((1 - $?)) > /logs/verifier/reward.txt\\n' > /tests/test.sh && chmod +x /tests/test.sh\n";

/// A task that is done if a limit of its container has this value.
fn limited(name: &str, toml: &str, files: [&str; 2], value: &str) -> TestTask {
    let read = files.map(|file| format!("/sys/fs/cgroup/{file}")).join(" ");
    solved_by(name, toml, &format!("cat {read} 2>/dev/null | grep -qxE '{value}'"))
}

fn limits() -> Vec<TestTask> {
    let memory = ["memory.max", "memory/memory.limit_in_bytes"];
    let cpu = ["cpu.max", "cpu/cpu.cfs_quota_us"];
    vec![
        limited("memory-text", "[environment]\nmemory = \"2G\"\n", memory, "2147483648"),
        limited("memory-mb", "[environment]\nmemory_mb = 300\n", memory, "314572800"),
        limited("cpus", "[environment]\ncpus = 1\n", cpu, "100000( 100000)?"),
        limited("no-memory-limit", "", memory, "max|9223372036854771712"),
        limited("no-cpu-limit", "", cpu, "max 100000|-1"),
    ]
}

/// Reward files of other forms.
fn reward_files() -> Vec<TestTask> {
    let writes = |name: &str, file: &str, text: &str| {
        task(name, "").tests(&format!("printf -- '{text}' > /logs/verifier/{file}\n"))
    };
    vec![
        writes("json-named", "reward.json", "{\"reward\": 1, \"style\": 0.5}"),
        writes("json-nested", "reward.json", "{\"reward\": {\"style\": 1}}"),
        writes("json-text", "reward.json", "{\"reward\": \"1\"}"),
        writes("json-list", "reward.json", "[1]"),
        writes("json-empty", "reward.json", "{}"),
        writes("text-lines", "reward.txt", "1\\r\\n\\n"),
        writes("text-word", "reward.txt", "one"),
        writes("text-two", "reward.txt", "1 2"),
        writes("text-empty", "reward.txt", ""),
        writes("text-nan", "reward.txt", "nan"),
        writes("text-negative", "reward.txt", "-0.5"),
        writes("no-reward", "other.txt", "1"),
    ]
}

fn fields() -> Vec<TestTask> {
    let user = "FROM test\nRUN useradd --create-home worker && mkdir /app && chown worker /app\nUSER worker\nWORKDIR /app\n";
    vec![
        task("image-user", "")
            .dockerfile(user)
            .solution("id -un > /app/who\n")
            .tests(&graded_by("[ \"$(cat /app/who) $(id -un)\" = 'worker worker' ]")),
        task("unknown-keys", "surprise = 1\n[environment]\nsurprise = 1\n[extra]\na = 1\n"),
        task("no-execute-bit", "").without_execute_bits(),
        task("task-table", "[task]\nname = \"org/named\"\ndescription = \"d\"\nkeywords = [\"k\"]\n"),
        task("verifier-env", "[verifier.env]\nX = \"${UNSET_VARIABLE:-seven}\"\n")
            .tests(&graded_by("[ -e /app/done ] && [ \"$X\" = seven ]")),
        task(
            "mcp-servers",
            "[[environment.mcp_servers]]\nname = \"s\"\ntransport = \"sse\"\nurl = \"http://mcp:1/sse\"\n",
        ),
        task("skills", "[environment]\nskills_dir = \"/skills\"\n"),
        task("gpus", "[environment]\ngpus = 1\n"),
        task(
            "verifier-image",
            &format!("artifacts = [\"/app/done\"]\n[verifier.environment]\ndocker_image = \"{JUDGE}\"\n"),
        )
        .without("tests/test.sh"),
        task("collect-user", "[[verifier.collect]]\ncommand = \"id -un > /tmp/user\"\nuser = \"nobody\"\n")
            .tests(&graded_by("[ -e /app/done ] && [ \"$(cat /tmp/user)\" = nobody ]")),
        task("logs-shared", "")
            .solution("echo note > /logs/agent/note; touch /app/done\n")
            .tests(&graded_by("[ -e /app/done ] && [ \"$(cat /logs/agent/note)\" = note ]")),
    ]
}

/// Tasks that end with an error, some of them with a reward.
fn errors() -> Vec<TestTask> {
    let waits = "rm -f /app/alive; for _ in $(seq 600); do [ -e /app/alive ] && break; sleep 0.1; done";
    vec![
        // Long enough for the first round of the loop, also on a busy machine.
        task("agent-timeout", "[agent]\ntimeout_sec = 15\n")
            .solution("while :; do touch /app/alive; sleep 0.1; done\n")
            .tests(&format!("[ -e /app/alive ] || exit 1\n{waits}\n{}", graded_by("[ -e /app/alive ]"))),
        task("verifier-timeout", "[verifier]\ntimeout_sec = 1\n")
            .tests("echo 1 > /logs/verifier/reward.txt; sleep 600\n"),
        task(
            "healthcheck-fails",
            "[environment.healthcheck]\ncommand = \"false\"\ninterval_sec = 0.1\nretries = 2\n",
        ),
        task("build-fails", "").dockerfile("FROM test\nRUN false\n"),
    ]
}

fn more_steps() -> Vec<TestTask> {
    let both = [("one", "touch /app/one\n"), ("two", "touch /app/two\n")];
    let json = |scores: &str| format!("echo '{scores}' > /logs/verifier/reward.json\n");
    let separate = "artifacts = [\"/app\"]\n[verifier]\nenvironment_mode = \"separate\"\n";
    let one_separate = "artifacts = [\"/app/one\"]\n[[steps]]\nname = \"one\"\n[steps.verifier]\nenvironment_mode = \"separate\"\n[[steps]]\nname = \"two\"\n";
    vec![
        steps(
            "step-healthcheck",
            "[[steps]]\nname = \"one\"\n[steps.healthcheck]\ncommand = \"[ -e /tmp/ready ] || ! touch /tmp/ready\"\ninterval_sec = 0.1\n[[steps]]\nname = \"two\"\n",
            &[("one", "[ -e /tmp/ready ] && touch /app/one\n"), ("two", "touch /app/two\n")],
        ),
        steps(
            "step-healthcheck-fails",
            "[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n[steps.healthcheck]\ncommand = \"false\"\ninterval_sec = 0.1\nretries = 1\n",
            &both,
        ),
        steps("step-users", "[agent]\nuser = \"nobody\"\n[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n[steps.agent]\nuser = \"daemon\"\n[steps.verifier]\nuser = \"bin\"\n", &[
            ("one", "id -un > /tmp/one\n"),
            ("two", "id -un > /tmp/two\n"),
        ])
        .file("steps/one/tests/test.sh", &graded_by("[ \"$(cat /tmp/one) $(id -un)\" = 'nobody root' ]"))
        .file("steps/two/tests/test.sh", &graded_by("[ \"$(cat /tmp/two) $(id -un)\" = 'daemon bin' ]")),
        steps("step-env", "[verifier.env]\nX = \"task\"\n[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n[steps.verifier.env]\nX = \"step\"\n", &both)
            .file("steps/one/tests/test.sh", &graded_by("[ \"$X\" = task ]"))
            .file("steps/two/tests/test.sh", &graded_by("[ \"$X\" = step ]")),
        steps("step-artifacts", "[[steps]]\nname = \"one\"\nartifacts = [\"/app/one\"]\n[[steps]]\nname = \"two\"\n", &both),
        steps("step-keys", TWO, &both)
            .file("steps/one/tests/test.sh", &json("{\"a\": 1, \"b\": 0.5}"))
            .file("steps/two/tests/test.sh", &json("{\"b\": 1}")),
        steps("step-key-missing", "[[steps]]\nname = \"one\"\nmin_reward = {style = 0.5}\n[[steps]]\nname = \"two\"\n", &both),
        steps("step-key-low", "[[steps]]\nname = \"one\"\nmin_reward = {a = 0.5, b = 0.9}\n[[steps]]\nname = \"two\"\n", &both)
            .file("steps/one/tests/test.sh", &json("{\"a\": 1, \"b\": 0.5}")),
        steps("step-no-reward", TWO, &both).file("steps/one/tests/test.sh", "true\n"),
        steps("step-no-reward-last", TWO, &both).file("steps/two/tests/test.sh", "true\n"),
        steps("step-agent-fails", TWO, &[("one", "touch /app/one; exit 3\n"), ("two", "touch /app/two\n")]),
        steps("steps-separate", &format!("{separate}{TWO}"), &both),
        steps("step-separate", one_separate, &both)
            .file("steps/one/tests/test.sh", &graded_by("[ -e /app/one ] && [ ! -e /tmp/agent ]"))
            .file("steps/one/solution/solve.sh", "touch /app/one /tmp/agent\n"),
        steps("steps-image", &format!("{separate}{TWO}"), &both)
            .file("tests/Dockerfile", "FROM test\nWORKDIR /app\nCOPY . /tests\nRUN touch /judge\n")
            .file("tests/./test.sh", "[ -e /judge ] && [ -e /app/one ]\necho $((1 - $?)) > /logs/verifier/reward.txt\n")
            .without("steps/one/tests/test.sh")
            .without("steps/two/tests/test.sh"),
    ]
}

/// Compose files with other fields.
fn combinations() -> Vec<TestTask> {
    let other = "services:\n  main: {}\n  other:\n    image: test\n    command: sh -c 'echo here > /srv/word; exec sleep infinity'\n";
    vec![
        steps("compose-steps", TWO, &[("one", "touch /app/one\n"), ("two", "getent hosts other && touch /app/two\n")])
            .file("environment/docker-compose.yaml", other),
        with_config(
            "compose-users",
            "[agent]\nuser = \"nobody\"\n[environment]\nworkdir = \"/tmp\"\n[environment.env]\nWORD = \"given\"\n",
            other,
        )
        .solution("echo \"$(id -un) $(pwd) $WORD\" > /tmp/seen\n")
        .tests(&graded_by("[ \"$(cat /tmp/seen)\" = 'nobody /tmp given' ]")),
        with_config(
            "compose-healthcheck",
            "[environment.healthcheck]\ncommand = \"getent hosts other\"\ninterval_sec = 0.1\n",
            other,
        ),
        with_config("compose-memory", "[environment]\nmemory_mb = 300\n", other).solution(
            "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null | grep -qx 314572800 && touch /app/done\n",
        ),
        composed("compose-main-environment", "services: {main: {environment: {A: one}}}\n")
            .solution("[ \"$A\" = one ] && touch /app/done\n")
            .tests(&graded_by("[ -e /app/done ] && [ \"$A\" = one ]")),
        with_config(
            "compose-env-wins",
            "[environment.env]\nA = \"toml\"\n",
            "services: {main: {environment: {A: file}}}\n",
        )
        .solution("[ \"$A\" = toml ] && touch /app/done\n"),
        with_config(
            "compose-steps-separate",
            &format!("artifacts = [\"/app\"]\n[verifier]\nenvironment_mode = \"separate\"\n{TWO}"),
            other,
        )
        .without("instruction.md")
        .file("steps/one/instruction.md", "One.\n")
        .file("steps/two/instruction.md", "Two.\n")
        .solution("touch /app/done\n")
        .tests(&graded_by("[ -e /app/done ] && getent hosts other > /dev/null")),
    ]
}

/// All tasks of this module.
pub(super) fn tasks() -> Vec<TestTask> {
    [limits(), reward_files(), fields(), errors(), more_steps(), combinations()]
        .into_iter()
        .flatten()
        .collect()
}
