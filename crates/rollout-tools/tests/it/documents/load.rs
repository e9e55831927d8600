//! Many concurrent sessions.

use serde_json::json;

use super::fixtures::pdf;
use super::{Place, open, shown};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_sessions_read_search_and_query_at_once() {
    let place =
        Place::new().with("a.pdf", pdf(&["The needle is on page one."])).with("b.md", "# Hay\nStack.");
    super::sql::database(&place.path().join("shop.db"));
    let (docs, sql, rag) = (place.docs(), place.sql(), place.rag());
    let one = async || {
        let (reader, asker, finder) = tokio::join!(open(&docs, "."), open(&sql, "shop.db"), open(&rag, "."));
        let found = shown(&*reader, "search", json!({"key_words": ["needle"]})).await;
        assert!(found.starts_with("[a.pdf#1] page 1"), "{found}");
        let section = shown(&*reader, "read", json!({"section_ids": ["b.md#1"]})).await;
        assert_eq!(section, "[b.md#1] Hay\nStack.");
        let rows = shown(&*asker, "execute", json!({"sql": "SELECT count(*) AS n FROM people"})).await;
        assert_eq!(rows, "n\n3\n(1 row)");
        let passage = shown(&*finder, "search", json!({"query": "needle"})).await;
        assert!(passage.starts_with("[1] a.pdf: page 1"), "{passage}");
        for session in [reader, asker, finder] {
            session.close().await;
        }
    };
    futures_util::future::join_all((0..200).map(|_| one())).await;
}

#[tokio::test]
async fn a_cancelled_call_leaves_no_process_behind() {
    let place = Place::new();
    super::sql::database(&place.path().join("shop.db"));
    let session = open(&place.sql(), "shop.db").await;
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
    let query = shown(&*session, "execute", json!({"sql": endless}));
    let mut query = std::pin::pin!(query);
    let children =
        || std::fs::read_to_string("/proc/thread-self/children").unwrap().split_whitespace().count();
    while children() == 0 {
        tokio::select! {
            answer = &mut query => panic!("{answer}"),
            () = tokio::task::yield_now() => {}
        }
    }
    query.set(shown(&*session, "list_databases", json!({})));
    query.await;
    // The runtime reaps a cancelled process when another one ends.
    for _ in 0..100 {
        assert!(shown(&*session, "execute", json!({"sql": "SELECT 1"})).await.ends_with("(1 row)"));
        if children() == 0 {
            return;
        }
    }
    panic!("the process of the query is still there");
}
