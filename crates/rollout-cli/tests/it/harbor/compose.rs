//! Tasks with a compose file: several containers that work together.

use std::collections::BTreeSet;

use rollout_testkit::{TestEngine, TestJob, TestTask, until};
use serde_json::json;

use super::{expect_rewards, graded_by, native, result, task};

/// A job whose containers have networks of their own.
pub(super) fn on(engine: &TestEngine) -> TestJob {
    native().set("environment", json!({"type": "docker"})).env("DOCKER_HOST", engine.host())
}

pub(super) fn composed(name: &str, compose: &str) -> TestTask {
    with_config(name, "", compose)
}

pub(super) fn with_config(name: &str, toml: &str, compose: &str) -> TestTask {
    task(name, toml).file("environment/docker-compose.yaml", compose)
}

/// A shell function for scripts: prints the page of a server at a host and a port.
const PAGE: &str =
    "page() { exec 3<>\"/dev/tcp/$1/$2\" && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3; }\n";

/// A web server with one page, and its check.
fn web(page: &str) -> String {
    format!(
        "    image: busybox
    command: sh -c 'busybox mkdir /www && echo {page} > /www/index.html && exec busybox httpd -f -p 80 -h /www'
    healthcheck: {{test: [CMD, busybox, wget, -q, -O, /dev/null, \"http://127.0.0.1/\"], interval: 1s, retries: 30}}
"
    )
}

/// Tests that give 1 if this command, which may use `page`, succeeds.
fn reaches(command: &str) -> String {
    format!("{PAGE}{}", graded_by(command))
}

/// Tasks with the rewards of the oracle.
pub(super) fn rows() -> Vec<(TestTask, f64)> {
    let is_done = graded_by("[ -e /app/done ]");
    vec![
        (
            composed("by-name", &format!("services:\n  main:\n    depends_on: [web]\n  web:\n{}", web("hello")))
                .tests(&reaches("page web 80 | grep -q hello")),
            1.0,
        ),
        (
            composed(
                "aliases",
                &format!(
                    "services:\n  main: {{networks: [front, default]}}\n  web:\n{}    networks: {{front: {{aliases: [shop.test]}}}}\nnetworks: {{front: {{}}}}\n",
                    web("sold")
                ),
            )
            .tests(&reaches("page shop.test 80 | grep -q sold")),
            1.0,
        ),
        (
            composed(
                "apart",
                &format!(
                    "services:\n  main: {{}}\n  web:\n{}    networks: [back]\nnetworks: {{back: {{internal: true}}}}\n",
                    web("hidden")
                ),
            )
            .tests(&reaches("! (page web 80) 2>/dev/null | grep -q hidden")),
            1.0,
        ),
        (
            composed(
                "main-settings",
                "services:
  main:
    build: .
    hostname: box
    working_dir: /srv/work
    shm_size: 80m
    cap_add: [NET_ADMIN]
    tmpfs: /scratch
    environment:
      MODE: fast
      FROM_USER: ${GIVEN:-given}
    env_file: main.env
    ulimits: {nofile: 2048}
",
            )
            .file("environment/main.env", "# comment\nMODE=slow\nOTHER=\"two words\"\n")
            .solution("pwd > /tmp/pwd\ntouch /app/done\n")
            .tests(&graded_by(
                "[ \"$(cat /tmp/pwd)\" = /srv/work ] && [ \"$(cat /proc/sys/kernel/hostname)\" = box ] \
                 && [ \"$MODE$FROM_USER$OTHER\" = 'fastgiventwo words' ] && [ \"$(ulimit -n)\" = 2048 ] \
                 && grep -q ' /scratch tmpfs' /proc/mounts && grep -q 'shm.*size=81920k' /proc/mounts",
            )),
            1.0,
        ),
        (
            composed(
                "built",
                "services:
  main:
    build: {context: ., dockerfile: files/Main.Dockerfile, target: first, args: {WORD: built}}
",
            )
            .without("environment/Dockerfile")
            .file(
                "environment/files/Main.Dockerfile",
                "FROM test AS first\nARG WORD\nRUN mkdir /app && echo $WORD > /app/word\nFROM first\nRUN rm /app/word\n",
            )
            .tests(&graded_by("grep -q built /app/word")),
            1.0,
        ),
        (
            composed("image-only", "services: {main: {image: test}}\n")
                .without("environment/Dockerfile")
                .solution("mkdir -p /app && touch /app/done\n")
                .tests(&is_done),
            1.0,
        ),
        (
            composed(
                "completed",
                "services:
  main:
    depends_on: {fill: {condition: service_completed_successfully}}
    volumes: ['data:/data:ro']
  fill:
    image: test
    command: [sh, -c, 'sleep 0.2; echo ready > /data/word']
    volumes: [{type: volume, source: data, target: /data}]
volumes: {data: {}}
",
            )
            .tests(&graded_by("grep -q ready /data/word && ! (echo x > /data/x) 2>/dev/null")),
            1.0,
        ),
        (
            composed(
                "binds",
                "services:
  main:
    volumes: [./share:/share, ./main.conf:/etc/main.conf:ro]
  other:
    image: test
    command: sh -c 'cp /share/seed /share/copy; exec sleep infinity'
    volumes: [./share:/share]
    healthcheck: {test: 'test -e /share/copy', interval: 1s}
",
            )
            .file("environment/share/seed", "seed\n")
            .file("environment/main.conf", "configured\n")
            .tests(&graded_by("grep -q seed /share/copy && grep -q configured /etc/main.conf")),
            1.0,
        ),
        (
            composed(
                "command",
                "services:\n  main: {command: [sh, -c, 'echo started > /app/started; exec sleep infinity']}\n",
            )
            .tests(&graded_by("[ -e /app/started ]")),
            1.0,
        ),
        (
            composed(
                "restarts",
                "services:
  main: {depends_on: {flaky: {condition: service_healthy}}}
  flaky:
    image: test
    restart: on-failure
    command: sh -c 'if [ ! -e /once ]; then touch /once; exit 1; fi; touch /twice; exec sleep infinity'
    healthcheck: {test: [CMD-SHELL, test -e /twice], interval: 1s, retries: 30}
",
            ),
            1.0,
        ),
        (
            with_config(
                "of-services",
                "artifacts = [{source = \"/srv/result\", destination = \"out/result\", service = \"other\"}]
[[verifier.collect]]
command = \"cp /srv/state /srv/result\"
service = \"other\"
",
                "services:
  main: {}
  other:
    image: test
    command: sh -c 'mkdir -p /srv && echo state > /srv/state && exec sleep infinity'
    healthcheck: {test: 'test -e /srv/state', interval: 1s}
",
            ),
            1.0,
        ),
        (
            with_config(
                "compose-separate",
                "artifacts = [\"/app/done\"]\n[verifier]\nenvironment_mode = \"separate\"\n",
                &format!("services:\n  main: {{}}\n  web:\n{}", web("again")),
            )
            .tests(&reaches("[ -e /app/done ] && page web 80 | grep -q again")),
            1.0,
        ),
        (
            task("tests-compose", "artifacts = [\"/app/done\"]\n[verifier]\nenvironment_mode = \"separate\"\n")
                .file(
                    "tests/docker-compose.yaml",
                    &format!("services:\n  main: {{build: .}}\n  judge:\n{}", web("fair")),
                )
                .file("tests/Dockerfile", "FROM test\nCOPY test.sh /tests/test.sh\n")
                .tests(&reaches("[ -e /app/done ] && page judge 80 | grep -q fair")),
            1.0,
        ),
        (
            with_config(
                "compose-no-network",
                "[environment]\nnetwork_mode = \"no-network\"\n",
                &format!("services:\n  main: {{}}\n  web:\n{}", web("inside")),
            )
            .tests(&reaches("page web 80 | grep -q inside && [ \"$(grep -c '^[a-z0-9]*\\t00000000' /proc/net/route)\" = 0 ]")),
            1.0,
        ),
    ]
}

#[test]
fn compose_files_run_with_the_rewards_of_harbor_on_docker() {
    let finished = expect_rewards(on(&TestEngine::shared()).set("n_concurrent_trials", json!(4)), rows());
    let trial = "oracle/set/of-services__1";
    assert_eq!(finished.file(&format!("{trial}/artifacts/out/result")), "state\n");
    let logs = finished.file("oracle/set/restarts__1/environment/services/flaky/stderr.txt");
    assert_eq!(logs, "");
    let by_name = result(&finished, "by-name");
    assert_eq!(by_name["environment"]["network"], "compose", "{by_name:#}");
}

/// The platform of this machine, which is that of the engine.
fn own_platform() -> &'static str {
    if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" }
}

fn own_files() -> TestTask {
    let compose = format!(
        "services:
  main:
    platform: {platform}
    security_opt: ['no-new-privileges:true']
    build:
      context: .
      dockerfile_inline: |
        FROM test
        COPY word /app/word
        WORKDIR /app
    configs: [plain, {{source: app, target: /etc/app.conf, mode: 0444}}]
    secrets: [token, {{source: token, target: other}}]
  other:
    image: test
    command: sh -c 'cp /etc/other.conf /seen; exec sleep infinity'
    configs: [{{source: app, target: /etc/other.conf}}]
    healthcheck: {{test: 'test -e /seen', interval: 1s, retries: 30}}
configs: {{app: {{file: ./app.conf}}, plain: {{file: ./app.conf}}}}
secrets: {{token: {{file: ./token.txt}}}}
",
        platform = own_platform()
    );
    composed("own-files", &compose)
        .without("environment/Dockerfile")
        .file("environment/word", "inline\n")
        .file("environment/app.conf", "configured\n")
        .file("environment/token.txt", "hidden\n")
        .tests(&graded_by(
            "grep -q inline /app/word && grep -q configured /etc/app.conf && grep -q configured /plain \\
             && grep -q hidden /run/secrets/token && grep -q hidden /run/secrets/other \\
             && grep -q 'NoNewPrivs:.*1' /proc/self/status",
        ))
}

#[test]
fn platforms_inline_dockerfiles_configs_and_secrets_work_on_docker() {
    expect_rewards(on(&TestEngine::shared()), vec![(own_files(), 1.0)]);
}

#[test]
fn a_platform_that_the_engine_does_not_have_is_refused() {
    let task = composed("foreign", "services: {main: {platform: linux/s390x}}\n");
    let refused = on(&TestEngine::shared()).oracle().task(task).run().expect(1);
    let message = result(&refused, "foreign")["error"]["message"].to_string();
    assert!(message.contains("the compose file names the platform linux/s390x"), "{message}");
    assert!(message.contains(own_platform()), "{message}");
}

/// The tests run in their own environment, and reach a server that the agent left running in the other one.
#[test]
fn separate_tests_reach_the_agent_of_a_compose_task_by_name() {
    let toml = "artifacts = [\"/app/done\"]\n[verifier]\nenvironment_mode = \"separate\"\nagent_hostname = \"contestant\"\n";
    let compose = format!("services:\n  main: {{}}\n  web:\n{}", web("beside"));
    let solution = "touch /app/done\n\
        setsid perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(LocalPort => 8080, Listen => 5, ReuseAddr => 1) or die; \
        while ($c = $s->accept) { while (<$c>) { last if /^\\r/ } print $c \"HTTP/1.0 200 OK\\r\\n\\r\\nworking\"; close $c }' > /dev/null 2>&1 &\n\
        until (exec 3<>/dev/tcp/127.0.0.1/8080) 2>/dev/null; do sleep 0.1; done\n";
    let tests =
        reaches("[ -e /app/done ] && page contestant 8080 | grep -q working && page web 80 | grep -q beside");
    let task = with_config("named-agent", toml, &compose).solution(solution).tests(&tests);
    expect_rewards(on(&TestEngine::shared()), vec![(task, 1.0)]);
}

/// Tasks whose tests here are not only about the reward.
pub(super) fn others() -> Vec<TestTask> {
    vec![own_files(), collected_late(), tests_command()]
}

/// Harbor stops `main` before it collects from other services (`_collect_artifacts_phased` in its `trial.py`).
fn collected_late() -> TestTask {
    let toml = "artifacts = [{source = \"/srv/result\", service = \"other\"}]\n[verifier]\nenvironment_mode = \"separate\"\n\
        [[verifier.collect]]\ncommand = \"echo true > /data/state; sleep 2; cp /data/state /srv/result\"\nservice = \"other\"\n";
    let compose = "services:
  main: {volumes: ['data:/data']}
  other: {image: test, command: [sh, -c, 'mkdir -p /srv; exec sleep infinity'], volumes: ['data:/data']}
volumes: {data: {}}
";
    let solution = "setsid bash -c 'while :; do echo forged > /data/state; sleep 0.1; done' > /dev/null 2>&1 &\n\
        until [ -e /data/state ]; do sleep 0.1; done\n";
    with_config("collected-late", toml, compose)
        .solution(solution)
        .tests(&graded_by("[ \"$(cat /srv/result)\" = true ]"))
}

#[test]
fn the_agent_cannot_change_what_is_collected_from_other_services_for_separate_tests() {
    expect_rewards(on(&TestEngine::shared()), vec![(collected_late(), 1.0)]);
}

fn tests_command() -> TestTask {
    let compose = "services:
  main:
    build: .
    command: [sh, -c, 'echo $$WORD > /app/started; exec sleep infinity']
    environment: {WORD: here}
    healthcheck: {test: 'test -s /app/started', interval: 1s, retries: 30}
";
    let toml = "artifacts = [\"/app/done\"]\n[verifier]\nenvironment_mode = \"separate\"\n";
    task("tests-command", toml)
        .file("tests/docker-compose.yaml", compose)
        .file("tests/Dockerfile", "FROM test\nWORKDIR /app\nCOPY test.sh /tests/test.sh\n")
        .tests(&graded_by("[ -e /app/done ] && [ \"$(cat /app/started) $WORD\" = 'here here' ]"))
}

#[test]
fn the_command_of_separate_tests_runs_with_the_variables_of_their_compose_file() {
    expect_rewards(on(&TestEngine::shared()), vec![(tests_command(), 1.0)]);
}

#[test]
fn compose_files_run_on_podman() {
    let chosen = ["by-name", "completed", "binds", "compose-separate"];
    let rows = rows().into_iter().filter(|(task, _)| chosen.contains(&task.name())).collect();
    expect_rewards(on(&TestEngine::podman()), rows);
}

#[test]
fn a_service_that_fails_while_it_starts_ends_the_trial_with_its_last_lines() {
    let engine = TestEngine::shared();
    let job = on(&engine)
        .oracle()
        .task(composed(
            "dies",
            "services:\n  main: {}\n  db:\n    image: test\n    command: sh -c 'echo no disk >&2; exit 3'\n",
        ))
        .task(composed(
            "unhealthy",
            "services:
  main: {}
  db:
    image: test
    command: sh -c 'echo still thinking; exec sleep infinity'
    healthcheck: {test: [CMD, 'false'], interval: 100ms, retries: 2}
",
        ))
        .task(composed("no-image", "services: {main: {}, db: {image: 'absent:1'}}\n"))
        .task(composed("no-command", "services: {main: {}, db: {image: test}}\n"));
    let finished = job.run().expect(1);
    let error = |task: &str| {
        let error = result(&finished, task)["error"].clone();
        format!("{}: {}", error["type"].as_str().unwrap(), error["message"].as_str().unwrap())
    };
    let dies = error("dies");
    assert!(dies.starts_with("environment_start_failed: the service db exited with code 3"), "{dies}");
    assert!(dies.ends_with("while it started\nno disk"), "{dies}");
    let unhealthy = error("unhealthy");
    assert!(
        unhealthy.contains("the service db is unhealthy: its health check exited with code 1"),
        "{unhealthy}"
    );
    assert!(unhealthy.ends_with("still thinking"), "{unhealthy}");
    let no_image = error("no-image");
    assert!(
        no_image.starts_with("environment_image_pull_failed: the image of the service db: "),
        "{no_image}"
    );
    let no_command = error("no-command");
    assert!(no_command.contains("the service db has no command"), "{no_command}");
    for name in ["dies", "unhealthy", "no-image", "no-command"] {
        nothing_left(&engine, name);
    }
}

/// Waits until nothing on the engine has this text in its name.
#[track_caller]
pub(super) fn nothing_left(engine: &TestEngine, text: &str) {
    let named = |all: BTreeSet<String>| all.into_iter().any(|name| name.contains(text));
    until("nothing is left", || {
        let holdings = engine.holdings();
        !named(holdings.containers) && !named(holdings.networks) && !named(holdings.volumes)
    });
}

#[test]
fn what_a_compose_file_cannot_have_is_reported_with_its_position() {
    let job = on(&TestEngine::shared()).oracle().task(composed(
        "odd",
        "services:
  main:
    security_opt: [seccomp:unconfined]
    depends_on: [nowhere]
  db:
    imge: redis
    network_mode: host
    volumes: [/etc:/etc, lost:/data]
    healthcheck: {interval: soon}
",
    ));
    let error = result(&job.run().expect(1), "odd")["error"].clone();
    assert_eq!(error["type"], "task_invalid");
    let message = error["message"].as_str().unwrap();
    for expected in [
        "`services.main.security_opt` is not supported",
        "docker-compose.yaml:3:5",
        "there is no service `nowhere`, on which this one depends",
        "`services.db.imge` is not supported",
        "did you mean `image`?",
        "`services.db.network_mode: host` is not supported",
        "`/etc` is outside of the task",
        "there is no volume `lost` in this file",
        "`services.db.healthcheck.interval` must be a duration such as `10s`, not `soon`",
        "`image` is missing in `services.db`",
    ] {
        assert!(message.contains(expected), "{expected}: {message}");
    }
}

#[test]
fn a_privileged_service_needs_the_consent_of_the_job() {
    let engine = TestEngine::shared();
    let task = || composed("mighty", "services:\n  main: {privileged: true}\n");
    let refused = on(&engine).oracle().task(task()).run().expect(1);
    let message = result(&refused, "mighty")["error"]["message"].to_string();
    assert!(message.contains("allow_privileged"), "{message}");
    let allowed = json!({"type": "docker", "provider_config": {"allow_privileged": true}});
    let started = on(&engine).set("environment", allowed).oracle().task(task()).run();
    // The engine of the tests may have too few privileges itself to give a container all of them, but it is asked.
    let error = result(&started, "mighty")["error"].clone();
    assert!(!error.to_string().contains("allow_privileged"), "{error}");
    assert!(error.is_null() || error["type"] == "environment_start_failed", "{error}");
    let capable = on(&engine).oracle().task(composed("able", "services: {main: {cap_add: [SYS_ADMIN]}}\n"));
    let message = result(&capable.run().expect(1), "able")["error"]["message"].to_string();
    assert!(message.contains("allow_privileged"), "{message}");
}

#[test]
fn a_compose_file_with_only_main_runs_natively() {
    let job = native().task(
        composed(
            "alone",
            "services:\n  main:\n    build: {context: .}\n    working_dir: /srv\n    environment: [WORD=native]\n    ports: ['80:80']\n",
        )
        .solution("[ \"$WORD:$PWD\" = native:/srv ] && touch /app/done\n"),
    );
    assert_eq!(result(&job.oracle().run().expect(0), "alone")["reward"], 1.0);
}

#[test]
fn variables_come_from_the_task_and_the_user_and_a_missing_one_refuses_the_task() {
    let services = "services:\n  main:\n    environment: [\"WORD=${WORD}-${TOKEN}-$$x\"]\n";
    let given = with_config("given", "[environment.env]\nWORD = \"own\"\n", services)
        .solution("[ \"$WORD\" = own ] && touch /app/done\n");
    let job = on(&TestEngine::shared()).env("TOKEN", "a-secret-token").oracle();
    let job =
        job.task(given).task(composed("missing", "services: {main: {image: \"${ABSENT_VARIABLE}\"}}\n"));
    let finished = job.run().expect(1);
    assert_eq!(result(&finished, "given")["reward"], 1.0);
    let message = result(&finished, "missing")["error"]["message"].to_string();
    assert!(message.contains("the variable `ABSENT_VARIABLE` is not set"), "{message}");
}

#[test]
fn tasks_of_every_form_survive_a_kill_and_leave_nothing_behind() {
    let engine = TestEngine::shared();
    let execute = "touch /app/done; if [ -n \"$SLOW\" ]; then sleep 600; fi";
    let agent = json!({"name": "agent", "execute": execute, "env": {"SLOW": "${SLOW:-}"}});
    let mut job = on(&engine).agent(agent);
    let compose = "services:
  main: {volumes: ['data:/data']}
  db: {image: test, command: sleep infinity, volumes: ['data:/data']}
volumes: {data: {}}
";
    for number in 0..10 {
        job = job.task(composed(&format!("killed-compose-{number}"), compose));
    }
    let separate = "artifacts = [\"/app/done\"]\n[verifier]\nenvironment_mode = \"separate\"\n";
    for number in 0..5 {
        job = job.task(task(&format!("killed-separate-{number}"), separate));
    }
    for number in 0..5 {
        let steps = "[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n";
        let tests = graded_by("[ -e /app/done ]");
        let steps =
            ["one", "two"].iter().fold(task(&format!("killed-steps-{number}"), steps), |task, step| {
                task.file(&format!("steps/{step}/instruction.md"), "Go on.\n")
                    .file(&format!("steps/{step}/tests/test.sh"), &tests)
            });
        job = job.task(steps.file("steps/one/workdir/.keep", ""));
    }
    let slow = job.set("n_concurrent_trials", json!(20)).env("SLOW", "yes");
    let mut running = slow.start();
    running.until_phase("execute", 20);
    let is_composed = |name: &String| name.contains("killed-compose");
    assert_eq!(engine.networks().iter().filter(|name| is_composed(name)).count(), 10);
    assert_eq!(engine.volumes().iter().filter(|name| is_composed(name)).count(), 10);
    running.signal("-KILL");
    running.finish();
    until("all containers stop", || !engine.running().iter().any(|name| name.contains("killed-")));
    let resumed = slow.env("SLOW", "").rollout(&["resume", "jobs/job"]).expect(0);
    let result = resumed.result();
    assert_eq!(result["completed_trials"], 20);
    let rewards: Vec<_> = result["results"].as_array().unwrap().iter().map(|row| &row["reward"]).collect();
    assert_eq!(rewards, vec![1.0; 20]);
    nothing_left(&engine, "killed-");
}
