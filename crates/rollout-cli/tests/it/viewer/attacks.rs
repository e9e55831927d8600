//! The viewer shows what hostile agents and models wrote, and serves only its owner.

use std::{fs, os::unix::fs::symlink, process::Command};

use rollout_testkit::{Browser, ModelReply, ModelServer, TestJob, TestTask, raw_request};
use serde_json::json;

use super::{RunningViewer, file_url, job};

/// Markup that runs a script if it is not escaped, in several contexts. It can be the name of a file.
const MARKUP: &str = "'\"><img src=x onerror=window.hacked=1><svg onload=window.hacked=1>";

#[test]
fn markup_of_agents_tasks_and_models_is_text() {
    let said = format!("</pre></details><script>window.hacked=1</script>{MARKUP}");
    let server = ModelServer::turns([
        ModelReply::tool_call(
            "bash",
            &json!({"command": format!("cat > /logs/agent/x.html <<'EOF'\n{said}\nEOF")}),
        ),
        ModelReply::text(&*said),
    ]);
    let tests = format!("#!/bin/sh\ncat <<'EOF'\n{said}\nEOF\necho 0 > /logs/verifier/reward.txt\n");
    let print = format!("cat <<'EOF'\n{said}\nEOF\ncat >&2 <<'EOF'\n{said}\nEOF\nexit 1");
    let job = TestJob::new(env!("CARGO_BIN_EXE_rollout"))
        .set("name", json!(MARKUP))
        .set("datasets", json!([{"path": "set", "name": MARKUP}]))
        .agent(json!({"name": MARKUP, "execute": print}))
        .agent(json!({"name": "model", "model": {"name": "scripted", "base_url": server.url(), "max_retries": 0}}))
        .task(TestTask::new(MARKUP).tests(&tests).file("instruction.md", &said));
    job.run().expect(1);
    // Files that agents leave have any name.
    let dir = job.root().join("jobs").join(MARKUP);
    let trials = dir.join("model").join(MARKUP);
    let trial = fs::read_dir(&trials).unwrap().next().unwrap().unwrap().path();
    for name in [MARKUP, r"back\slash", r"..\up", "%2e%2e", "index.html"] {
        fs::write(trial.join("logs/agent").join(name), &said).unwrap();
    }
    // A file of notes may come from another machine.
    let name = |part: &std::path::Path| part.file_name().unwrap().to_string_lossy().into_owned();
    let noted = format!("model/{MARKUP}/{}", name(&trial));
    let line = json!({"at": "2026-01-02T03:04:05Z", "trial": noted, "comment": said, "tags": [MARKUP, "<b>", "fine"]});
    fs::write(dir.join("notes.jsonl"), format!("{line}\n")).unwrap();
    job.rollout(&["view", "--export", "pages"]).expect(0);
    let viewer = RunningViewer::start(&job);
    let browser = Browser::start();
    for start in [viewer.url.clone(), file_url(&job, "pages/index.html")] {
        let mut open = vec![start];
        let mut seen: Vec<String> = Vec::new();
        while let Some(url) = open.pop() {
            if seen.contains(&url) {
                continue;
            }
            browser.open(&url);
            assert_eq!(browser.run("return window.hacked ?? null"), json!(null), "{url}");
            assert_eq!(browser.run("return document.title.startsWith('Error')"), json!(false), "{url}");
            let injected = "return document.querySelectorAll('[onerror], [onload], img[src=x], script:not([src])').length";
            assert_eq!(browser.run(injected), json!(0), "{url}");
            // A command that people copy is one command, whatever the names in it.
            let command = browser.run("return document.querySelector('pre.command')?.textContent ?? null");
            if let Some(command) = command.as_str() {
                let words = Command::new("sh").args(["-c", &format!("set -- {command}; echo $#")]).output();
                assert_eq!(words.unwrap().stdout, b"3\n", "{command}");
            }
            let links = browser
                .run("return [...document.querySelectorAll('main a[href]')].map(a => a.href.split('#')[0])");
            open.extend(links.as_array().unwrap().iter().map(|link| link.as_str().unwrap().to_owned()));
            seen.push(url);
        }
        assert!(seen.len() > 20, "{seen:?}");
        assert_eq!(browser.problems(), [""; 0]);
    }
}

#[test]
fn only_the_owner_is_served() {
    let job = job();
    job.run().expect(1);
    let viewer = RunningViewer::start(&job);
    let (port, path) = (viewer.port(), viewer.path("index.html"));
    let status = |response: &str| response.split(' ').nth(1).unwrap_or_default().to_owned();
    let page = viewer.get(&path, "");
    assert_eq!(status(&page), "200");
    for header in [
        "content-security-policy: default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "referrer-policy: same-origin",
        "cache-control: no-store",
        "x-frame-options: DENY",
        "cross-origin-resource-policy: same-origin",
    ] {
        assert!(page.contains(&format!("{header}\r\n")), "{header}: {page}");
    }
    for other in ["/", "/index.html", "/0123456789abcdef0123456789abcdef/index.html", "//index.html"] {
        let refused = viewer.get(other, "");
        assert_eq!(status(&refused), "403", "{other}");
        assert!(!refused.contains("33.3%"), "{other}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example", "10.0.0.1"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n");
        assert_eq!(status(&raw_request(port, &request)), "403", "{host}");
    }
    let own = format!("Origin: http://127.0.0.1:{port}\r\n");
    assert_eq!(status(&viewer.get(&path, &own)), "200");
    for foreign in [
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Origin: http://127.0.0.1:1\r\n",
        "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n",
    ] {
        assert_eq!(status(&viewer.get(&path, foreign)), "403", "{foreign}");
    }
    // A link in a message leads here.
    let link = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n";
    assert_eq!(status(&viewer.get(&path, link)), "200");
    let post = format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(status(&raw_request(port, &post)), "405");
}

#[test]
fn other_machines_need_the_token_too() {
    let job = job();
    job.run().expect(1);
    let viewer = RunningViewer::start_at(&job, &["view", "--bind", "0.0.0.0:0"], "0.0.0.0");
    let (port, path) = (viewer.port(), viewer.path("index.html"));
    let status = |path: &str| {
        // Other machines know this one by any name.
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: build.example:{port}\r\nConnection: close\r\n\r\n");
        raw_request(port, &request).split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(status(&path), "200");
    for other in ["/", "/index.html", "/jobs/job/index.html", "/0123456789abcdef0123456789abcdef/index.html"]
    {
        assert_eq!(status(other), "403", "{other}");
    }
    let foreign = viewer.get(&path, "Origin: http://evil.example\r\n");
    assert!(foreign.starts_with("HTTP/1.1 403"), "{foreign}");
}

#[test]
fn only_the_owner_can_write_notes() {
    let job = job();
    job.run().expect(1);
    let viewer = RunningViewer::start(&job);
    let port = viewer.port();
    let path = viewer.path("jobs/job/trials/good/set/first__1/note");
    let own = format!("Host: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n");
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let status = |path: &str, headers: &str, body: &str| {
        let length = body.len();
        let head =
            format!("POST {path} HTTP/1.1\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n");
        let response = raw_request(port, &format!("{head}{body}"));
        response.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let body = "comment=hello&tags=fine";
    let file = job.dir().join("notes.jsonl");
    for (headers, expected) in [
        (format!("Host: evil.example:{port}\r\nOrigin: http://evil.example:{port}\r\n{form}"), "403"),
        (format!("Host: 127.0.0.1:{port}\r\nOrigin: http://evil.example\r\n{form}"), "403"),
        (format!("Host: 127.0.0.1:{port}\r\nOrigin: null\r\n{form}"), "403"),
        (format!("Host: 127.0.0.1:{port}\r\n{form}"), "403"),
        (format!("{own}Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: cors\r\n{form}"), "403"),
        (format!("{own}Content-Type: text/plain\r\n"), "415"),
        (own.clone(), "415"),
    ] {
        assert_eq!(status(&path, &headers, body), expected, "{headers}");
    }
    let good = format!("{own}{form}");
    let other = "/0123456789abcdef0123456789abcdef/jobs/job/trials/good/set/first__1/note";
    assert_eq!(status(other, &good, body), "403");
    for (page, expected) in [
        ("jobs/job/trials/good/set/third__1/note", "404"),
        ("jobs/other/trials/good/set/first__1/note", "404"),
        ("jobs/job/note", "405"),
        ("jobs/job/trials/good/set/first__1/index.html", "405"),
        ("jobs/../jobs/job/trials/good/set/first__1/note", "405"),
    ] {
        assert_eq!(status(&viewer.path(page), &good, body), expected, "{page}");
    }
    for invalid in
        ["", "comment=+", "tags=%3Cscript%3E", "untag=a%2Fb", &format!("comment={}", "x".repeat(10_001))]
    {
        assert_eq!(status(&path, &good, invalid), "400", "{}", &invalid[..invalid.len().min(40)]);
    }
    let huge = format!("comment={}", "x".repeat(200_000));
    assert_eq!(status(&path, &good, &huge), "413");
    assert!(!file.exists(), "no refused note is written");
    assert_eq!(status(&path, &good, body), "303");
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 1);
}

#[test]
fn nothing_outside_of_the_directory_is_served() {
    let job = job();
    job.run().expect(1);
    let trial = job.dir().join("good/set/first__1");
    fs::write(job.root().join("secret"), "the secret").unwrap();
    fs::create_dir(job.root().join("elsewhere")).unwrap();
    fs::copy(job.dir().join("journal.jsonl"), job.root().join("elsewhere/journal.jsonl")).unwrap();
    symlink(job.root().join("secret"), trial.join("link")).unwrap();
    symlink(job.root(), trial.join("up")).unwrap();
    symlink(job.root().join("elsewhere"), job.root().join("jobs/linked")).unwrap();
    let viewer = RunningViewer::start(&job);
    let files = "jobs/job/trials/good/set/first__1/files";
    let good = viewer.get(&viewer.path(&format!("{files}/command/stdout.txt/raw.txt")), "");
    assert!(good.contains("working\n") && good.contains("text/plain") && good.contains("sandbox"), "{good}");
    for path in [
        format!("{files}/link/raw.txt"),
        format!("{files}/link/index.html"),
        format!("{files}/up/secret/raw.txt"),
        format!("{files}/../../../../../secret/raw.txt"),
        format!("{files}/..%2f..%2f..%2f..%2f..%2fsecret/raw.txt"),
        format!("{files}/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/secret/raw.txt"),
        format!("{files}/command/stdout.txt/raw.png"),
        "jobs/linked/index.html".to_owned(),
        "jobs/../secret".to_owned(),
        "jobs/%2e%2e/index.html".to_owned(),
        "jobs/../../../../etc/passwd".to_owned(),
    ] {
        let response = viewer.get(&viewer.path(&path), "");
        assert!(response.starts_with("HTTP/1.1 404"), "{path}: {response}");
        assert!(!response.contains("the secret"), "{path}");
    }
    assert!(!viewer.get(&viewer.path("index.html"), "").contains("linked"));
}
