//! Sessions over time and in numbers.

use std::{io::Write as _, net::TcpStream, process::Stdio, time::Duration};

use rollout_testkit::long_enough;
use serde_json::{Value, json};

use super::server::{Server, address, place, until};
use crate::http::{self, head};

#[test]
fn two_hundred_sessions_at_the_same_time_have_an_environment_each() {
    const SESSIONS: usize = 200;
    let config = json!({"server": {"max_sessions": SESSIONS}, "resources": {"code": {"memory": "64Mi"}}});
    let server = Server::with(&config);
    let each = |work: &(dyn Fn(usize, &str) + Sync)| {
        std::thread::scope(|scope| {
            for number in 0..SESSIONS {
                scope.spawn(move || work(number, &format!("worker-{number}")));
            }
        });
    };
    each(&|number, worker| {
        server.open(worker, "code");
        assert_eq!(server.shell(worker, &format!("echo {number} > mine; ls /workspace")), "mine\n");
    });
    let ready = server.get("/ready").1;
    assert_eq!((&ready["active_workers"], &ready["total_sessions"]), (&json!(SESSIONS), &json!(SESSIONS)));
    assert_eq!(server.job.environments().len(), SESSIONS);
    let one_more = json!({"worker_id": "one more", "resource_type": "code"});
    assert_eq!(server.post("/api/v1/session/create", &one_more).1["code"], 5013);
    each(&|number, worker| {
        assert_eq!(server.shell(worker, "cat mine"), format!("{number}\n"));
        let left = server.post("/api/v1/worker/disconnect", &json!({"worker_id": worker})).1;
        assert_eq!(left["data"]["sessions_cleaned"], 1);
    });
    assert_eq!(server.sessions(), 0);
    until(|| server.job.environments().is_empty());
    server.stop();
}

#[test]
fn an_idle_session_expires_and_one_with_a_running_call_does_not() {
    long_enough(Duration::from_secs(3), only_the_idle_session_expires);
}

/// None if the session expired before its call began, which then had a temporary one.
fn only_the_idle_session_expires(time_to_live: Duration) -> Option<()> {
    let server = Server::with(&json!({"server": {"session_ttl_sec": time_to_live.as_secs()}}));
    let listed = |worker: &str| {
        server.post("/api/v1/session/list", &json!({"worker_id": worker})).1["data"]["count"].take()
    };
    let slow = json!({
        "worker_id": "busy", "action": "code:shell",
        "params": {"command": "[ -e own ] || exit; touch kept; until [ -e done ]; do sleep 0.05; done; echo seen"},
    });
    server.open("busy", "code");
    server.shell("busy", "touch own");
    let was_busy = std::thread::scope(|scope| {
        let call = scope.spawn(|| server.post("/api/v1/execute", &slow).1);
        until(|| call.is_finished() || server.shell("busy", "ls") == "kept\nown\n");
        if call.is_finished() {
            return false;
        }
        // Used after the other one, and expired before it: listing does not count as use.
        server.open("idle", "code");
        server.shell("idle", "touch mine");
        until(|| listed("idle") == 0);
        assert_eq!(listed("busy"), 1);
        let refresh = json!({"worker_id": "idle", "resource_type": "code"});
        let (status, answer) = server.post("/api/v1/session/refresh", &refresh);
        assert_eq!((status, &answer["code"]), (404, &json!(4007)));
        assert_eq!(server.shell("busy", "ls; touch done"), "kept\nown\n");
        assert_eq!(call.join().unwrap()["data"]["result"], "seen\n");
        until(|| listed("busy") == 0);
        true
    });
    server.until_sessions(0);
    until(|| server.job.environments().is_empty());
    server.stop();
    was_busy.then_some(())
}

#[test]
fn a_client_that_is_killed_takes_its_call_and_its_temporary_session_with_it() {
    let server = Server::start();
    server.open("kept", "code");
    let hang = |worker: &str| {
        let command = "touch /workspace/running; exec sleep 1000";
        let body = json!({"worker_id": worker, "action": "code:shell", "params": {"command": command, "timeout": 1000}});
        let body = body.to_string();
        let length = body.len().to_string();
        let headers = [("Content-Type", "application/json"), ("Content-Length", length.as_str())];
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(head("POST", "/api/v1/execute", &headers).as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        stream
    };
    let (kept, alone) = (hang("kept"), hang("alone"));
    until(|| server.job.environments().len() == 2 && server.shell("kept", "ls").contains("running"));
    assert_eq!(server.sessions(), 2);
    drop((kept, alone));
    server.until_sessions(1);
    until(|| server.job.environments().len() == 1);
    // The session that was there before is still there, without what the client left in it.
    let sleeping = "ps ax | grep 'sleep 100[0]' | wc -l";
    until(|| server.shell("kept", sleeping).trim() == "0");
    server.stop();
}

#[test]
fn calls_beyond_the_limit_wait_and_are_refused_when_it_takes_too_long() {
    let server = Server::with(&json!({"server": {"max_calls": 1}}));
    server.open("w", "code");
    let call = |command: &str, timeout: f64| {
        let body = json!({"worker_id": "w", "action": "code:shell", "params": {"command": command}, "timeout": timeout});
        server.post("/api/v1/execute", &body)
    };
    call("true", 600.0);
    long_enough(Duration::from_secs(2), |work| {
        std::thread::scope(|scope| {
            let first = scope.spawn(|| call(&format!("sleep {}; echo first", work.as_secs()), 600.0));
            // It has the one place as soon as another call does not get it.
            let mut was_refused = false;
            until(|| {
                let (status, answer) = call("echo early", 0.05);
                was_refused = (status, &answer["code"]) == (500, &json!(5013));
                was_refused || first.is_finished()
            });
            assert_eq!(call("echo second", 600.0).1["data"]["result"], "second\n");
            assert_eq!(first.join().unwrap().1["data"]["result"], "first\n");
            was_refused.then_some(())
        })
    });
    server.stop();
}

#[test]
fn a_worker_cannot_have_all_sessions() {
    let server = Server::with(&json!({"server": {"max_sessions_per_worker": 1}}));
    server.open("w", "code");
    let second = server.post("/api/v1/session/create", &json!({"worker_id": "w", "resource_type": "sql"})).1;
    assert_eq!(second["code"], 5013);
    server.open("other", "sql");
    server.stop();
}

#[test]
fn a_killed_server_leaves_nothing_behind() {
    let server = Server::start();
    for worker in ["a", "b"] {
        server.open(worker, "code");
        server.shell(worker, "sleep 1000 & echo left");
    }
    assert_eq!(server.job.environments().len(), 2);
    server.signal("-KILL");
    server.finish();
}

#[test]
fn a_server_can_end_with_its_standard_input() {
    let job = place(&json!({}));
    let arguments = ["tools", "serve", "--port", "0", "--until-stdin-closes"];
    let files = ["stdout", "stderr"].map(|name| std::fs::File::create(job.root().join(name)).unwrap());
    let [stdout, stderr] = files;
    let mut child =
        job.command(&arguments).stdin(Stdio::piped()).stdout(stdout).stderr(stderr).spawn().unwrap();
    let address = address(&job, || child.try_wait().unwrap().is_none());
    let body = json!({"worker_id": "w", "resource_type": "code"});
    assert_eq!(http::post(address, "/api/v1/session/create", &body).status, 200);
    drop(child.stdin.take());
    let mut status = None;
    until(|| {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success());
    job.expect_nothing_left();
}

#[test]
fn a_signal_ends_calls_without_a_session_too() {
    let server = Server::start();
    let hang = json!({"worker_id": "w", "action": "code:shell", "params": {"command": "sleep 1000"}});
    let answer: Value = std::thread::scope(|scope| {
        let call = scope.spawn(|| server.post("/api/v1/execute", &hang).1);
        until(|| server.get("/ready").1["total_sessions"] == 1);
        server.signal("-INT");
        call.join().unwrap()
    });
    assert_eq!(answer["code"], 4007, "{answer}");
    server.finish().expect(0);
}

#[test]
fn a_signal_ends_calls_and_sessions_in_good_order() {
    let server = Server::start();
    server.open("w", "code");
    let hang =
        json!({"worker_id": "w", "action": "code:shell", "params": {"command": "touch on; sleep 1000"}});
    let answer: Value = std::thread::scope(|scope| {
        let call = scope.spawn(|| server.post("/api/v1/execute", &hang).1);
        until(|| server.shell("w", "ls").contains("on"));
        server.signal("-INT");
        call.join().unwrap()
    });
    assert_eq!(answer["code"], 4007, "{answer}");
    server.finish().expect(0);
}
