//! Tests that reach the agent's environment from one of their own.

use rollout_testkit::{TestEngine, TestJob, TestTask};
use serde_json::json;

const SERVE: &str = "cd /app; echo hello > page
setsid python3 -c '
import http.server
server = http.server.HTTPServer((\"127.0.0.1\", 0), http.server.SimpleHTTPRequestHandler)
open(\"/app/port.new\", \"w\").write(str(server.server_port))
import os; os.rename(\"/app/port.new\", \"/app/port\")
server.serve_forever()' > /dev/null 2>&1 &
until [ -e /app/port ]; do sleep 0.05; done";

const ASK: &str = "exec 3<> /dev/tcp/app/$(cat /app/port); printf 'GET /page HTTP/1.0\\r\\n\\r\\n' >&3
if grep -q hello <&3; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n";

const TASK: &str =
    "artifacts = [\"/app/port\"]\n[verifier]\nenvironment_mode = \"separate\"\nagent_hostname = \"app\"\n";

fn job() -> TestJob {
    TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .task(TestTask::new("task").config(TASK).tests(ASK))
        .script(SERVE)
}

#[test]
fn separate_tests_reach_a_service_of_the_agent_by_name() {
    let job = job();
    let result = job.run().expect(0).trial("agent/set/task__1");
    assert_eq!(result["reward"], 1.0, "{result:#}");
    job.expect_nothing_left();
}

/// Serves on a fixed port: a container has its own ports.
const SERVE_IN_CONTAINER: &str = "setsid perl -MIO::Socket::INET -e '
    my $server = IO::Socket::INET->new(LocalPort => 8080, Listen => 5) or die;
    open(my $file, \">\", \"/app/port.new\"); print $file 8080; close $file; rename \"/app/port.new\", \"/app/port\";
    while (my $client = $server->accept) {
        # An answer before the whole request could end the client while it writes.
        while (<$client>) { last if /^\\s*$/ }
        print $client \"hello\\n\"; close $client
    }
' > /dev/null 2>&1 &
until [ -e /app/port ]; do sleep 0.05; done";

#[test]
fn separate_tests_reach_a_service_of_the_agent_in_a_container_without_compose() {
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .on(&TestEngine::shared())
        .set("environment", json!({"type": "docker"}))
        .task(TestTask::new("task").config(TASK).tests(ASK))
        .script(SERVE_IN_CONTAINER);
    let result = job.run().expect(0).trial("agent/set/task__1");
    assert_eq!(result["reward"], 1.0, "{result:#}");
}

#[test]
fn an_environment_without_a_network_cannot_be_reached_and_the_trial_reports_it() {
    let job = job().set(
        "environment",
        json!({"type": "native", "provider_config": {"images": {"*": "host"}, "network": "none"}}),
    );
    let result = job.run().expect(1).trial("agent/set/task__1");
    assert_eq!(result["error"]["type"], "verifier_failed", "{result:#}");
    assert!(result["error"]["message"].as_str().unwrap().contains("provider_config"), "{result:#}");
}
