//! A server on loopback that hands out the files of a directory.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    thread,
};

/// A plain HTTP server. It runs until the test's process ends.
pub struct FileServer(String);

impl FileServer {
    /// Serves the files below a directory at a free port.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen on loopback");
        let address = listener.local_addr().expect("a listener has an address");
        let root = root.into();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that goes away in the middle is no concern of the others.
                let _ = answer(&root, stream);
            }
        });
        Self(format!("http://{address}"))
    }

    /// The address of a file.
    pub fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.0)
    }
}

fn answer(root: &Path, mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    request.read_line(&mut first)?;
    let mut line = String::new();
    while request.read_line(&mut line)? > 2 {
        line.clear();
    }
    let target = first.split(' ').nth(1).unwrap_or("/");
    let path = target.split('?').next().unwrap_or_default().trim_start_matches('/');
    let (status, body) = match fs::read(root.join(path)) {
        Ok(body) => ("200 OK", body),
        Err(_) => ("404 Not Found", Vec::new()),
    };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(&body)
}
