use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    extract::Path,
    http::{HeaderMap, StatusCode, header},
    response::{Html, IntoResponse as _, Redirect},
    routing::get,
};
use insta::assert_snapshot;
use rollout_tools::{
    ErrorCode, Resource as _, ToolError,
    web::{Web, WebConfig},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::{call, serve};

/// Reads a page of an allowed server.
async fn read(address: SocketAddr, path: &str) -> Result<Value, ToolError> {
    read_with(address, json!({}), json!({"urls": format!("http://{address}{path}")})).await
}

async fn read_with(address: SocketAddr, mut config: Value, params: Value) -> Result<Value, ToolError> {
    config["allow_hosts"] = json!([address.to_string()]);
    call(config, "browse", params).await
}

fn text(answer: &Value, address: SocketAddr) -> String {
    answer["result"].as_str().unwrap().replace(&address.to_string(), "host")
}

/// Answers every connection with what the function writes to it.
async fn serve_raw<F, W>(answer: F) -> SocketAddr
where
    F: Fn(TcpStream) -> W + Send + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            tokio::spawn(answer(stream));
        }
    });
    address
}

/// Answers with these bytes and closes the connection.
async fn serve_bytes(bytes: impl Into<Vec<u8>>) -> SocketAddr {
    let bytes = Arc::new(bytes.into());
    serve_raw(move |mut stream| {
        let bytes = Arc::clone(&bytes);
        async move {
            let _ = stream.write_all(&bytes).await;
        }
    })
    .await
}

#[tokio::test]
async fn a_page_is_shown_as_markdown_with_its_title_and_address() {
    let page =
        "<title>A page</title><nav>Menu</nav><h1>Heading</h1><p>Text with a <a href='../other?q=1'>link</a>.";
    let app = Router::new()
        .route("/", get(|| async { Redirect::temporary("/docs/page#part") }))
        .route("/docs/page", get(move || async move { Html(page) }));
    let address = serve(app).await;
    let answer = read(address, "/").await.unwrap();
    assert_snapshot!(text(&answer, address), @r"
    A page
    http://host/docs/page#part

    # Heading

    Text with a [link](http://host/other?q=1).
    ");
    assert_eq!(answer["failed"], json!([]));
    assert_eq!(answer["pages"][0]["title"], "A page");
    assert_eq!(answer["pages"][0]["content_type"], "text/html; charset=utf-8");
    assert_eq!(answer["pages"][0]["truncated"], false);
}

#[tokio::test]
async fn visit_and_fetch_are_aliases_of_browse() {
    let tools = Web::new(WebConfig::default()).unwrap().tools();
    let browse = tools.iter().find(|tool| tool.name == "browse").unwrap();
    assert_eq!(browse.aliases, ["visit", "fetch"]);
    let error = call(json!({}), "click", json!({})).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidRequest);
}

#[tokio::test]
async fn a_server_receives_the_user_agent_and_nothing_else() {
    let app = Router::new().route(
        "/",
        get(|headers: HeaderMap| async move {
            let mut names: Vec<_> = headers.keys().map(|name| name.as_str().to_owned()).collect();
            names.sort();
            format!("{}: {}", names.join(" "), headers[header::USER_AGENT].to_str().unwrap())
        }),
    );
    let address = serve(app).await;
    let answer =
        read_with(address, json!({"user_agent": "reader/1"}), json!({"url": format!("http://{address}")}))
            .await;
    assert!(text(&answer.unwrap(), address).ends_with("accept accept-encoding host user-agent: reader/1"));
}

#[tokio::test]
async fn a_long_page_is_read_in_parts() {
    let app = Router::new()
        .route("/", get(|| async { (1..=100).map(|n| format!("line {n}\n")).collect::<String>() }));
    let address = serve(app).await;
    let config = json!({"max_chars": 300});
    let url = format!("http://{address}/");
    let mut seen = String::new();
    let mut start = 0;
    loop {
        let answer =
            read_with(address, config.clone(), json!({"url": url.clone(), "start": start})).await.unwrap();
        let text = text(&answer, address);
        let (head, body) = text.split_once("\n\n").unwrap();
        seen.push_str(body);
        let page = &answer["pages"][0];
        start = page["end"].as_u64().unwrap();
        let goes_on = start < page["total"].as_u64().unwrap();
        assert_eq!(head.contains(&format!("; continue with start={start}]")), goes_on, "{head}");
        if !goes_on {
            break;
        }
    }
    assert_eq!(seen, (1..=100).map(|n| format!("line {n}\n")).collect::<String>());
    let error = read_with(address, config, json!({"url": url, "start": 5000})).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput);
}

#[tokio::test]
async fn several_pages_are_read_concurrently_and_failures_are_reported() {
    let app = Router::new()
        .route("/good", get(|| async { "good text" }))
        .route("/also", get(|| async { "also text" }));
    let address = serve(app).await;
    let urls = ["good", "missing", "also"].map(|path| format!("http://{address}/{path}"));
    let answer = read_with(address, json!({}), json!({"urls": urls})).await.unwrap();
    assert_snapshot!(text(&answer, address), @r"
    http://host/good

    good text

    ---

    [not read: http://host/missing cannot be read: its server answers 404 Not Found]

    ---

    http://host/also

    also text
    ");
    assert_eq!(answer["failed"][0]["code"], 5007);

    let urls = ["x", "y"].map(|path| format!("http://{address}/{path}"));
    let error = read_with(address, json!({}), json!({"urls": urls})).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::AllFailed);
    assert_eq!(error.data["failed"].as_array().unwrap().len(), 2);
    let error = read_with(address, json!({}), json!({"urls": []})).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    let error = read_with(address, json!({}), json!({})).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::MissingField);
}

#[tokio::test]
async fn a_page_that_is_not_text_is_rejected_with_its_type() {
    let typed = |kind: &'static str, body: &'static [u8]| {
        get(move || async move { ([(header::CONTENT_TYPE, kind)], body) })
    };
    let app = Router::new()
        .route("/image", typed("image/png", b"\x89PNG"))
        .route("/pdf", typed("application/pdf", b"%PDF-1.7"))
        .route("/bytes", typed("application/octet-stream", b"\0\x01\x02"))
        .route("/json", typed("application/problem+json", b"{\"a\": [1, 2]}"))
        .route("/gbk", typed("text/html; charset=gbk", b"<p>\xb0\xcd\xc0\xe8"))
        .route("/latin", typed("text/plain", b"caf\xe9"))
        .route("/unnamed", typed("application/octet-stream", b"<!doctype html><p>Hello"));
    let address = serve(app).await;
    for (path, what) in [
        ("/image", "is image/png, which"),
        ("/pdf", "is a PDF, which cannot be shown as text"),
        ("/bytes", "is binary data, which"),
    ] {
        let error = read(address, path).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Refused);
        assert!(error.message.contains(what), "{error}");
    }
    for (path, expected) in
        [("/json", "{\"a\": [1, 2]}"), ("/gbk", "巴黎"), ("/latin", "café"), ("/unnamed", "Hello")]
    {
        let answer = read(address, path).await.unwrap();
        assert!(text(&answer, address).ends_with(&format!("\n\n{expected}")), "{answer}");
    }
}

#[tokio::test]
async fn private_addresses_are_not_connected_to() {
    let hits = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&hits);
    let app = Router::new().fallback(move || async move {
        counted.fetch_add(1, Ordering::Relaxed);
        "secret"
    });
    let port = serve(app).await.port();
    for host in [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "127.1",
        "2130706433",
        "[::ffff:127.0.0.1]",
        "good@127.0.0.1",
        "0",
    ] {
        let error =
            call(json!({}), "browse", json!({"url": format!("http://{host}:{port}/")})).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Refused, "{host}: {error}");
        assert!(error.message.contains("private address"), "{host}: {error}");
    }
    assert_eq!(hits.load(Ordering::Relaxed), 0);
    let config = json!({"allow_hosts": [format!("localhost:{port}")]});
    call(config.clone(), "browse", json!({"url": format!("http://localhost:{port}/")})).await.unwrap();
    assert_eq!(hits.load(Ordering::Relaxed), 1);
    let error =
        call(config, "browse", json!({"url": format!("http://127.0.0.1:{port}/")})).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Refused);
}

#[tokio::test]
async fn a_redirect_to_a_private_address_is_rejected() {
    let hits = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&hits);
    let secret = serve(Router::new().fallback(move || async move {
        counted.fetch_add(1, Ordering::Relaxed);
        "secret"
    }))
    .await;
    let targets = [
        format!("http://{secret}/"),
        format!("//{secret}/"),
        format!("http://localhost:{}/", secret.port()),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "http://[fe80::1]/".to_owned(),
        "http://0x7f000001/".to_owned(),
        "file:///etc/passwd".to_owned(),
        "http://user:password@example.com/".to_owned(),
    ];
    let count = targets.len();
    let app = Router::new().route(
        "/{number}",
        get(move |Path(number): Path<usize>| async move {
            (StatusCode::FOUND, [(header::LOCATION, targets[number].clone())]).into_response()
        }),
    );
    let address = serve(app).await;
    for number in 0..count {
        let error = read(address, &format!("/{number}")).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Refused, "{number}: {error}");
    }
    assert_eq!(hits.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn redirects_are_limited() {
    let app = Router::new().route(
        "/{left}",
        get(|Path(left): Path<usize>| async move {
            match left {
                0 => "there".into_response(),
                99 => Redirect::permanent("/99").into_response(),
                98 => (StatusCode::FOUND, [(header::LOCATION, "http://[")]).into_response(),
                97 => StatusCode::FOUND.into_response(),
                left => Redirect::to(&format!("/{}", left - 1)).into_response(),
            }
        }),
    );
    let address = serve(app).await;
    assert!(text(&read(address, "/5").await.unwrap(), address).ends_with("there"));
    for path in ["/6", "/99", "/98", "/97"] {
        let error = read(address, path).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::PageFailed, "{error}");
    }
}

#[tokio::test]
async fn an_endless_page_is_cut() {
    let address = serve_raw(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n").await;
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    })
    .await;
    let params = json!({"url": format!("http://{address}/")});
    let answer = read_with(address, json!({"max_bytes": 100_000}), params).await.unwrap();
    assert!(
        text(&answer, address)
            .contains("[characters 0 to 3600 of more than 100000; continue with start=3600]")
    );
    assert_eq!(answer["pages"][0]["total"], 100_000);
    assert_eq!(answer["pages"][0]["truncated"], true);
}

/// Spaces, compressed by a factor of 158: a literal, then copies of 258 bytes from one byte back, repeatedly.
fn gzip_bomb(copies: usize) -> Vec<u8> {
    let mut bytes = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    let (mut buffer, mut filled) = (0_u32, 0);
    let mut put = |value: u32, bits: u32| {
        buffer |= value << filled;
        filled += bits;
        while filled >= 8 {
            bytes.push(buffer as u8);
            buffer >>= 8;
            filled -= 8;
        }
    };
    // Huffman codes are written from their first bit, everything else from its last.
    let reversed = |value: u32, bits: u32| value.reverse_bits() >> (32 - bits);
    put(0b1, 1);
    put(0b01, 2);
    put(reversed(0x30 + u32::from(b' '), 8), 8);
    for _ in 0..copies {
        put(reversed(0b1100_0101, 8), 8);
        put(0, 5);
    }
    put(0, 7);
    bytes
}

#[tokio::test]
async fn a_page_that_unpacks_to_gigabytes_is_cut() {
    let bomb = gzip_bomb(4_000_000);
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n";
    let mut answer = format!("{head}Content-Length: {}\r\n\r\n", bomb.len()).into_bytes();
    answer.extend(bomb);
    let address = serve_bytes(answer).await;
    let params = json!({"url": format!("http://{address}/")});
    let answer = read_with(address, json!({"max_bytes": 1_000_000}), params).await.unwrap();
    assert_eq!(answer["pages"][0]["total"], 1_000_000);
    assert_eq!(answer["pages"][0]["truncated"], true);
}

#[tokio::test]
async fn a_slow_page_times_out() {
    let address = serve_raw(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nslow").await;
        // Until the client closes the connection.
        let _ = stream.read(&mut [0; 1]).await;
    })
    .await;
    let params = json!({"url": format!("http://{address}/")});
    let error = read_with(address, json!({"timeout_seconds": 1}), params).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Timeout);
    assert_eq!(
        error.message.replace(&address.to_string(), "host"),
        "http://host/ did not load within 1 seconds"
    );
}

#[tokio::test]
async fn invalid_answers_are_reported() {
    for answer in [
        b"".to_vec(),
        b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nshort".to_vec(),
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnone".to_vec(),
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: br\r\nContent-Length: 4\r\n\r\nnone".to_vec(),
        format!("HTTP/1.1 200 OK\r\n{}\r\n", "X-Header: value\r\n".repeat(10_000)).into_bytes(),
        format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(1 << 20)).into_bytes(),
        b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".to_vec(),
    ] {
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(120)]).into_owned();
        let address = serve_bytes(answer).await;
        let error = read(address, "/").await.unwrap_err();
        assert_eq!(error.code, ErrorCode::PageFailed, "{shown}: {error}");
        assert!(error.message.starts_with(&format!("http://{address}/ cannot be read: ")), "{error}");
    }
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert_eq!(read(gone, "/").await.unwrap_err().code, ErrorCode::PageFailed);
}

#[tokio::test]
async fn invalid_addresses_are_reported() {
    for (url, code) in [
        (json!("http://exa mple"), ErrorCode::InvalidUrl),
        (json!(7), ErrorCode::InvalidUrl),
        (json!(""), ErrorCode::InvalidUrl),
        (json!(true), ErrorCode::InvalidType),
    ] {
        let error = call(json!({}), "browse", json!({"url": url.clone()})).await.unwrap_err();
        assert_eq!(error.code, code, "{url}: {error}");
    }
}
