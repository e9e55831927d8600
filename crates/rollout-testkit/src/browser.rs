//! A real browser: Chromium, driven through ChromeDriver.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::job::PATIENCE;

/// The options of the browser. It runs as root, without a display, and must not look for anything on the network.
const ARGUMENTS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
];

/// A window of a browser.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: TempDir,
}

/// Sends a request to a server on loopback, and returns the whole response. Without a length, it ends with the connection.
pub fn raw_request(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connect to the server");
    stream.set_read_timeout(Some(PATIENCE)).expect("set a timeout");
    stream.write_all(request.as_bytes()).expect("send the request");
    let mut stream = BufReader::new(stream);
    let mut response = String::new();
    let mut length = None;
    while !response.ends_with("\r\n\r\n") {
        let start = response.len();
        assert_ne!(stream.read_line(&mut response).expect("read the response"), 0, "{response}");
        let line = response[start..].to_ascii_lowercase();
        length = line.strip_prefix("content-length:").and_then(|value| value.trim().parse().ok()).or(length);
    }
    let mut body = Vec::new();
    stream.take(length.unwrap_or(u64::MAX)).read_to_end(&mut body).expect("read the response");
    response + &String::from_utf8_lossy(&body)
}

impl Browser {
    /// Starts a browser with a new profile.
    pub fn start() -> Self {
        let profile = TempDir::new().expect("make a temporary directory");
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .env("HOME", profile.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver is installed: ./test installs it");
        let mut lines = BufReader::new(driver.stdout.take().expect("its output is piped")).lines();
        let port = lines
            .find_map(|line| line.ok()?.strip_suffix('.')?.rsplit_once("on port ")?.1.parse().ok())
            .expect("chromedriver reports its port");
        // The pipe must not fill up.
        std::thread::spawn(move || lines.for_each(drop));
        let mut browser = Self { driver, port, session: String::new(), _profile: profile };
        let profile = format!("--user-data-dir={}", browser._profile.path().join("profile").display());
        let arguments: Vec<&str> = ARGUMENTS.into_iter().chain([profile.as_str()]).collect();
        let capabilities = json!({
            "goog:chromeOptions": {"args": arguments, "binary": "/usr/bin/chromium"},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        });
        let session =
            browser.send("POST", "/session", &json!({"capabilities": {"alwaysMatch": capabilities}}));
        browser.session = session["sessionId"].as_str().expect("a session has an id").to_owned();
        browser
    }

    #[track_caller]
    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let response = raw_request(
            self.port,
            &format!(
                "{method} {path} HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\n\
                 Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                self.port,
                body.len()
            ),
        );
        let (_, body) = response.split_once("\r\n\r\n").expect("a response has a body");
        let mut answer: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{response}"));
        assert!(answer["value"]["error"].is_null(), "{method} {path}: {}", answer["value"]);
        answer["value"].take()
    }

    #[track_caller]
    fn post(&self, path: &str, body: &Value) -> Value {
        self.send("POST", &format!("/session/{}/{path}", self.session), body)
    }

    /// Opens a page, and waits until it is loaded.
    #[track_caller]
    pub fn open(&self, url: &str) {
        self.post("url", &json!({"url": url}));
    }

    /// Opens a page in a new tab, in which everything happens from now on. Headless tabs are all visible.
    #[track_caller]
    pub fn open_tab(&self, url: &str) {
        let tab = self.post("window/new", &json!({"type": "tab"}));
        self.post("window", &json!({"handle": tab["handle"]}));
        self.open(url);
    }

    /// Lets the page believe that it is hidden, as in a tab behind another one, or that it is visible again.
    #[track_caller]
    pub fn hide(&self, is_hidden: bool) {
        self.run(&format!(
            "Object.defineProperty(document, 'hidden', {{ value: {is_hidden}, configurable: true }});\
             document.dispatchEvent(new Event('visibilitychange'))"
        ));
    }

    /// Runs a script, and returns what it returns.
    #[track_caller]
    pub fn run(&self, script: &str) -> Value {
        self.post("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn until(&self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.run(&format!("return Boolean({expression})")) != json!(true) {
            let page = self.run("return document.body.innerText");
            assert!(Instant::now() < deadline, "not in time: {expression}\n{page}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The text of the page as it is shown.
    #[track_caller]
    pub fn text(&self) -> String {
        self.run("return document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// The address of the page.
    #[track_caller]
    pub fn url(&self) -> String {
        self.run("return location.href").as_str().unwrap_or_default().to_owned()
    }

    /// Clicks on an element, and waits until the next page is loaded, if it leads to one.
    #[track_caller]
    pub fn click(&self, selector: &str) {
        let element = self.post("element", &json!({"using": "css selector", "value": selector}));
        let id = element.as_object().and_then(|map| map.values().next()).and_then(Value::as_str);
        self.post(&format!("element/{}/click", id.expect("an element has an id")), &json!({}));
    }

    /// Presses keys, one after the other.
    #[track_caller]
    pub fn press(&self, keys: &str) {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()})))
            .collect();
        self.post("actions", &json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}));
    }

    /// Sets the size of the window, and whether it is that of a phone.
    #[track_caller]
    pub fn size(&self, width: u32, height: u32, is_phone: bool) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone});
        self.post("goog/cdp/execute", &json!({"cmd": "Emulation.setDeviceMetricsOverride", "params": size}));
    }

    /// A picture of the page as PNG.
    #[track_caller]
    pub fn screenshot(&self) -> Vec<u8> {
        let data = self.send("GET", &format!("/session/{}/screenshot", self.session), &Value::Null);
        BASE64_STANDARD.decode(data.as_str().unwrap_or_default()).expect("a picture is base64")
    }

    /// Warnings and errors that pages have caused since the last call, without the pages of the browser itself.
    #[track_caller]
    pub fn problems(&self) -> Vec<String> {
        let entries = self.post("se/log", &json!({"type": "browser"}));
        let entries = entries.as_array().cloned().unwrap_or_default();
        let messages = entries.iter().filter_map(|entry| entry["message"].as_str());
        messages.filter(|message| !message.starts_with("chrome://")).map(str::to_owned).collect()
    }

    /// The addresses that pages have requested since the last call, without the pages of the browser itself.
    #[track_caller]
    pub fn requests(&self) -> Vec<String> {
        let entries = self.post("se/log", &json!({"type": "performance"}));
        let entries = entries.as_array().cloned().unwrap_or_default();
        let requested = entries.iter().filter_map(|entry| {
            let event: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let message = &event["message"];
            (message["method"] == "Network.requestWillBeSent")
                .then(|| message["params"]["request"]["url"].as_str().map(str::to_owned))?
        });
        requested.filter(|url| !url.starts_with("chrome://")).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            // It ends the browser. A test that has already failed must not panic again.
            let request = format!(
                "DELETE /session/{} HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
                self.session, self.port
            );
            if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) {
                let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
                let _ = stream.write_all(request.as_bytes());
                let _ = stream.read_to_end(&mut Vec::new());
            }
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
