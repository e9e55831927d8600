//! An image registry in this process: hand-made images, tokens, and faults.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use rollout_sandbox::{
    FileLookup, Image, RunningSandbox, SandboxSpec,
    oci::{PullError, RegistryImages, RegistryOptions},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use crate::common::Host;

/// What goes wrong with an answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// This answer instead: its status, more headers, and its body.
    Answer(u16, &'static str, &'static str),
    /// The connection is cut in the middle.
    Cut,
    /// A byte in the middle is another one.
    Corrupt,
    /// Half of it arrives, and then nothing.
    Stalled,
    /// A byte at a time, slowly.
    Trickle,
    /// Half of it arrives, and the rest when the test releases it.
    Held,
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The method and the path with its query.
    pub(crate) line: String,
    pub(crate) authorization: Option<String>,
    pub(crate) accept: Option<String>,
    pub(crate) body: String,
}

/// Who may pull.
#[derive(Clone, Default)]
pub(crate) enum Login {
    #[default]
    Nobody,
    /// With a token of the own token service, which wants this `Authorization`, or this text in a form.
    Token(&'static str),
}

#[derive(Default)]
struct State {
    files: HashMap<String, (String, Vec<u8>)>,
    /// The faults to come, each with a part of the request that it is for.
    faults: Vec<(String, Fault)>,
    requests: Vec<Request>,
    login: Login,
    /// The number of tokens that the token service has issued; only the last one is valid.
    tokens: usize,
    released: bool,
}

/// A registry at a port of loopback.
pub(crate) struct Registry {
    address: String,
    state: Arc<(Mutex<State>, Condvar)>,
}

fn hash(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

impl Registry {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::<(Mutex<State>, Condvar)>::default();
        let registry = Self { address: address.clone(), state: state.clone() };
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, state, address) = (client.unwrap(), state.clone(), address.clone());
                // A client may close its end at any time.
                thread::spawn(move || drop(answer(client, &state, &address)));
            }
        });
        registry
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn require(&self, login: Login) {
        self.state.0.lock().unwrap().login = login;
    }

    /// The next request whose line contains this text fails.
    pub(crate) fn fail(&self, request: &str, fault: Fault) {
        self.state.0.lock().unwrap().faults.push((request.to_owned(), fault));
    }

    /// The faults that did not happen yet.
    pub(crate) fn faults_left(&self) -> usize {
        self.state.0.lock().unwrap().faults.len()
    }

    /// Lets held answers go on.
    pub(crate) fn release(&self) {
        self.state.0.lock().unwrap().released = true;
        self.state.1.notify_all();
    }

    /// The requests so far whose lines contain this text.
    pub(crate) fn requests(&self, text: &str) -> Vec<Request> {
        let state = self.state.0.lock().unwrap();
        state.requests.iter().filter(|request| request.line.contains(text)).cloned().collect()
    }

    /// Invalidates all tokens.
    pub(crate) fn expire_tokens(&self) {
        self.state.0.lock().unwrap().tokens += 1;
    }

    /// Adds a blob, and returns its descriptor.
    pub(crate) fn blob(&self, repository: &str, bytes: &[u8]) -> Value {
        self.put(&format!("/v2/{repository}/blobs/{}", hash(bytes)), "application/octet-stream", bytes);
        json!({"digest": hash(bytes), "size": bytes.len(), "mediaType": "application/octet-stream"})
    }

    fn put(&self, path: &str, kind: &str, bytes: &[u8]) {
        let mut state = self.state.0.lock().unwrap();
        state.files.insert(path.to_owned(), (kind.to_owned(), bytes.to_vec()));
    }

    /// Adds a manifest or an index by its hash and a tag, and returns its descriptor.
    pub(crate) fn document(&self, repository: &str, tag: &str, document: &Value) -> Value {
        let is_index = document.get("manifests").is_some();
        let kind = match is_index {
            true => "application/vnd.oci.image.index.v1+json",
            false => "application/vnd.oci.image.manifest.v1+json",
        };
        let bytes = document.to_string().into_bytes();
        for name in [tag, &hash(&bytes)] {
            self.put(&format!("/v2/{repository}/manifests/{name}"), kind, &bytes);
        }
        json!({"digest": hash(&bytes), "size": bytes.len(), "mediaType": kind})
    }

    /// Adds an image of these layers, and returns the descriptor of its manifest.
    pub(crate) fn image(&self, repository: &str, tag: &str, layers: &[Vec<u8>]) -> Value {
        let config = json!({"config": {"WorkingDir": "/work", "Labels": {"tag": tag}}});
        let config = self.blob(repository, config.to_string().as_bytes());
        let layers: Vec<Value> = layers.iter().map(|layer| self.blob(repository, layer)).collect();
        self.document(repository, tag, &json!({"schemaVersion": 2, "config": config, "layers": layers}))
    }
}

fn answer(client: TcpStream, state: &(Mutex<State>, Condvar), address: &str) -> std::io::Result<()> {
    let mut lines = BufReader::new(client.try_clone()?);
    let mut client = client;
    let mut head = String::new();
    while lines.read_line(&mut head)? > 2 {}
    let header = |name: &str| {
        let found = head.lines().filter_map(|line| line.split_once(": "));
        found.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).next()
    };
    let mut body = vec![0; header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0)];
    lines.read_exact(&mut body)?;
    let body = String::from_utf8_lossy(&body).into_owned();
    let line = head.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1").to_owned();
    let authorization = header("authorization");
    let (status, mut headers, content, fault) = {
        let mut state = state.0.lock().unwrap();
        let request = Request {
            line: line.clone(),
            authorization: authorization.clone(),
            accept: header("accept"),
            body: body.clone(),
        };
        state.requests.push(request);
        let fault = state.faults.iter().position(|(request, _)| line.contains(request.as_str()));
        let fault = fault.map(|index| state.faults.remove(index).1);
        let path = line.split_once(' ').map_or("", |(_, path)| path);
        let (status, headers, content) = content(&mut state, path, authorization.as_deref(), &body, address);
        (status, headers, content, fault)
    };
    let (mut status, mut content) = (status, content);
    if let Some(from) = header("range").and_then(|text| text[6..].trim_end_matches('-').parse::<usize>().ok())
        && status == 200
    {
        headers.push_str(&format!("Content-Range: bytes {from}-{}/{}\r\n", content.len() - 1, content.len()));
        (status, content) = (206, content.split_off(from));
    }
    if let Some(Fault::Answer(other, more, text)) = fault {
        (status, headers, content) = (other, more.to_owned(), text.as_bytes().to_vec());
    }
    write!(client, "HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\n", content.len())?;
    write!(client, "Connection: close\r\n\r\n")?;
    let half = content.len() / 2;
    match fault {
        Some(Fault::Cut) => client.write_all(&content[..half]),
        Some(Fault::Corrupt) => {
            content[half] ^= 1;
            client.write_all(&content)
        }
        Some(Fault::Stalled) => {
            client.write_all(&content[..half])?;
            // The client gives up.
            lines.read_to_end(&mut Vec::new()).map(drop)
        }
        Some(Fault::Trickle) => content.iter().try_for_each(|byte| {
            thread::sleep(Duration::from_millis(20));
            client.write_all(&[*byte])
        }),
        Some(Fault::Held) => {
            client.write_all(&content[..half])?;
            let held = state.0.lock().unwrap();
            let released = state.1.wait_while(held, |state| !state.released).unwrap();
            drop(released);
            client.write_all(&content[half..])
        }
        Some(Fault::Answer(..)) | None => client.write_all(&content),
    }
}

fn content(
    state: &mut State,
    path: &str,
    authorization: Option<&str>,
    body: &str,
    address: &str,
) -> (u16, String, Vec<u8>) {
    if let Login::Token(wanted) = state.login.clone() {
        if path.starts_with("/token") {
            let is_known = authorization == Some(wanted) || body.contains(wanted);
            state.tokens += usize::from(is_known);
            let token = json!({"access_token": format!("token-{}", state.tokens)});
            return match is_known {
                true => (200, String::new(), token.to_string().into_bytes()),
                false => (401, String::new(), b"who are you?".to_vec()),
            };
        }
        if authorization != Some(&format!("Bearer token-{}", state.tokens)) {
            let challenge = format!(
                "WWW-Authenticate: Bearer realm=\"http://{address}/token\",service=\"tests\",\
                 scope=\"repository:a:pull,b\"\r\n"
            );
            return (401, challenge, Vec::new());
        }
    }
    match state.files.get(path) {
        Some((kind, bytes)) => (200, format!("Content-Type: {kind}\r\n"), bytes.clone()),
        None => {
            (404, String::new(), br#"{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "m"}]}"#.to_vec())
        }
    }
}

/// The header of a file of root.
pub(crate) fn header() -> Header {
    let mut header = Header::new_gnu();
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_000_000);
    header
}

/// A layer with these files. A path that ends with `/` is a directory.
pub(crate) fn layer(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, text) in files {
        let is_dir = path.ends_with('/');
        let mut header = header();
        header.set_entry_type(if is_dir { EntryType::Directory } else { EntryType::Regular });
        header.set_mode(if is_dir { 0o755 } else { 0o644 });
        header.set_size(text.len() as u64);
        archive.append_data(&mut header, path, text.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

/// The images of these registries.
pub(crate) fn images(host: &Host, registries: &[&Registry]) -> RegistryImages {
    let insecure = registries.iter().map(|registry| registry.address().to_owned()).collect();
    let options = RegistryOptions { insecure, ..RegistryOptions::default() };
    RegistryImages::new(host.engine.clone(), options)
}

/// The images of a registry that is given up soon when it is silent.
pub(crate) fn impatient(host: &Host, registry: &Registry) -> RegistryImages {
    let insecure = vec![registry.address().to_owned()];
    let patience = Duration::from_millis(500);
    RegistryImages::new(
        host.engine.clone(),
        RegistryOptions { insecure, patience, ..RegistryOptions::default() },
    )
}

pub(crate) async fn pull(
    images: &RegistryImages,
    registry: &Registry,
    name: &str,
) -> Result<Image, PullError> {
    images.pull(&format!("{}/{name}", registry.address()), &HashMap::new(), &|_| ()).await
}

pub(crate) async fn sandbox(host: &Host, image: Image) -> RunningSandbox {
    host.engine.create(SandboxSpec { image, ..host.spec().await }).await.unwrap()
}

/// The content of an image's file, if it exists.
pub(crate) async fn file(sandbox: &RunningSandbox, path: &str) -> Option<String> {
    match sandbox.read_file(path, 1 << 20).await.unwrap() {
        FileLookup::File(bytes) => Some(String::from_utf8(bytes).unwrap()),
        _ => None,
    }
}
