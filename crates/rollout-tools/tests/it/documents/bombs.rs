//! Documents that are made to harm their reader.

use std::io::Cursor;

use rollout_tools::ErrorCode;
use rollout_tools::doc::extract::{DocumentFormat, ExtractError, ExtractLimits, extract};
use rollout_tools::doc::{DocConfig, Docs};
use serde_json::json;

use super::fixtures::{archive, archive_of_deflated, deflated_run, docx, page, pdf_of, stream, xlsx};
use super::{Place, call, helper, open, shown};

/// Reads a hostile document, and then an ordinary one, from the same server.
async fn read(name: &str, bytes: Vec<u8>) -> String {
    let place = Place::new().with(name, bytes).with("good.md", "# Fine\nThe server is still here.");
    let roots = vec![place.path().to_owned()];
    let config = DocConfig { roots, max_memory_bytes: 128 << 20, ..DocConfig::default() };
    let docs = Docs::new(config, helper());
    let bad = open(&docs, name).await;
    let answer = shown(&*bad, "read", json!({})).await;
    let again = shown(&*bad, "search", json!({"key_words": ["server"]})).await;
    assert!(again.split(' ').next() == answer.split(' ').next() || answer.starts_with('['), "{again}");
    let good = open(&docs, ".").await;
    let both = shown(&*good, "search", json!({"key_words": ["server"]})).await;
    assert!(both.contains("The server is still here."), "{both}");
    answer
}

#[tokio::test]
async fn an_archive_that_unpacks_without_limit_is_rejected() {
    let part = deflated_run(b' ', 100);
    for name in ["a.docx", "a.xlsx"] {
        let parts = ["word/document.xml", "xl/sharedStrings.xml", "more"].map(|name| (name, &*part));
        assert_eq!(
            read(name, archive_of_deflated(&parts, 100 << 20)).await,
            format!("4001 `{name}`: the document unpacks to more than 256 MiB")
        );
    }
}

#[tokio::test]
async fn an_archive_that_lies_about_its_size_is_detected() {
    let bomb = deflated_run(b' ', 8);
    let limits = ExtractLimits { unpacked_bytes: 4 << 20, ..ExtractLimits::default() };
    for claimed in [0, 1000, 4 << 20] {
        let file = archive_of_deflated(&[("word/document.xml", &bomb)], claimed);
        for format in [DocumentFormat::Docx, DocumentFormat::Xlsx] {
            let error = extract(format, Cursor::new(&file), &limits).unwrap_err();
            assert!(
                matches!(error, ExtractError::Unpacked(_) | ExtractError::Malformed(_)),
                "{claimed}: {error}"
            );
        }
        let answer = read("a.docx", file).await;
        assert!(answer.starts_with("5000 `a.docx`: the document cannot be read"), "{claimed}: {answer}");
    }
}

#[tokio::test]
async fn an_archive_of_too_many_parts_is_rejected() {
    let names: Vec<_> = (0..10_001).map(|nth| nth.to_string()).collect();
    let parts: Vec<_> = names.iter().map(|name| (name.as_str(), &[3_u8, 0][..])).collect();
    let answer = read("a.xlsx", archive_of_deflated(&parts, 0)).await;
    assert_eq!(answer, "4001 `a.xlsx`: the document is an archive of more than 10000 files");
}

#[tokio::test]
async fn a_page_that_unpacks_without_limit_is_rejected() {
    let content = [b"\x78\x9c".to_vec(), deflated_run(b' ', 256)].concat();
    let file = pdf_of(&[
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        b"<< /Type /Pages /Count 1 /Kids [4 0 R] >>".to_vec(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_vec(),
        page(5),
        stream("/Filter /FlateDecode", &content),
    ]);
    assert_eq!(read("a.pdf", file).await, "4001 `a.pdf`: reading it took more than 128 MiB of memory");
}

#[tokio::test]
async fn cyclic_and_endlessly_nested_documents_are_rejected() {
    let catalog = || b"<< /Type /Catalog /Pages 2 0 R >>".to_vec();
    let font = || b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_vec();
    let kids_are_parents = vec![catalog(), b"<< /Type /Pages /Count 9 /Kids [2 0 R 2 0 R] >>".to_vec()];
    let form_draws_itself = vec![
        catalog(),
        b"<< /Type /Pages /Count 1 /Kids [4 0 R] >>".to_vec(),
        font(),
        page(6),
        stream(
            "/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X 5 0 R >> >>",
            b"/X Do /X Do",
        ),
        stream("", b"/X Do"),
    ];
    let nested = vec![catalog(), [vec![b'['; 1 << 20], vec![b']'; 1 << 20]].concat(), font()];
    for objects in [kids_are_parents, form_draws_itself, nested] {
        let answer = read("a.pdf", pdf_of(&objects)).await;
        assert!(answer.starts_with("5000 ") || answer.starts_with("5006 "), "{answer}");
    }
}

#[tokio::test]
async fn entities_are_not_expanded() {
    let mut laughs = r#"<!DOCTYPE x [<!ENTITY a0 "ha">"#.to_owned();
    for nth in 1..40 {
        laughs.push_str(&format!(r#"<!ENTITY a{nth} "{}">"#, format!("&a{};", nth - 1).repeat(10)));
    }
    laughs.push_str("]>");
    let text = format!(
        r#"{laughs}<w:document xmlns:w="w"><w:p><w:r><w:t>so &a39; it &lt;ends&gt;</w:t></w:r></w:p></w:document>"#
    );
    let place = Place::new().with("a.docx", archive(&[("word/document.xml", &text)]));
    let session = open(&place.docs(), "a.docx").await;
    let answer = shown(&*session, "read", json!({})).await;
    assert!(answer.ends_with("so &a39; it <ends>"), "{answer}");
}

#[tokio::test]
async fn deeply_nested_elements_do_no_harm() {
    let page = format!("{}The bottom.", "<div>".repeat(200_000));
    assert_eq!(read("a.html", page.into_bytes()).await, "[1] The bottom.\nThe bottom.");
    let body = "<w:tbl>".repeat(500_000);
    let answer = read("a.docx", docx(&body)).await;
    assert!(answer.starts_with("5000 `a.docx`"), "{answer}");
}

#[tokio::test]
async fn text_that_takes_long_to_read_times_out() {
    let attributes: String = (0..400_000).map(|nth| format!(" a{nth:x}")).collect();
    let place = Place::new().with("a.html", format!("<p{attributes}>The end."));
    let roots = vec![place.path().to_owned()];
    let docs = Docs::new(DocConfig { roots, timeout_seconds: 1, ..DocConfig::default() }, helper());
    let answer = shown(&*open(&docs, "a.html").await, "read", json!({})).await;
    assert!(answer.starts_with("5006 `a.html`: "), "{answer}");
}

#[tokio::test]
async fn a_distant_cell_does_not_make_a_sheet_large() {
    let rows = r#"<row r="1"><c r="A1" t="inlineStr"><is><t>near</t></is></c></row>
        <row r="1048576"><c r="XFD1048576"><v>7</v></c></row>"#;
    let place = Place::new().with("a.xlsx", xlsx(rows));
    let session = open(&place.docs(), "a.xlsx").await;
    let data = call(&*session, "search", json!({"key_words": "near"})).await.unwrap();
    assert_eq!(data["results"][0]["path"], "a.xlsx");
}

#[tokio::test]
async fn text_beyond_the_limit_is_rejected_with_the_limit() {
    let place = Place::new().with("a.csv", "x".repeat(3 << 20)).with("b.txt", "y".repeat(5 << 20));
    let roots = vec![place.path().to_owned()];
    let config =
        DocConfig { roots, max_file_bytes: 4 << 20, max_text_bytes: 2 << 20, ..DocConfig::default() };
    let docs = Docs::new(config, helper());
    for (name, want) in [
        ("a.csv", "`a.csv`: the document contains more than 2 MiB of text"),
        ("b.txt", "`b.txt`: the document is larger than 4 MiB"),
    ] {
        let error = call(&*open(&docs, name).await, "read", json!({})).await.unwrap_err();
        assert_eq!((error.code, &*error.message), (ErrorCode::Refused, want));
    }
}
