//! A git server on loopback with the smart HTTP protocol, which `git http-backend` speaks.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

/// What marks the start of objects in an answer.
const PACK: &[u8] = b"PACK";

/// What a server does to answers with objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackFault {
    /// The connection ends in the middle of the objects.
    Cut,
    /// One byte of the objects is wrong.
    WrongByte,
}

/// A git server. It runs until the test's process ends.
pub struct GitServer {
    url: String,
    state: Arc<State>,
}

struct State {
    root: PathBuf,
    /// The `Authorization` that every request must have.
    authorization: Option<String>,
    /// The fault of the next answers with objects, and how many of them.
    fault: Mutex<Option<(PackFault, usize)>>,
    requests: Mutex<Vec<String>>,
}

impl GitServer {
    /// Serves the repositories below a directory at a free port.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self::serve(root.into(), None)
    }

    /// The same for clients that send this `Authorization`; others are answered with status 401.
    pub fn guarded(root: impl Into<PathBuf>, authorization: &str) -> Self {
        Self::serve(root.into(), Some(authorization.to_owned()))
    }

    /// Spoils the next answers with objects.
    pub fn spoil(&self, fault: PackFault, answers: usize) {
        *self.state.fault.lock().expect("no test panics here") = Some((fault, answers));
    }

    /// The URL of a repository.
    pub fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.url)
    }

    /// The method and path of every request that was answered.
    pub fn requests(&self) -> Vec<String> {
        self.state.requests.lock().expect("no test panics here").clone()
    }

    fn serve(root: PathBuf, authorization: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen on loopback");
        let url = format!("http://{}", listener.local_addr().expect("a listener has an address"));
        let (fault, requests) = (Mutex::default(), Mutex::default());
        let state = Arc::new(State { root, authorization, fault, requests });
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                // A client that disconnects does not affect the others.
                thread::spawn(move || state.answer(stream));
            }
        });
        Self { url, state }
    }
}

impl State {
    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut request = BufReader::new(stream.try_clone()?);
        let mut head = String::new();
        while request.read_line(&mut head)? > 2 {}
        let header = |name: &str| {
            head.lines().find_map(|line| {
                let (found, value) = line.split_once(':')?;
                found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            })
        };
        let length = header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        request.read_exact(&mut body)?;
        let mut words = head.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if self.authorization.is_some() && header("authorization") != self.authorization {
            return stream.write_all(
                b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"test\"\r\n\
                  Content-Length: 0\r\nConnection: close\r\n\r\n",
            );
        }
        self.requests.lock().expect("no test panics here").push(format!("{method} {path}"));
        let mut backend = Command::new("git")
            // The owner of the files may be another user than the server's.
            .args(["-c", "safe.directory=*", "-c", "uploadpack.allowFilter=true", "http-backend"])
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .env("GIT_PROJECT_ROOT", &self.root)
            .env("GIT_HTTP_EXPORT_ALL", "1")
            .env("GIT_PROTOCOL", header("git-protocol").unwrap_or_default())
            .env("REQUEST_METHOD", method)
            .env("PATH_INFO", path)
            .env("QUERY_STRING", query)
            .env("CONTENT_LENGTH", length.to_string())
            .env("CONTENT_TYPE", header("content-type").unwrap_or_default())
            .env("HTTP_CONTENT_ENCODING", header("content-encoding").unwrap_or_default())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut input = backend.stdin.take().expect("the input is a pipe");
        let feed = thread::spawn(move || input.write_all(&body));
        let output = backend.wait_with_output()?.stdout;
        // The backend may end before it has read everything.
        let _ = feed.join();
        self.pass_on(&mut stream, output)
    }

    /// Turns the backend's answer into one of HTTP.
    fn pass_on(&self, stream: &mut TcpStream, output: Vec<u8>) -> std::io::Result<()> {
        let end = find(&output, b"\r\n\r\n").unwrap_or(output.len().saturating_sub(4));
        let (head, mut body) = (&output[..end], output[end + 4..].to_vec());
        let head = String::from_utf8_lossy(head);
        let status = head.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK");
        let fields: String = head
            .lines()
            .filter(|line| !line.starts_with("Status:"))
            .map(|line| format!("{line}\r\n"))
            .collect();
        write!(
            stream,
            "HTTP/1.1 {status}\r\n{fields}Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        )?;
        if let Some(pack) = find(&body, PACK) {
            match self.fault() {
                Some(PackFault::Cut) => body.truncate(pack + (body.len() - pack) / 2),
                // Behind the header of the pack, which has 12 bytes.
                Some(PackFault::WrongByte) => body[pack + 20] ^= 0x10,
                None => {}
            }
        }
        stream.write_all(&body)
    }

    /// Takes the fault of one answer with objects.
    fn fault(&self) -> Option<PackFault> {
        let mut next = self.fault.lock().expect("no test panics here");
        let (fault, answers) = (*next)?;
        *next = (answers > 1).then_some((fault, answers - 1));
        Some(fault)
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// The `Authorization` of a user with a password.
pub fn basic_authorization(user: &str, password: &str) -> String {
    use base64::Engine as _;
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}")))
}
