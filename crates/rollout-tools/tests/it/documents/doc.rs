//! The `doc` tools.

use serde_json::{Value, json};

use super::fixtures::{docx, pdf, xlsx};
use super::{Place, call, open, shown};

const GUIDE: &str =
    "# Guide\nHow to travel.\n\n## Trains\nThe train to Lyon takes two hours.\n\n## 船\n塞纳河上的船很慢。\n";

#[tokio::test]
async fn a_short_document_is_returned_completely() {
    let place = Place::new().with("guide.md", GUIDE);
    let session = open(&place.docs(), "guide.md").await;
    insta::assert_snapshot!(shown(&*session, "read", json!({})).await, @r"
    [1] Guide
    How to travel.

    [2] Guide > Trains
    The train to Lyon takes two hours.

    [3] Guide > 船
    塞纳河上的船很慢。
    ");
}

#[tokio::test]
async fn a_long_document_is_returned_by_section() {
    let filler = "Nothing of note. ".repeat(150);
    let place = Place::new().with("long.md", format!("# One\n{filler}\n# Two\n{filler}\n# Three\nThe end."));
    let session = open(&place.docs(), "long.md").await;
    insta::assert_snapshot!(shown(&*session, "read", json!({})).await, @r"
    long.md (3 sections)
      [1] One (2549 characters)
      [2] Two (2549 characters)
      [3] Three (8 characters)
    ");
    assert_eq!(shown(&*session, "read", json!({"section_ids": "[3]"})).await, "[3] Three\nThe end.");
    let both = shown(&*session, "read", json!({"section_ids": ["3", 9]})).await;
    assert_eq!(both, "[3] Three\nThe end.\n\n(there is no section 9)");
    let none = shown(&*session, "read", json!({"section_ids": ["9"]})).await;
    assert_eq!(none, "4006 there is no section 9; doc:read without ids lists them");
}

#[tokio::test]
async fn a_section_requested_repeatedly_is_read_once() {
    let place = Place::new().with("a.md", GUIDE);
    let session = open(&place.docs(), "a.md").await;
    let data = call(&*session, "read", json!({"section_ids": "1,".repeat(1_000_000)})).await.unwrap();
    assert_eq!(data["result"], "[1] Guide\nHow to travel.");
    assert_eq!(data["sections"].as_array().unwrap().len(), 1);
    let many: Vec<_> = (1..202).collect();
    let answer = shown(&*session, "read", json!({"section_ids": many})).await;
    assert_eq!(answer, "4000 201 sections are requested; at most 200 are allowed");
}

#[tokio::test]
async fn a_query_that_is_too_long_is_rejected() {
    let place = Place::new().with("a.md", GUIDE);
    let words = "word ".repeat(201);
    let want = "4000 a query has at most 1000 characters";
    let docs = open(&place.docs(), "a.md").await;
    assert_eq!(shown(&*docs, "search", json!({"key_words": [words]})).await, want);
    assert_eq!(shown(&*docs, "search", json!({"key_words": vec!["word"; 201]})).await, want);
    let rag = open(&place.rag(), "a.md").await;
    assert_eq!(shown(&*rag, "search", json!({"query": words})).await, want);
}

#[tokio::test]
async fn a_long_text_is_continued_where_it_was_cut() {
    let place = Place::new().with("long.md", format!("# One\n{}", "word ".repeat(500)));
    let session = open(&place.docs(), "long.md").await;
    let ask = |start: Value| json!({"section_ids": ["1"], "start": start, "max_text_token": 300});
    let first = call(&*session, "read", ask(json!(0))).await.unwrap();
    assert_eq!(first["next_start"], 1200);
    assert!(
        first["result"]
            .as_str()
            .unwrap()
            .ends_with("(characters 0 to 1200 of 2507; continue with start=1200)")
    );
    let last = call(&*session, "read", ask(json!("2400"))).await.unwrap();
    assert_eq!(last["next_start"], Value::Null);
}

#[tokio::test]
async fn every_answer_fits_the_limit_of_a_model() {
    let place = Place::new().with("a.md", format!("# One\n{}", "word ".repeat(4000))).with("b.txt", "b");
    let session = open(&place.docs(), ".").await;
    for (tool, params) in [
        ("read", json!({})),
        ("read", json!({"section_ids": ["a.md#1", "a.md#2", "a.md#3"]})),
        ("search", json!({"key_words": ["word"]})),
    ] {
        let answer = shown(&*session, tool, params).await;
        assert!(answer.chars().count() <= 4000, "{tool}: {}", answer.chars().count());
    }
}

#[tokio::test]
async fn a_folder_is_searched_as_one() {
    let place = Place::new()
        .with("guide.md", GUIDE)
        .with("cities/people.csv", "city,people\nParis,2100000\nLyon,520000\n")
        .with("picture.png", "\u{0}");
    let session = open(&place.docs(), ".").await;
    insta::assert_snapshot!(shown(&*session, "search", json!({"key_words": ["Lyon", "train"]})).await, @r"
    [guide.md#2] Guide > Trains (score 1.805)
    The train to Lyon takes two hours.

    [cities/people.csv#1] rows 1–2 (score 0.659)
    city | people Paris | 2100000 Lyon | 520000
    ");
    let chinese =
        call(&*session, "search", json!({"key_words": "塞纳河", "max_search_results": 1})).await.unwrap();
    assert_eq!(chinese["results"][0]["id"], "guide.md#3");
    let section = shown(&*session, "read", json!({"section_ids": ["people.csv#1"]})).await;
    assert!(section.starts_with("[cities/people.csv#1] rows 1–2\ncity | people"), "{section}");
    let one = shown(&*session, "read", json!({"path": "people.csv"})).await;
    assert!(one.starts_with("[cities/people.csv#1]"), "{one}");
    let nothing = shown(&*session, "search", json!({"key_words": ["submarine"]})).await;
    assert_eq!(nothing, "4006 nothing was found for `submarine`; try other words");
}

#[tokio::test]
async fn every_format_is_read() {
    let paragraphs = r#"<w:p><w:pPr><w:pStyle w:val="berschrift1"/></w:pPr><w:r><w:t>Bericht</w:t></w:r></w:p>
        <w:p><w:r><w:t xml:space="preserve">Ein </w:t></w:r><w:r><w:t>Satz &amp; mehr.</w:t></w:r></w:p>
        <w:p><w:pPr><w:numPr/></w:pPr><w:r><w:t>Punkt</w:t></w:r></w:p>
        <w:tbl><w:tr><w:tc><w:p><w:r><w:t>Ort</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>Zahl</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"#;
    let rows = r#"<row r="1"><c r="A1" t="inlineStr"><is><t>city</t></is></c><c r="B1" t="inlineStr"><is><t>people</t></is></c></row>
        <row r="2"><c r="A2" t="inlineStr"><is><t>Paris</t></is></c><c r="B2"><v>2100000</v></c></row>"#;
    let place = Place::new()
        .with("a.docx", docx(paragraphs))
        .with("b.xlsx", xlsx(rows))
        .with("c.pdf", pdf(&["The first page.", "The second page."]))
        .with("d.html", "<h1>Seite</h1><p>Text.</p><script>no()</script>")
        .with("e.txt", "Plain.");
    let session = open(&place.docs(), ".").await;
    insta::assert_snapshot!(shown(&*session, "read", json!({})).await, @r"
    [a.docx#1] Bericht
    Ein Satz & mehr.

    - Punkt
    Ort | Zahl

    [b.xlsx#1] Cities (row 1)
    city | people
    Paris | 2100000

    [c.pdf#1] page 1
    The first page.

    [c.pdf#2] page 2
    The second page.

    [d.html#1] Seite
    Text.

    [e.txt#1] Plain.
    Plain.
    ");
}

#[tokio::test]
async fn chinese_in_a_font_that_is_not_embedded_is_read() {
    let file = include_bytes!("chinese.pdf");
    let place = Place::new().with("chinese.pdf", file);
    let session = open(&place.docs(), "chinese.pdf").await;
    assert_eq!(shown(&*session, "read", json!({})).await, "[1] page 1\n巴黎是法国的首都");
}

#[tokio::test]
async fn a_document_that_cannot_be_read_does_not_hide_the_others() {
    let place = Place::new().with("broken.pdf", "%PDF-1.4 and then nothing").with("fine.txt", "All is well.");
    let session = open(&place.docs(), ".").await;
    let answer = shown(&*session, "search", json!({"key_words": ["well"]})).await;
    assert!(answer.starts_with("[fine.txt#1] All is well."), "{answer}");
    assert!(answer.contains("(1 of 2 documents could not be read: `broken.pdf`: "), "{answer}");
    let alone = open(&place.docs(), "broken.pdf").await;
    let answer = shown(&*alone, "read", json!({})).await;
    assert!(answer.starts_with("5000 `broken.pdf`: the document cannot be read"), "{answer}");
}

#[tokio::test]
async fn a_change_of_a_file_is_seen() {
    let place = Place::new().with("a.txt", "before");
    let session = open(&place.docs(), ".").await;
    assert_eq!(shown(&*session, "read", json!({})).await, "[1] before\nbefore");
    let place = place.with("a.txt", "afterwards");
    assert_eq!(shown(&*session, "read", json!({})).await, "[1] afterwards\nafterwards");
    drop(place);
}

#[tokio::test]
async fn many_documents_are_listed_without_being_read() {
    let place = (0..25).fold(Place::new(), |place, nth| place.with(&format!("{nth:02}.txt"), "x"));
    let session = open(&place.docs(), ".").await;
    let answer = shown(&*session, "read", json!({})).await;
    assert!(
        answer.starts_with("25 documents; read one by its path, or search them\n00.txt (1 bytes)\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn several_seeds_are_distinguished_by_their_names() {
    let place = Place::new().with("x/a.txt", "first").with("y/a.txt", "second").with("z.txt", "third");
    let session = open(&place.docs(), json!(["x", "y/a.txt"])).await;
    assert_eq!(
        shown(&*session, "read", json!({})).await,
        "[x/a.txt#1] first\nfirst\n\n[y/a.txt#1] second\nsecond"
    );
}
