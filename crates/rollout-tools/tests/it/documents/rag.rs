//! The `rag` tools.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use rollout_tools::rag::{Rag, RagConfig};
use rollout_tools::{ErrorCode, Helper, Params, Resource as _};
use serde_json::json;

use super::fixtures::pdf;
use super::{Place, call, helper, open, shown, try_open};

fn place() -> Place {
    Place::new()
        .with(
            "cities/paris.md",
            "# Paris\nParis lies on the Seine.\n\n## People\nTwo million people live there.\n",
        )
        .with("cities/lyon.txt", "Lyon lies on the Rhône, and is known for its food.")
        .with("broken.pdf", "not one")
}

#[tokio::test]
async fn passages_are_found_with_their_source() {
    let place = place();
    let session = open(&place.rag(), "cities").await;
    let data =
        call(&*session, "search", json!({"query": "who lives on the Seine", "top_k": 1})).await.unwrap();
    assert_eq!(data["result"], "[1] paris.md: Paris\nParis lies on the Seine.");
    assert_eq!(data["results"][0]["source"], "paris.md");
    assert_eq!(data["results"][0]["section"], "Paris");
    assert_eq!(
        shown(&*session, "search", json!({"query": "submarine"})).await,
        "4006 nothing was found for `submarine`; try other words"
    );
}

#[tokio::test]
async fn the_folder_of_the_server_serves_sessions_that_name_none() {
    let place = place();
    let config = RagConfig { folder: Some(place.path().to_owned()), ..RagConfig::default() };
    let rag = Rag::new(config, helper());
    rag.warm_up().await.unwrap();
    let session = rag.open(&Params::new()).await.unwrap();
    let answer = shown(&*session, "search", json!({"query": "Rhône food"})).await;
    assert!(answer.starts_with("[1] cities/lyon.txt: "), "{answer}");
    let part = shown(&*session, "search", json!({"query": "Rhône", "seed_path": "cities/paris.md"})).await;
    assert!(part.starts_with("4006 "), "{part}");
}

#[tokio::test]
async fn a_new_session_sees_files_that_changed() {
    let place = place();
    let rag = place.rag();
    let old = open(&rag, "cities").await;
    std::fs::write(place.path().join("cities/nice.txt"), "Nice lies on the sea.").unwrap();
    let sea = json!({"query": "sea"});
    assert_eq!(call(&*old, "search", sea.clone()).await.unwrap_err().code, ErrorCode::NoResults);
    let new = open(&rag, "cities").await;
    assert!(shown(&*new, "search", sea).await.starts_with("[1] nice.txt"));
}

#[tokio::test]
async fn long_sections_are_searched_by_passage() {
    let text = format!("{} The needle is here. {}", "hay ".repeat(2000), "hay ".repeat(2000));
    let place = Place::new().with("long.txt", text);
    let session = open(&place.rag(), "long.txt").await;
    let data = call(&*session, "search", json!({"query": "needle"})).await.unwrap();
    let passage = data["results"][0]["text"].as_str().unwrap();
    assert!(passage.contains("The needle is here.") && passage.chars().count() <= 1000, "{passage}");
}

#[tokio::test]
async fn a_folder_beyond_the_limit_is_rejected() {
    let place = Place::new().with("a.txt", "word ".repeat(100_000));
    let config =
        RagConfig { roots: vec![place.path().to_owned()], index_bytes: 1 << 18, ..RagConfig::default() };
    let error = try_open(&Rag::new(config, helper()), ".").await.err().unwrap();
    assert_eq!(error.code, ErrorCode::Refused);
}

#[tokio::test]
async fn concurrent_sessions_share_one_index() {
    let place = place();
    let rag = place.rag();
    let sessions = futures_util::future::join_all((0..50).map(|_| open(&rag, "."))).await;
    for session in &sessions {
        assert!(
            shown(&**session, "search", json!({"query": "Seine"})).await.starts_with("[1] cities/paris.md")
        );
    }
}

/// A helper that records its process in `log`, and reads nothing until there is a file `gate`.
fn gated(beside: &Path) -> Helper {
    let (program, real) = (beside.join("helper"), env!("CARGO_BIN_EXE_rollout-tools-helper"));
    let (log, gate) = (beside.join("log"), beside.join("gate"));
    let script = format!(
        "#!/bin/sh\necho $$ >> '{}'\nwhile [ ! -e '{}' ]; do /bin/sleep 0.01; done\nexec '{real}' \"$@\"\n",
        log.display(),
        gate.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    Helper::new(program)
}

/// The processes that were started to read documents.
fn started(beside: &Path) -> Vec<u32> {
    let log = std::fs::read_to_string(beside.join("log")).unwrap_or_default();
    log.lines().map(|line| line.parse().unwrap()).collect()
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("timed out waiting until {what}");
}

/// A folder with these documents, and a helper that waits at a gate next to it.
fn gated_place(documents: &[(&str, &str)], index_bytes: usize) -> (Place, Place, Rag) {
    let (mut place, beside) = (Place::new(), Place::new());
    for (name, text) in documents {
        place = place.with(name, pdf(&[text]));
    }
    let config = RagConfig { roots: vec![place.path().to_owned()], index_bytes, ..RagConfig::default() };
    let rag = Rag::new(config, gated(beside.path()));
    (place, beside, rag)
}

#[tokio::test]
async fn an_index_without_waiting_callers_is_not_built() {
    let (_place, beside, rag) = gated_place(&[("a.pdf", "The needle.")], 1 << 30);
    {
        let mut opening = std::pin::pin!(open(&rag, "."));
        tokio::select! {
            _ = &mut opening => panic!("it was built without its documents"),
            () = until("the document is being read", || started(beside.path()).len() == 1) => {}
        }
    }
    let process = started(beside.path())[0];
    // A zombie process has no program any more.
    let is_gone = || std::fs::read_link(format!("/proc/{process}/exe")).is_err();
    until("the reader has ended", is_gone).await;
    std::fs::write(beside.path().join("gate"), "").unwrap();
    let session = open(&rag, ".").await;
    assert!(shown(&*session, "search", json!({"query": "needle"})).await.starts_with("[1] a.pdf"));
    assert_eq!(started(beside.path()).len(), 2);
}

#[tokio::test]
async fn a_rejected_folder_is_not_read_again() {
    let words: Vec<_> = (0..300).map(|nth| format!("word{nth}")).collect();
    let (_place, beside, rag) = gated_place(&[("a.pdf", &words.join(" "))], 8 << 10);
    std::fs::write(beside.path().join("gate"), "").unwrap();
    for _ in 0..3 {
        assert_eq!(try_open(&rag, ".").await.err().unwrap().code, ErrorCode::Refused);
    }
    assert_eq!(started(beside.path()).len(), 1);
}

#[tokio::test]
async fn sessions_do_not_keep_evicted_indexes() {
    let text = |word: &str| format!("{word} {}", "hay ".repeat(2000));
    let place = Place::new().with("a/a.txt", text("old")).with("b/b.txt", text("other"));
    let roots = vec![place.path().to_owned()];
    // Room for one of the two.
    let rag = Rag::new(RagConfig { roots, index_bytes: 16 << 10, ..RagConfig::default() }, helper());
    let first = open(&rag, "a").await;
    let _second = open(&rag, "b").await;
    std::fs::write(place.path().join("a/a.txt"), text("newer")).unwrap();
    let found = shown(&*first, "search", json!({"query": "newer"})).await;
    assert!(found.starts_with("[1] a.txt"), "{found}");
}
