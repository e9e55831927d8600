//! The key of the model's server is nowhere that an agent could find it, and in no file that a job leaves.

use super::*;

/// The key as a pattern that does not match itself, so that no command that searches for it is found.
const PATTERN: &str = "sk-real-key-of-the-provider-01234[5]6789";

/// Searches variables and arguments of all processes, and files, while the agent runs. What it finds is collected with
/// the agent's logs. A second search shows that the first would have found something: it looks for a text that is in a
/// file and in a variable.
fn search(files: &str) -> String {
    format!(
        "cd / && echo sk-of-control-1 > /tmp/control && CONTROL=sk-of-control-1 sleep 600 & sleep 1\n\
         look() {{ grep -lsaE \"$1\" /proc/[0-9]*/environ /proc/[0-9]*/cmdline; {files} | xargs -0 grep -lsaE \"$1\"; }}\n\
         look '{PATTERN}' > /logs/agent/found.txt\n\
         look 'sk-of-control-[1]' > /logs/agent/control.txt\n\
         kill %1; printf 'Hello\\n' > /app/hello.txt"
    )
}

fn finds_no_key(job: TestJob, files: &str, server: ModelServer) {
    let job = job.task(HELLO.task("test"));
    let cache = job.root().join("cache");
    let job = job.set("gateway", json!({"cache": cache}));
    let ran = job.run().expect(0);
    let path = "claude-code/set/hello__1";
    assert_eq!(ran.trial(path)["reward"], 1.0, "{:#}", ran.trial(path));
    assert_eq!(ran.file(&format!("{path}/logs/agent/found.txt")), "", "searched with {files}");
    let control = ran.file(&format!("{path}/logs/agent/control.txt"));
    assert!(control.contains("/environ") && control.contains("/tmp/control"), "{control}");
    assert!(cache.read_dir().unwrap().next().is_some(), "the cache was used");
    // The job's directory, the gateway's cache, and what native environments leave.
    let holding = rollout_testkit::files_holding(job.root(), KEY);
    assert!(holding.is_empty(), "the key is in {holding:?}");
    let sent = server.requests();
    assert!(sent.iter().all(|request| request.header("x-api-key") == Some(KEY)), "the server got it");
}

/// A model that lets Claude Code run this command, which may take long.
fn runs(command: String) -> ModelServer {
    let script = move |request: &ModelRequest| {
        let arguments = json!({"command": command, "description": "Searches", "timeout": 600_000});
        let reply = match has_worked(request) {
            false => ModelReply::tool_call("Bash", &arguments),
            true => ModelReply::text("done"),
        };
        reply.usage(COUNTS)
    };
    ModelServer::scripted(script).key(KEY)
}

#[test]
fn no_process_and_no_file_of_a_sandbox_has_the_key() {
    // Of the host's programs only what is new: there are too many to read.
    let files = "find / \\( -path /proc -o -path /sys \\) -prune -o -type f -cmin -240 -size -200M -print0";
    let server = runs(search(files));
    finds_no_key(native("claude-code", &served_by(&server, "messages")), files, server);
}

#[test]
fn no_process_and_no_file_of_a_container_has_the_key() {
    let files = "find / \\( -path /proc -o -path /sys \\) -prune -o -type f -print0";
    let server = runs(search(files));
    finds_no_key(docker("claude-code", &served_by(&server, "messages")), files, server);
}
