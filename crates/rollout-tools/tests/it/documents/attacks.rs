//! Paths that try to leave the allowed folders.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rollout_tools::ErrorCode;
use rollout_tools::doc::{DocConfig, Docs};
use serde_json::{Value, json};

use super::{Place, call, helper, open, shown, try_open};

const SECRET: &str = "the secret";

/// A folder with documents inside, and a secret next to it.
fn place() -> (Place, Place) {
    let outside = Place::new().with("secret.txt", SECRET).with("folder/secret.txt", SECRET);
    let inside = Place::new().with("docs/open.txt", "welcome").with("other.txt", "not for this session");
    symlink(outside.path().join("secret.txt"), inside.path().join("docs/absolute.txt")).unwrap();
    symlink(outside.path(), inside.path().join("docs/folder")).unwrap();
    let name = outside.path().file_name().unwrap().to_str().unwrap();
    symlink(format!("../../{name}/secret.txt"), inside.path().join("docs/relative.txt")).unwrap();
    symlink("open.txt", inside.path().join("docs/alias.txt")).unwrap();
    (inside, outside)
}

#[tokio::test]
async fn no_path_leads_out_of_the_roots() {
    let (inside, outside) = place();
    let secret = outside.path().join("secret.txt");
    let name = outside.path().file_name().unwrap().to_str().unwrap();
    let docs = inside.docs();
    for path in [
        "../../../../../../etc/passwd",
        "/etc/passwd",
        "/",
        "..",
        "docs/../../etc/passwd",
        &format!("../{name}/secret.txt"),
        secret.to_str().unwrap(),
        "docs/absolute.txt",
        "docs/relative.txt",
        "docs/folder",
        "docs/folder/secret.txt",
        "/proc/self/environ",
        &format!("{}/../{name}/secret.txt", inside.path().display()),
    ] {
        let error = try_open(&docs, path).await.err().unwrap_or_else(|| panic!("{path} was opened"));
        assert_eq!(error.code, ErrorCode::Refused, "{path}: {error}");
        assert!(error.message.contains("add the folder to `roots`"), "{path}: {error}");
        let root = inside.path().to_str().unwrap();
        assert!(path.contains(root) || !error.message.contains(root), "{path}: {error}");
        // The same with a call, in a session without files.
        let session = open(&docs, Value::Null).await;
        let error = call(&*session, "read", json!({"seed_path": path})).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Refused, "{path}: {error}");
    }
}

#[tokio::test]
async fn a_folder_contains_only_its_own_files() {
    let (inside, _outside) = place();
    let session = open(&inside.docs(), "docs").await;
    let data = call(&*session, "read", json!({})).await.unwrap();
    let paths: Vec<_> = data["sections"]
        .as_array()
        .unwrap()
        .iter()
        .map(|section| section["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths, ["alias.txt", "open.txt"]);
}

#[tokio::test]
async fn a_call_stays_within_the_files_of_its_session() {
    let (inside, _outside) = place();
    let session = open(&inside.docs(), "docs").await;
    let absolute = inside.path().join("docs/open.txt").display().to_string();
    for path in ["open.txt", "docs/open.txt", "./open.txt", absolute.as_str()] {
        assert!(shown(&*session, "read", json!({"seed_path": path})).await.contains("welcome"), "{path}");
    }
    for path in ["../other.txt", "docs/../../other.txt", "/etc/passwd"] {
        let error = call(&*session, "read", json!({"seed_path": path})).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Refused, "{path}: {error}");
    }
    assert!(call(&*session, "read", json!({"seed_path": "other.txt"})).await.is_err());
    let one = open(&inside.docs(), "docs/open.txt").await;
    assert!(shown(&*one, "read", json!({"seed_path": "open.txt"})).await.contains("welcome"));
    let error = call(&*one, "read", json!({"seed_path": "docs/alias.txt"})).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Refused);
}

#[tokio::test]
async fn special_files_are_rejected_even_below_a_root() {
    let (inside, _outside) = place();
    let flags = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        inside.path().join("pipe.txt"),
        rustix::fs::FileType::Fifo,
        flags,
        0,
    )
    .unwrap();
    let everything = Docs::new(DocConfig { roots: vec!["/".into()], ..DocConfig::default() }, helper());
    let pipe = inside.path().join("pipe.txt").display().to_string();
    for path in
        [pipe.as_str(), "/dev/zero", "/dev/null", "/proc/self/environ", "/proc/self/status", "/proc", "/sys"]
    {
        let error = try_open(&everything, path).await.err().unwrap_or_else(|| panic!("{path} was opened"));
        assert_eq!(error.code, ErrorCode::Refused, "{path}: {error}");
    }
    assert!(try_open(&everything, "/proc/self/fd/0").await.is_err());
    assert!(try_open(&everything, "/proc/self/root/etc/passwd").await.is_err());
}

#[tokio::test]
async fn hidden_files_are_not_served() {
    let place = Place::new().with(".env", "KEY=1").with(".git/config", "x").with("a.txt", "a");
    for path in [".env", ".git/config", ".git"] {
        let error = try_open(&place.docs(), path).await.err().unwrap();
        assert_eq!(error.message, format!("`{path}` is hidden: names that begin with a dot are not served"));
    }
    let session = open(&place.docs(), ".").await;
    assert_eq!(shown(&*session, "read", json!({})).await, "[1] a\na");
}

#[tokio::test]
async fn missing_files_are_reported_as_missing() {
    let place = Place::new();
    let error = try_open(&place.docs(), "gone.pdf").await.err().unwrap();
    assert_eq!(error.code, ErrorCode::NoResults);
    assert_eq!(error.message, "`gone.pdf` does not exist below the folders of this server");
    for nothing in [Value::Null, json!(""), json!([" "])] {
        let session = open(&place.docs(), nothing).await;
        let error = call(&*session, "read", json!({"seed_path": ""})).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::NotInitialized);
    }
}

#[tokio::test]
async fn too_many_paths_are_rejected() {
    let place = Place::new().with("a.db", "").with("a.txt", "a");
    let many: Vec<_> = (0..101).map(|nth| format!("{}a.txt", "./".repeat(nth))).collect();
    let error = try_open(&place.docs(), many.clone()).await.err().unwrap();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert_eq!(error.message, "101 files or folders are named; at most 100 are allowed");
    let session = open(&place.sql(), Value::Null).await;
    let error = call(&*session, "list_databases", json!({"seed_path": many})).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    // The same path repeated is one path.
    let same = json!({"seed_path": vec!["."; 100_000]});
    assert_eq!(shown(&*session, "list_databases", same).await, "a");
}

#[tokio::test]
async fn an_endless_folder_is_not_walked_to_its_end() {
    let place = Place::new();
    for nth in 0..2100 {
        std::fs::write(place.path().join(format!("{nth}.png")), "").unwrap();
    }
    let session = open(&place.docs(), Value::Null).await;
    // Each of these is another spelling of the same folder.
    let often: Vec<_> = (0..96).map(|nth| format!("./{}", "./".repeat(nth))).collect();
    let error = call(&*session, "read", json!({"seed_path": often})).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Refused);
    assert!(error.message.starts_with("there are more than 200000 files and folders in"), "{error}");
}

/// Replaces a file with a link to the secret and back, repeatedly, until it is dropped.
struct Swapping {
    end: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Swapping {
    fn new(path: std::path::PathBuf, good: std::path::PathBuf, secret: std::path::PathBuf) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&end);
        let thread = std::thread::spawn(move || {
            let next = path.with_extension("next");
            for nth in 0.. {
                if until.load(Ordering::Relaxed) {
                    break;
                }
                let is_good = nth % 2 == 0;
                if is_good { std::fs::copy(&good, &next).map(drop) } else { symlink(&secret, &next) }
                    .unwrap();
                std::fs::rename(&next, &path).unwrap();
                // The file itself is sometimes there long enough to be read.
                std::thread::sleep(Duration::from_millis(if is_good { nth % 50 } else { 0 }));
            }
        });
        Self { end, thread: Some(thread) }
    }
}

impl Drop for Swapping {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[tokio::test]
async fn a_link_that_replaces_a_file_meanwhile_is_not_followed() {
    let (inside, outside) = place();
    let path = inside.path().join("docs/open.txt");
    let good = inside.path().join("good");
    std::fs::write(&good, "welcome").unwrap();
    let session = open(&inside.docs(), "docs").await;
    let swapping = Swapping::new(path, good, outside.path().join("secret.txt"));
    let (mut asked, mut seen) = (0, 0);
    while asked < 300 || seen == 0 {
        assert!(asked < 10_000, "the file itself was never read");
        asked += 1;
        let answer = shown(&*session, "read", json!({"seed_path": "open.txt"})).await;
        assert!(!answer.contains(SECRET), "{answer}");
        seen += usize::from(answer.contains("welcome"));
    }
    drop(swapping);
}

#[tokio::test]
async fn a_database_replaced_with_a_link_meanwhile_is_not_opened() {
    let inside = Place::new();
    let outside = Place::new();
    super::sql::database(&outside.path().join("secret.db"));
    let good = inside.path().join("good");
    rusqlite::Connection::open(&good)
        .unwrap()
        .execute_batch("CREATE TABLE teams (name); INSERT INTO teams VALUES ('public')")
        .unwrap();
    let path = inside.path().join("a.db");
    std::fs::copy(&good, &path).unwrap();
    let session = open(&inside.sql(), ".").await;
    let swapping = Swapping::new(path, good, outside.path().join("secret.db"));
    let (mut asked, mut seen) = (0, 0);
    while asked < 40 || seen == 0 {
        assert!(asked < 1000, "the database itself was never asked");
        asked += 1;
        let answer = shown(&*session, "execute", json!({"sql": "SELECT name FROM teams"})).await;
        assert!(!answer.contains("blue"), "{answer}");
        seen += usize::from(answer.contains("public"));
    }
    drop(swapping);
}
