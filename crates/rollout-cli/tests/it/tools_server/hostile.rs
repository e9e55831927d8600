//! Requests that no client would send by mistake. The server refuses them and stays up.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use serde_json::json;

use super::server::{Server, reported, until};
use crate::http::{self, head, send};

#[test]
fn a_body_that_is_too_large_is_refused_however_it_comes() {
    let server = Server::with(&json!({"server": {"max_body_bytes": 1000}}));
    let large = json!({"worker_id": "w", "action": "code:shell", "params": {"command": "x".repeat(2000)}});
    let (status, answer) = server.post("/api/v1/execute", &large);
    assert_eq!((status, &answer["code"]), (413, &json!(4000)));
    // Said to be small, by chunks.
    let chunked = [("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")];
    let mut body = Vec::new();
    for _ in 0..3 {
        body.extend(format!("{:x}\r\n{}\r\n", 500, " ".repeat(500)).bytes());
    }
    body.extend(b"0\r\n\r\n");
    let (status, answer) = reported(send(server.address, &head("POST", "/api/v1/execute", &chunked), &body));
    assert_eq!((status, &answer["code"]), (413, &json!(4000)));
    // Said to be larger than anything.
    let absurd = [("Content-Type", "application/json"), ("Content-Length", "18446744073709551615")];
    let answer = send(server.address, &head("POST", "/api/v1/execute", &absurd), b"");
    assert!([400, 413, 431].contains(&answer.status), "{}", answer.status);
    assert_eq!(server.get("/health").0, 200);
    server.stop();
}

#[test]
fn what_is_not_json_of_the_protocol_is_refused() {
    let server = Server::start();
    let with = |kind: &str, body: &[u8]| {
        let length = body.len().to_string();
        let headers = [("Content-Type", kind), ("Content-Length", length.as_str())];
        let (status, answer) =
            reported(send(server.address, &head("POST", "/api/v1/execute", &headers), body));
        (status, answer["code"].as_u64().unwrap())
    };
    let json = "application/json";
    let deep = format!(
        "{{\"worker_id\":\"w\",\"action\":\"code:shell\",\"params\":{{\"a\":{}1{}}}}}",
        "[".repeat(5000),
        "]".repeat(5000)
    );
    let bodies: [&[u8]; 9] = [
        b"{",
        b"null",
        b"[]",
        b"\"text\"",
        b"\xff\xfe",
        b"{\"worker_id\": 1}",
        b"",
        deep.as_bytes(),
        br#"{"worker_id": "w", "worker_id": "v", "action": "a"}"#,
    ];
    for body in bodies {
        assert_eq!(with(json, body), (400, 4002), "{}", String::from_utf8_lossy(&body[..body.len().min(60)]));
    }
    let good = br#"{"worker_id": "w", "action": "code:shell", "params": {"command": "true"}}"#;
    // What a web page can send without asking first.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
        assert_eq!(with(kind, good), (415, 4002), "{kind}");
    }
    assert_eq!(with("application/json; charset=utf-8", good), (200, 0));
    let name = "x".repeat(100_000);
    let long = json!({"worker_id": name, "action": "code:shell", "params": {}});
    assert_eq!(server.post("/api/v1/execute", &long).1["code"], 4002);
    let long = json!({"worker_id": "w", "action": name, "params": {}});
    let (status, answer) = server.post("/api/v1/execute", &long);
    assert_eq!((status, &answer["code"]), (400, &json!(4002)));
    assert!(answer.to_string().len() < 1000);
    let many = json!({"worker_id": "w", "actions": vec![json!({"action": "code:shell"}); 10_000]});
    assert_eq!(server.post("/api/v1/execute/batch", &many).1["code"], 4002);
    server.stop();
}

#[test]
fn a_web_page_cannot_use_the_server_of_the_machine_it_is_shown_on() {
    let server = Server::start();
    let call = json!({"worker_id": "w", "action": "code:shell", "params": {"command": "id"}});
    for host in ["evil.example", "evil.example:18890", "127.0.0.1.evil.example"] {
        let (status, answer) =
            reported(http::post_with(server.address, "/api/v1/execute", &[("Host", host)], &call));
        assert_eq!((status, &answer["code"]), (403, &json!(4001)), "{host}");
    }
    // Without a body nothing needs to be asked first; it is refused for not being JSON.
    let (status, _) = reported(send(
        server.address,
        &head("POST", "/api/v1/server/shutdown", &[("Content-Length", "0")]),
        b"",
    ));
    assert_eq!(status, 415);
    assert_eq!(server.get("/health").0, 200);
    server.stop();
}

#[test]
fn names_and_headers_of_any_bytes_do_no_harm() {
    let server = Server::start();
    for worker in ["../../etc", "a\u{0}b", "\u{202e}", "'; DROP TABLE workers; --", "\r\nX-Evil: 1", "💥"] {
        let opened = server.open(worker, "code");
        let name = opened["session_name"].as_str().unwrap();
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte)), "{name}");
        assert_eq!(server.shell(worker, "pwd"), "/workspace\n");
    }
    server.until_sessions(6);
    let raw = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    let refused: [&[u8]; 5] = [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: \x00\r\n\r\n",
        b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"POST /api/v1/execute HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 50\r\n\r\nhello",
    ];
    for bytes in refused {
        let answer = raw(bytes);
        assert!(!answer.contains(" 200 "), "{}: {answer}", String::from_utf8_lossy(bytes));
    }
    let many: String = (0..1000).map(|n| format!("X-{n}: {}\r\n", "v".repeat(1000))).collect();
    assert!(
        !raw(format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{many}\r\n").as_bytes()).contains(" 200 ")
    );
    assert_eq!(server.get("/health").0, 200);
    server.stop();
}

#[test]
fn clients_that_send_nothing_do_not_keep_others_out() {
    let server = Server::with(&json!({"server": {"max_connections": 40}}));
    let half = "POST /api/v1/execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n";
    let mut slow: Vec<TcpStream> = (0..30).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    for (place, stream) in slow.iter_mut().enumerate() {
        stream.write_all(&half.as_bytes()[..place * 3]).unwrap();
    }
    assert_eq!(server.get("/health").0, 200);
    // With all connections taken a client waits, and comes in when one is given up.
    let mut more: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.get("/health").0);
        slow.clear();
        more.clear();
        assert_eq!(waiting.join().unwrap(), 200);
    });
    until(|| server.get("/ready").0 == 200);
    server.stop();
}

#[test]
fn private_addresses_and_paths_outside_are_refused_through_the_server_too() {
    let server = Server::start();
    let port = server.address.port();
    for url in [
        format!("http://127.0.0.1:{port}/ready"),
        format!("http://localhost:{port}/ready"),
        format!("http://[::1]:{port}/"),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "http://0x7f000001/".to_owned(),
        "file:///etc/passwd".to_owned(),
    ] {
        let answer = server.execute("w", "web:browse", &json!({"urls": [url]}));
        assert!(answer["code"] != 0 || !answer.to_string().contains("tools_count"), "{url}: {answer}");
        assert!(!answer.to_string().contains("root:"), "{url}: {answer}");
    }
    for path in ["/etc/passwd", "../../../../etc/passwd"] {
        let answer = server.execute("w", "doc:read", &json!({"seed_path": path}));
        assert!(answer["code"] != 0 && !answer.to_string().contains("root:"), "{path}: {answer}");
    }
    server.until_sessions(0);
    server.stop();
}
