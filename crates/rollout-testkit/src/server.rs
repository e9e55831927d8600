//! A server on loopback that serves the files of a directory.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    thread,
};

/// A plain HTTP server. It runs until the test's process ends.
pub struct FileServer(String);

/// What happens to a request, by its number, from 0, and its head.
type Behaviour = Box<dyn Fn(usize, &str) -> Reaction + Send>;

enum Reaction {
    Answer,
    /// An error status.
    Refuse(&'static str),
    /// The connection ends in the middle of the file.
    Cut,
}

impl FileServer {
    /// Serves the files below a directory at a free port.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self::serve(root.into(), Box::new(|_, _| Reaction::Answer))
    }

    /// The same, but the first requests are answered with status 503.
    pub fn busy(root: impl Into<PathBuf>, refused: usize) -> Self {
        let refusal = move |number, _: &str| match number < refused {
            true => Reaction::Refuse("503 Service Unavailable"),
            false => Reaction::Answer,
        };
        Self::serve(root.into(), Box::new(refusal))
    }

    /// The same, but the first answers end in the middle of the file.
    pub fn cutting(root: impl Into<PathBuf>, cut: usize) -> Self {
        let cutting = move |number, _: &str| if number < cut { Reaction::Cut } else { Reaction::Answer };
        Self::serve(root.into(), Box::new(cutting))
    }

    /// The same for clients that send this `Authorization`; others are answered with status 401.
    pub fn guarded(root: impl Into<PathBuf>, authorization: &'static str) -> Self {
        let refusal = move |_, head: &str| {
            let sent = head
                .lines()
                .any(|line| line.eq_ignore_ascii_case(&format!("authorization: {authorization}")));
            match sent {
                true => Reaction::Answer,
                false => Reaction::Refuse("401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"test\""),
            }
        };
        Self::serve(root.into(), Box::new(refusal))
    }

    fn serve(root: PathBuf, behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen on loopback");
        let address = listener.local_addr().expect("a listener has an address");
        thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                // A client that disconnects does not affect the others.
                let _ = answer(&root, stream, |head| behaviour(number, head));
            }
        });
        Self(format!("http://{address}"))
    }

    /// The URL of a file.
    pub fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.0)
    }
}

fn answer(root: &Path, mut stream: TcpStream, behaviour: impl Fn(&str) -> Reaction) -> std::io::Result<()> {
    let mut request = BufReader::new(stream.try_clone()?);
    let mut head = String::new();
    while request.read_line(&mut head)? > 2 {}
    // If a body is not read, the connection may be reset before the client has the answer.
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse().ok())?
    });
    io::copy(&mut request.take(length.unwrap_or(0)), &mut io::sink())?;
    let target = head.split(' ').nth(1).unwrap_or("/");
    let path = target.split('?').next().unwrap_or_default().trim_start_matches('/');
    let (status, body) = match (behaviour(&head), fs::read(root.join(path))) {
        (Reaction::Refuse(status), _) => (status, Vec::new()),
        (_, Err(_)) => ("404 Not Found", Vec::new()),
        (Reaction::Answer, Ok(body)) => ("200 OK", body),
        (Reaction::Cut, Ok(body)) => {
            let length = body.len();
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
            return stream.write_all(&body[..length / 2]);
        }
    };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(&body)
}
