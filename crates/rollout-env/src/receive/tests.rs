//! Attacks of a guest that violates the protocol.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use super::*;

const LIMITS: CopyLimits = CopyLimits { bytes: 1000, entries: 50, file_bytes: 100 };

struct Host {
    root: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("outside")).unwrap();
        fs::create_dir(root.path().join("target")).unwrap();
        fs::write(root.path().join("outside/secret"), "secret").unwrap();
        Self { root }
    }

    fn target(&self) -> PathBuf {
        self.root.path().join("target")
    }

    fn receive_all(
        &self,
        replies: impl IntoIterator<Item = GuestReply>,
    ) -> Result<Vec<String>, ReceiveError> {
        self.receive_with(None, replies)
    }

    fn receive_with(
        &self,
        first: Option<&str>,
        replies: impl IntoIterator<Item = GuestReply>,
    ) -> Result<Vec<String>, ReceiveError> {
        let redactor = Redactor::default();
        let copy = CopyOut { source: "/", target: &self.target(), first, redactor: &redactor };
        let mut replies = replies.into_iter().chain([GuestReply::Done]);
        match Receive::new(&copy, LIMITS).all(|| replies.next())? {
            Received::Whole(skipped) => Ok(skipped),
            other => panic!("{other:?}"),
        }
    }

    fn receive(&self, items: impl IntoIterator<Item = Item>) -> Result<Vec<String>, ReceiveError> {
        self.receive_all(items.into_iter().map(GuestReply::Item))
    }

    fn refuses(&self, items: impl IntoIterator<Item = Item>) {
        assert!(matches!(self.receive(items), Err(ReceiveError::Protocol)));
        self.is_untouched_outside();
    }

    fn is_untouched_outside(&self) {
        let names = fs::read_dir(self.root.path().join("outside")).unwrap();
        assert_eq!(names.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>(), ["secret"]);
        assert_eq!(fs::read(self.root.path().join("outside/secret")).unwrap(), b"secret");
        let mut beside: Vec<_> =
            fs::read_dir(self.root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        beside.sort();
        assert_eq!(beside, ["outside", "target"]);
    }
}

fn enter(name: &str) -> Item {
    Item::Enter { name: name.into(), mode: 0o755 }
}

fn file(name: &str) -> Item {
    Item::File { name: name.into(), mode: 0o644, seconds: 5, nanoseconds: 0 }
}

fn data(text: &str) -> Item {
    Item::Data(text.into())
}

fn skipped(path: &str, reason: &str) -> GuestReply {
    GuestReply::Skipped { path: path.to_owned(), reason: reason.to_owned() }
}

fn link(name: &str, target: &str) -> Item {
    Item::Link { name: name.into(), target: target.into() }
}

#[test]
fn a_tree_arrives_with_its_modes_and_times() {
    let host = Host::new();
    let script = Item::File { name: b"run".to_vec(), mode: 0o4755, seconds: 77, nanoseconds: 0 };
    let items = [enter("a"), script, data("one"), data("two"), link("b", "../c"), Item::Leave, file("c")];
    assert_eq!(host.receive(items).unwrap(), Vec::<String>::new());
    let target = host.target();
    assert_eq!(fs::read(target.join("a/run")).unwrap(), b"onetwo");
    let metadata = fs::metadata(target.join("a/run")).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o7777, metadata.mtime()), (0o755, 77));
    assert_eq!(fs::read_link(target.join("a/b")).unwrap(), Path::new("../c"));
    assert_eq!(fs::read(target.join("c")).unwrap(), b"");
}

#[test]
fn names_that_are_paths_are_rejected() {
    for name in ["..", ".", "", "/", "/etc", "../outside", "a/b", "a\0b", &"x".repeat(256)] {
        let host = Host::new();
        host.refuses([file(name), data("x")]);
        host.refuses([enter(name)]);
        host.refuses([link(name, "a")]);
    }
}

#[test]
fn links_that_leave_the_directory_are_rejected() {
    for target in ["/etc/passwd", "..", "../outside", "a/../../outside", "", "a\0b"] {
        Host::new().refuses([link("link", target)]);
    }
    Host::new().refuses([enter("a"), link("link", "../../outside")]);
}

#[test]
fn nothing_is_written_through_a_link() {
    let host = Host::new();
    std::os::unix::fs::symlink("../outside", host.target().join("planted")).unwrap();
    std::os::unix::fs::symlink("../outside/secret", host.target().join("file")).unwrap();
    host.receive([
        enter("planted"),
        file("secret"),
        data("x"),
        link("l", "a"),
        enter("d"),
        Item::Leave,
        Item::Leave,
    ])
    .unwrap();
    host.receive([file("file"), data("x")]).unwrap();
    host.is_untouched_outside();

    host.receive([enter("inner"), Item::Leave, link("own", "inner"), enter("own"), file("f"), data("x")])
        .unwrap();
    assert!(!host.target().join("inner/f").exists());
}

#[test]
fn existing_files_are_kept_and_not_reported() {
    let host = Host::new();
    fs::write(host.target().join("kept"), "kept").unwrap();
    let items = [file("kept"), data("new"), file("twice"), data("first"), file("twice"), data("second")];
    let skipped = ["kept", "gone", "../outside/secret"].map(|path| skipped(path, "it is a FIFO"));
    let skipped = host.receive_all(items.map(GuestReply::Item).into_iter().chain(skipped)).unwrap();
    assert_eq!(skipped, ["gone: it is a FIFO", "../outside/secret: it is a FIFO"]);
    assert_eq!(fs::read(host.target().join("kept")).unwrap(), b"kept");
    assert_eq!(fs::read(host.target().join("twice")).unwrap(), b"first");
}

#[test]
fn more_than_the_limits_is_rejected() {
    let host = Host::new();
    host.refuses((0..).map(|number| file(&format!("file-{number}"))));
    assert!(fs::read_dir(host.target()).unwrap().count() <= 50);
    Host::new().refuses([file("a"), data(&"x".repeat(60)), data(&"x".repeat(60))]);
    Host::new().refuses((0..40).flat_map(|number| [file(&number.to_string()), data(&"x".repeat(90))]));
    Host::new().refuses((0..).map(|_| enter("deep")));
}

#[test]
fn as_many_entries_as_a_guest_sends_are_accepted_with_a_directory_that_is_copied_first() {
    let all = |number: u64| {
        let files = |from: u64, to: u64| (from..to).map(|number| file(&number.to_string()));
        let first = [enter("first")].into_iter().chain(files(0, LIMITS.entries)).chain([Item::Leave]);
        first.chain(files(0, number)).map(GuestReply::Item)
    };
    let host = Host::new();
    assert_eq!(host.receive_with(Some("first"), all(LIMITS.entries)).unwrap(), Vec::<String>::new());
    assert_eq!(fs::read_dir(host.target()).unwrap().count() as u64, LIMITS.entries + 1);
    let more = Host::new().receive_with(Some("first"), all(LIMITS.entries + 1));
    assert!(matches!(more, Err(ReceiveError::Protocol)));
}

#[test]
fn repeated_entries_are_limited() {
    Host::new().refuses((0..1_000_000).flat_map(|_| [enter("a"), Item::Leave]));
}

#[test]
fn steps_out_of_order_are_rejected() {
    Host::new().refuses([data("x")]);
    Host::new().refuses([Item::Leave]);
    Host::new().refuses([enter("a"), Item::Leave, Item::Leave]);
    Host::new().refuses([file("a"), enter("b"), data("x")]);
    Host::new().refuses([link("a", "b"), data("x")]);
}

#[test]
fn skipped_entries_are_kept_up_to_a_limit() {
    let host = Host::new();
    let reason = "x".repeat(100_000);
    let all = (0..100_000).map(|number| skipped(&number.to_string(), &reason));
    let skipped = host.receive_all(all).unwrap();
    assert_eq!(skipped.len(), MAX_SKIPPED);
    assert!(skipped.iter().all(|text| text.len() < 3 * MAX_SKIPPED_BYTES));
}
