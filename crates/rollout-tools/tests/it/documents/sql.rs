//! The `sql` tools.

use std::path::Path;

use rollout_tools::ErrorCode;
use rollout_tools::sql::{Sql, SqlConfig};
use rusqlite::Connection;
use serde_json::json;

use super::{Place, call, helper, open, shown};

pub(crate) fn database(path: &Path) {
    let connection = Connection::open(path).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE teams (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
             CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, team INTEGER REFERENCES teams(id), face BLOB);
             CREATE VIEW names AS SELECT name FROM people;
             CREATE VIEW broken AS SELECT * FROM gone;
             INSERT INTO teams VALUES (1, '红队'), (2, 'blue');
             INSERT INTO people VALUES (1, 'Ann', 1, x'0102'), (2, NULL, 2, NULL), (3, 'O''Hara', 1, NULL);",
        )
        .unwrap();
}

fn place() -> Place {
    let place = Place::new().with("notes.txt", "no database");
    database(&place.path().join("shop.sqlite"));
    std::fs::create_dir(place.path().join("more")).unwrap();
    database(&place.path().join("more/Other.db"));
    place
}

#[tokio::test]
async fn databases_are_listed_by_name() {
    let place = place();
    let session = open(&place.sql(), ".").await;
    insta::assert_snapshot!(shown(&*session, "list_databases", json!({})).await, @r"
    more/Other
    shop
    ");
}

#[tokio::test]
async fn a_schema_describes_what_a_query_needs() {
    let place = place();
    let session = open(&place.sql(), "shop.sqlite").await;
    insta::assert_snapshot!(shown(&*session, "get_schema", json!({})).await, @r"
    view broken (cannot be read)

    view names (3 rows)
      name TEXT
      row: Ann
      row: NULL
      row: O'Hara

    table people (3 rows)
      id INTEGER primary key
      name TEXT
      team INTEGER -> teams.id
      face BLOB
      row: 1 | Ann | 1 | <blob of 2 bytes>
      row: 2 | NULL | 2 | NULL
      row: 3 | O'Hara | 1 | NULL

    table teams (2 rows)
      id INTEGER primary key
      name TEXT not null
      row: 1 | 红队
      row: 2 | blue
    ");
}

#[tokio::test]
async fn a_view_that_fails_when_it_is_read_does_not_hide_the_tables() {
    let place = Place::new();
    Connection::open(place.path().join("a.db"))
        .unwrap()
        .execute_batch(
            "CREATE TABLE words (word); INSERT INTO words VALUES ('{');
             CREATE VIEW parsed AS SELECT json(word) AS word FROM words;",
        )
        .unwrap();
    let session = open(&place.sql(), "a.db").await;
    insta::assert_snapshot!(shown(&*session, "get_schema", json!({})).await, @r"
    view parsed (1 row)
      word 

    table words (1 row)
      word 
      row: {
    ");
}

#[tokio::test]
async fn some_of_many_databases_are_listed() {
    let mut place = Place::new();
    for nth in 10..35 {
        place = place.with(&format!("{nth}.db"), "");
    }
    let session = open(&place.sql(), ".").await;
    insta::assert_snapshot!(shown(&*session, "get_schema", json!({"database": "x"})).await, @"4006 there is no database `x`; there are: 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29 and 5 more, which sql:list_databases lists");
}

#[tokio::test]
async fn a_query_returns_its_rows() {
    let place = place();
    let session = open(&place.sql(), ".").await;
    let sql = "SELECT t.name AS team, count(*) AS n FROM people p JOIN teams t ON p.team = t.id GROUP BY 1 ORDER BY 2 DESC;";
    let data = call(&*session, "execute", json!({"database": "SHOP", "sql": sql})).await.unwrap();
    assert_eq!(
        data,
        json!({
            "result": "team | n\n红队 | 2\nblue | 1\n(2 rows)",
            "columns": ["team", "n"],
            "row_count": 2,
            "rows": [["红队", 2], ["blue", 1]],
            "truncated": false,
        })
    );
}

#[tokio::test]
async fn omitted_rows_are_reported() {
    let place = place();
    let session = open(&place.sql(), "shop.sqlite").await;
    let sql = "SELECT id FROM people ORDER BY id";
    insta::assert_snapshot!(shown(&*session, "execute", json!({"sql": sql, "max_rows": "2"})).await, @r"
    id
    1
    2
    (there are more than 2 rows; the first 2 are shown)
    ");
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, hex(zeroblob(1500)) FROM n";
    let data = call(&*session, "execute", json!({"sql": sql, "max_rows": 1000})).await.unwrap();
    assert_eq!(data["truncated"], true);
    assert!(data["rows"].as_array().unwrap().len() < 100);
}

#[tokio::test]
async fn mistakes_are_explained() {
    let place = place()
        .with("false.db", "this is no database, though it is long enough to be taken for one".repeat(9));
    let session = open(&place.sql(), ".").await;
    for (params, want) in [
        (json!({"database": "shop", "sql": "SELEC 1"}), "5000 near \"SELEC\": syntax error"),
        (json!({"database": "shop", "sql": "SELECT x FROM people"}), "5000 no such column: x"),
        (json!({"database": "shop"}), "4003 the parameter \"sql\" is missing"),
        (
            json!({"sql": "SELECT 1"}),
            "4003 `database` is missing; there are several: false, more/Other, shop",
        ),
        (
            json!({"database": "nope", "sql": "SELECT 1"}),
            "4006 there is no database `nope`; there are: false, more/Other, shop",
        ),
        (json!({"database": "false", "sql": "SELECT 1"}), "5000 this is not an SQLite database"),
        (
            json!({"database": "shop", "sql": "SELECT 1; SELECT 2"}),
            "4001 only one statement can be run at a time",
        ),
    ] {
        assert_eq!(shown(&*session, "execute", params.clone()).await, want, "{params}");
    }
}

#[tokio::test]
async fn nothing_can_be_changed_or_reached_outside_the_database() {
    let place = place();
    let before = std::fs::read(place.path().join("shop.sqlite")).unwrap();
    let session = open(&place.sql(), "shop.sqlite").await;
    for sql in [
        "DELETE FROM people",
        "INSERT INTO teams VALUES (3, 'x')",
        "UPDATE people SET name = 'x'",
        "DROP TABLE people",
        "CREATE TABLE t (a)",
        "CREATE TEMP TABLE t (a)",
        "CREATE VIRTUAL TABLE t USING fts5(a)",
        "ATTACH '/etc/passwd' AS other",
        "ATTACH ':memory:' AS other",
        "VACUUM INTO '/tmp/copy.db'",
        "PRAGMA query_only = 0",
        "PRAGMA writable_schema = 1",
        "PRAGMA database_list",
        "PRAGMA temp_store_directory = '/tmp'",
        "SELECT load_extension('/tmp/evil.so')",
        "BEGIN IMMEDIATE",
        "ANALYZE",
    ] {
        let error = call(&*session, "execute", json!({"sql": sql})).await.expect_err(sql);
        assert_eq!(error.code, ErrorCode::Refused, "{sql}: {error}");
        assert!(error.message.starts_with("the database can only be read"), "{sql}: {error}");
    }
    assert!(call(&*session, "execute", json!({"sql": "SELECT writefile('/tmp/x', 'y')"})).await.is_err());
    assert_eq!(
        shown(&*session, "execute", json!({"sql": "PRAGMA table_info(teams)"})).await.lines().count(),
        4
    );
    assert_eq!(std::fs::read(place.path().join("shop.sqlite")).unwrap(), before);
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 3, "no file was put beside it");
}

#[tokio::test]
async fn an_endless_query_times_out() {
    let place = place();
    let config = SqlConfig { roots: vec![place.path().to_owned()], timeout_seconds: 1 };
    let session = open(&Sql::new(config, helper()), "shop.sqlite").await;
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
    let error = call(&*session, "execute", json!({"sql": endless})).await.unwrap_err();
    assert_eq!((error.code, &*error.message), (ErrorCode::Timeout, "the query took more than 1 seconds"));
    // Other queries have the same second, which may be too short on a busy machine.
    let answer = loop {
        let answer = shown(&*session, "execute", json!({"sql": "SELECT 1"})).await;
        if !answer.starts_with("5006 ") {
            break answer;
        }
    };
    assert_eq!(answer, "1\n1\n(1 row)");
}

#[tokio::test]
async fn huge_values_are_rejected() {
    let place = place();
    let session = open(&place.sql(), "shop.sqlite").await;
    for sql in ["SELECT randomblob(1000000000)", "SELECT replace(hex(zeroblob(8000000)), '0', 'xxxxxxxxxx')"]
    {
        assert_eq!(
            shown(&*session, "execute", json!({"sql": sql})).await,
            "5000 string or blob too big",
            "{sql}"
        );
    }
}

#[tokio::test]
async fn an_unmerged_log_is_read() {
    let place = place();
    let writer = Connection::open(place.path().join("shop.sqlite")).unwrap();
    writer.execute_batch("PRAGMA journal_mode = wal; INSERT INTO teams VALUES (9, 'late')").unwrap();
    let session = open(&place.sql(), "shop.sqlite").await;
    let late = json!({"sql": "SELECT name FROM teams WHERE id = 9"});
    assert_eq!(shown(&*session, "execute", late.clone()).await, "name\nlate\n(1 row)");
    drop(writer);
    assert_eq!(shown(&*session, "execute", late).await, "name\nlate\n(1 row)");
    assert!(!place.path().join("shop.sqlite-wal").exists());
}
