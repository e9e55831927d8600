//! The `rag` tools.

use rollout_tools::rag::{Rag, RagConfig};
use rollout_tools::{Code, Params, Resource as _};
use serde_json::json;

use super::{Place, call, helper, open, shown};

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
    assert_eq!(call(&*old, "search", sea.clone()).await.unwrap_err().code, Code::NoResults);
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
async fn a_folder_beyond_the_bound_is_refused() {
    let place = Place::new().with("a.txt", "word ".repeat(100_000));
    let config =
        RagConfig { roots: vec![place.path().to_owned()], index_bytes: 1 << 18, ..RagConfig::default() };
    let error = super::try_open(&Rag::new(config, helper()), ".").await.err().unwrap();
    assert_eq!(error.code, Code::Refused);
}

#[tokio::test]
async fn sessions_that_come_at_once_share_one_index() {
    let place = place();
    let rag = place.rag();
    let sessions = futures_util::future::join_all((0..50).map(|_| open(&rag, "."))).await;
    for session in &sessions {
        assert!(
            shown(&**session, "search", json!({"query": "Seine"})).await.starts_with("[1] cities/paris.md")
        );
    }
}
