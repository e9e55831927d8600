//! `code`: what programs can do, and what they cannot.

use std::time::Duration;

use rollout_testkit::long_enough;
use serde_json::{Value, json};

use super::server::{Server, place, until};

fn python(server: &Server, worker: &str, code: &str) -> Value {
    let mut answer = server.execute(worker, "code:python", &json!({"code": code}));
    assert_eq!(answer["code"], 0, "{answer}");
    answer["data"].take()
}

#[test]
fn the_output_and_the_exit_status_of_a_program_are_returned() {
    let server = Server::start();
    server.open("w", "code");
    let data = python(&server, "w", "import sys\nprint('out')\nprint('err', file=sys.stderr)");
    assert_eq!(
        data,
        json!({
            "result": "out\nerr\n", "stdout": "out\n", "stderr": "err\n", "exit_code": 0, "timed_out": false,
            "truncated": false, "bytes_left_out": 0, "out_of_memory": false,
        })
    );
    let data = python(&server, "w", "x = 1\nraise ValueError('no')");
    assert_eq!(data["exit_code"], 1);
    let result = data["result"].as_str().unwrap();
    // Its own line is shown, as in a file.
    assert!(result.contains("line 2") && result.contains("raise ValueError('no')"), "{result}");
    assert!(result.ends_with("ValueError: no\n[exit code 1]"), "{result}");
    assert_eq!(python(&server, "w", "pass")["result"], "[no output]");
    assert_eq!(server.shell("w", "kill -9 $$"), "[killed by signal 9]");
    // A program longer than an argument of a command may be.
    let long = format!("text = '{}'\nprint(len(text))", "x".repeat(1 << 20));
    assert_eq!(python(&server, "w", &long)["result"], "1048576\n");
    server.stop();
}

#[test]
fn files_stay_between_calls_and_no_other_session_sees_them() {
    let server = Server::start();
    server.open("a", "code");
    server.open("b", "code");
    python(&server, "a", "open('notes.txt', 'w').write('of a'); open('helper.py', 'w').write('VALUE = 42')");
    assert_eq!(server.shell("a", "cat notes.txt"), "of a");
    assert_eq!(python(&server, "a", "import helper; print(helper.VALUE)")["result"], "42\n");
    assert_eq!(
        server.shell("b", "ls /workspace; cat /workspace/notes.txt 2>/dev/null || echo none"),
        "none\n"
    );
    // Neither the other's processes nor this machine's.
    server.shell("a", "sleep 987 & echo on");
    assert_eq!(server.shell("b", "ps ax | grep -c '[s]leep 987' || true"), "0\n");
    server.stop();
}

#[test]
fn a_session_may_start_with_files_below_the_roots() {
    let job = place(&json!({"resources": {"code": {"roots": ["data"]}}}))
        .file("data/set/table.csv", "a,b\n1,2\n")
        .file("data/one.txt", "one")
        .file("data/.env", "secret")
        .file("secret.txt", "secret");
    std::os::unix::fs::symlink("..", job.root().join("data/up")).unwrap();
    let server = Server::in_place(job, &[]);
    let open = |worker: &str, path: &str| {
        let config =
            json!({"worker_id": worker, "resource_type": "code", "session_config": {"seed_path": path}});
        server.post("/api/v1/session/create", &config)
    };
    assert_eq!(open("folder", "set").0, 200);
    assert_eq!(server.shell("folder", "cat table.csv"), "a,b\n1,2\n");
    assert_eq!(open("file", "one.txt").0, 200);
    assert_eq!(server.shell("file", "cat one.txt"), "one");
    for outside in ["../secret.txt", "up/secret.txt", "/etc", "set/../../secret.txt", ""] {
        let (status, answer) = open("outside", outside);
        if outside.is_empty() {
            // The root itself, whose link to the outside leads nowhere inside.
            assert_eq!(status, 200);
            assert_eq!(server.shell("outside", "cat up/secret.txt 2>/dev/null || echo nothing"), "nothing\n");
            assert_eq!(server.shell("outside", "ls -A"), "one.txt\nset\n");
            continue;
        }
        assert_eq!((status, &answer["code"]), (500, &json!(4007)), "{outside}");
    }
    let image = json!({"worker_id": "i", "resource_type": "code", "session_config": {"image": "evil/image"}});
    assert_eq!(server.post("/api/v1/session/create", &image).0, 500);
    server.stop();
}

#[test]
fn a_program_that_takes_too_long_is_killed_with_all_that_it_started() {
    let server = Server::start();
    server.open("w", "code");
    let code = "import subprocess, time\nsubprocess.Popen(['setsid', 'sleep', '987'])\n\
                print('half', flush=True)\ntime.sleep(1000)";
    long_enough(Duration::from_secs(1), |timeout| {
        let seconds = timeout.as_secs();
        let answer = server.execute("w", "code:python", &json!({"code": code, "timeout": seconds}));
        let data = &answer["data"];
        assert_eq!(
            (&answer["code"], &data["timed_out"], &data["exit_code"]),
            (&json!(0), &json!(true), &Value::Null)
        );
        let killed = format!("[killed: timed out after {seconds} seconds]");
        if data["result"] == killed {
            return None;
        }
        assert_eq!(data["result"], format!("half\n{killed}"));
        Some(())
    });
    assert_eq!(server.shell("w", "ps ax | grep -c '[s]leep 987' || true"), "0\n");
    // The time of a call counts too, and what was printed by then is reported.
    long_enough(Duration::from_secs(3), |timeout| {
        let body = json!({
            "worker_id": "w", "action": "code:shell", "params": {"command": "echo half; sleep 987", "timeout": 1000},
            "timeout": timeout.as_secs(),
        });
        let answer = server.post("/api/v1/execute", &body).1;
        let data = &answer["data"];
        // Otherwise the program had no time to print, or the server none to report it.
        if answer["code"] == 5006 || data["stdout"] == "" {
            return None;
        }
        assert_eq!((&answer["code"], &data["timed_out"]), (&json!(0), &json!(true)), "{answer}");
        assert_eq!(data["stdout"], "half\n");
        Some(())
    });
    // The same when the server gives up on the call.
    long_enough(Duration::from_millis(500), |timeout| {
        let command = "setsid sleep 654 & touch begun; sleep 654";
        let body = json!({
            "worker_id": "w", "action": "code:shell", "params": {"command": command},
            "timeout": timeout.as_secs_f64(),
        });
        assert_eq!(server.post("/api/v1/execute", &body).1["code"], 5006);
        until(|| server.shell("w", "ps ax | grep -c '[s]leep 654' || true") == "0\n");
        (server.shell("w", "ls begun || true") == "begun\n").then_some(())
    });
    server.stop();
}

#[test]
fn output_without_end_is_cut_in_the_middle() {
    let server = Server::start();
    server.open("w", "code");
    let data = python(
        &server,
        "w",
        "print('start')\nfor _ in range(100):\n    print('x' * 1_000_000)\nprint('end')",
    );
    assert_eq!(data["truncated"], true);
    let result = data["result"].as_str().unwrap();
    assert!(result.starts_with("start\n") && result.ends_with("end\n"));
    assert!(result.len() < 40_000, "{}", result.len());
    let left_out = data["bytes_left_out"].as_u64().unwrap();
    assert!(result.contains(&format!("[{left_out} bytes are left out here]")));
    assert_eq!(left_out, 6 + 100 * 1_000_001 + 4 - 32 * 1024);
    server.stop();
}

#[test]
fn memory_and_processes_have_bounds_and_the_server_none_the_worse() {
    let server = Server::with(&json!({"resources": {"code": {"memory": "128Mi", "pids": 32}}}));
    server.open("w", "code");
    let data = python(&server, "w", "x = bytearray(1 << 30)\nprint(len(x))");
    assert!(data["exit_code"] != 0, "{data}");
    let bomb = "import os, time\nforked = 0\ntry:\n    while True:\n        if os.fork() == 0:\n            time.sleep(100)\n            os._exit(0)\n        forked += 1\nexcept OSError:\n    print('stopped', forked < 40)";
    assert_eq!(python(&server, "w", bomb)["result"], "stopped True\n");
    assert_eq!(server.get("/health").0, 200);
    server.open("other", "code");
    assert_eq!(server.shell("other", "echo fine"), "fine\n");
    server.stop();
}

#[test]
fn programs_reach_no_network_unless_configured() {
    let server = Server::start();
    server.open("w", "code");
    let code = format!(
        "import socket\ntry:\n    socket.create_connection(('127.0.0.1', {}), 5)\n    print('reached')\nexcept OSError:\n    print('refused')",
        server.address.port()
    );
    assert_eq!(python(&server, "w", &code)["result"], "refused\n");
    server.stop();
}

#[test]
fn programs_see_nothing_of_the_server() {
    let job = place(&json!({})).env("SECRET_OF_THE_SERVER", "sk-of-the-server").file("mine.txt", "m");
    let root = job.root().display().to_string();
    let server = Server::in_place(job, &[]);
    server.open("w", "code");
    let seen =
        server.shell("w", &format!("env; ls {root} 2>/dev/null; cat /proc/1/environ | tr '\\0' '\\n'"));
    assert!(!seen.contains("sk-of-the-server") && !seen.contains("mine.txt"), "{seen}");
    server.stop();
}
