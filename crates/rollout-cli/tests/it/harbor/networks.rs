//! Networks of tasks with an allow-list.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
};

use rollout_testkit::{TestEngine, TestJob, TestTask};
use serde_json::json;

use super::{docker, graded_by, native, result, steps::steps, task};

/// A server on the loopback of the host that answers every request.
fn server() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfound");
        }
    });
    port
}

/// A function for scripts: prints the answer of the proxy for a URL.
const FETCH: &str = "fetch() {
  exec 3<>\"/dev/tcp/127.0.0.1/${http_proxy##*:}\" || return 1
  printf 'GET %s HTTP/1.1\\r\\n\\r\\n' \"$1\" >&3
  cat <&3
}
";

/// Whether there is an interface other than loopback.
const HAS_NETWORK: &str = "[ $(grep -c : /proc/net/dev) != 1 ]";

fn lists(name: &str, toml: &str, port: u16) -> TestTask {
    let solution = format!(
        "{FETCH}fetch http://127.0.0.1:{port}/ | grep -q found && fetch http://elsewhere.test/ | grep -q '403 Forbidden' \
         && fetch http://127.0.0.2:{port}/ | grep -q 'not in allowed_hosts' && ! {HAS_NETWORK} && touch /app/done\n"
    );
    task(name, toml).solution(&solution)
}

fn only_listed_hosts_are_reached(job: TestJob) {
    let port = server();
    let toml =
        "[environment]\nnetwork_mode = \"allowlist\"\nallowed_hosts = [\"127.0.0.1\", \"*.example.org\"]\n";
    let tests = format!(
        "{FETCH}{}",
        graded_by(&format!("[ -e /app/done ] && fetch http://127.0.0.1:{port}/ | grep -q found"))
    );
    let whole = lists("whole", toml, port).tests(&tests);
    // Neither phase has a network, so nothing has to change but the list.
    let phases = format!(
        "{toml}[agent]\nallowed_hosts = [\"127.0.0.1\"]\n[verifier]\nnetwork_mode = \"no-network\"\n"
    );
    let phases =
        lists("phases", &phases, port).tests(&graded_by("[ -e /app/done ] && [ -z \"$http_proxy\" ]"));
    let separate =
        format!("artifacts = [\"/app/done\"]\n{toml}[verifier]\nenvironment_mode = \"separate\"\n");
    let separate = lists("separate", &separate, port).tests(&tests);
    let finished = job.oracle().task(whole).task(phases).task(separate).run().expect(0);
    for name in ["whole", "phases", "separate"] {
        let result = result(&finished, name);
        assert_eq!(result["reward"], 1.0, "{name}: {result:#}");
        let notes = result["notes"].to_string();
        assert!(notes.contains("were refused: 127.0.0.2, elsewhere.test"), "{notes}");
    }
}

#[test]
fn only_listed_hosts_are_reached_on_native() {
    only_listed_hosts_are_reached(native());
}

#[test]
fn only_listed_hosts_are_reached_on_docker() {
    only_listed_hosts_are_reached(docker());
}

#[test]
fn a_list_for_one_phase_takes_the_network_away_in_that_phase() {
    let port = server();
    let engine = TestEngine::shared();
    let job = native().set("environment", json!({"type": "docker"})).env("DOCKER_HOST", engine.host());
    let tests = format!("[ -e /app/done ] && {HAS_NETWORK} && [ -z \"$http_proxy\" ]");
    let agent = lists("agent", "[agent]\nallowed_hosts = [\"127.0.0.1\"]\n", port).tests(&graded_by(&tests));
    let steps = "[[steps]]\nname = \"one\"\n[steps.agent]\nallowed_hosts = [\"127.0.0.1\"]\n[[steps]]\nname = \"two\"\n";
    let of_step = lists("of-step", steps, port);
    let solve = format!("{HAS_NETWORK} && [ -z \"$http_proxy\" ] && touch /app/two\n");
    let of_step = of_step
        .file("steps/one/instruction.md", "One.\n")
        .file("steps/one/tests/test.sh", &graded_by("[ -e /app/done ]"))
        .file("steps/two/instruction.md", "Two.\n")
        .file("steps/two/solution/solve.sh", &solve)
        .file("steps/two/tests/test.sh", &graded_by("[ -e /app/two ]"));
    let finished = job.oracle().task(agent).task(of_step).run().expect(0);
    for name in ["agent", "of-step"] {
        let result = result(&finished, name);
        assert_eq!(result["reward"], 1.0, "{name}: {result:#}");
    }
}

/// Harbor restores the network of the task after each phase (`network_policy` in its environments).
#[test]
fn what_runs_between_phases_has_the_network_of_the_task() {
    let engine = TestEngine::shared();
    let job = native().set("environment", json!({"type": "docker"})).env("DOCKER_HOST", engine.host());
    let noted = |name: &str| format!("if {HAS_NETWORK}; then touch /app/{name}; fi");
    let toml = format!(
        "[verifier]\nnetwork_mode = \"no-network\"\n[[verifier.collect]]\ncommand = '''{}'''\n\
         [[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n[steps.healthcheck]\ncommand = '''{HAS_NETWORK}'''\n",
        noted("collected")
    );
    let between = steps("between", &toml, &[("one", "touch /app/one\n"), ("two", "touch /app/two\n")])
        .file("steps/one/tests/test.sh", &graded_by(&format!("[ -e /app/collected ] && ! {HAS_NETWORK}")))
        .file("steps/two/workdir/setup.sh", &noted("prepared"))
        .file("steps/two/tests/test.sh", &graded_by(&format!("[ -e /app/prepared ] && ! {HAS_NETWORK}")));
    let result = result(&job.oracle().task(between).run().expect(0), "between");
    assert_eq!(result["reward"], 1.0, "{result:#}");
}

#[test]
fn an_entry_that_is_not_a_host_is_reported() {
    let toml = "[environment]\nallowed_hosts = [\"http://example.org\", \"10.0.0.0/64\"]\n";
    let finished = native().oracle().task(task("odd", toml)).run().expect(1);
    let message = result(&finished, "odd")["error"]["message"].to_string();
    for entry in ["http://example.org", "10.0.0.0/64"] {
        assert!(message.contains(entry) && message.contains("is not a host name"), "{message}");
    }
}
