use proptest::prelude::*;

use super::*;

fn read(name: &str, content: impl AsRef<[u8]>) -> Result<Vec<BenchmarkItem>, DataError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, content).unwrap();
    load_tasks(&path)
}

fn refused(name: &str, content: impl AsRef<[u8]>) -> String {
    let error = read(name, content).unwrap_err();
    let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
    let text = error.to_string() + &source.unwrap_or_default();
    match text.split_once(name) {
        Some((_, rest)) => format!("{name}{rest}"),
        None => text,
    }
}

fn fields(line: &str) -> Value {
    let BenchmarkItem { id, question, answer, kwargs, metadata } = BenchmarkItem::parse(line).unwrap();
    json!([id, question, answer, kwargs, metadata])
}

#[test]
fn of_several_names_of_a_field_the_first_present_one_counts() {
    for (line, expected) in [
        (r#"{"id": "a", "question": "q", "answer": "x"}"#, json!(["a", "q", "x", {}, {}])),
        (r#"{"task_id": "a", "query": "q", "ground_truth": "x"}"#, json!(["a", "q", "x", {}, {}])),
        (r#"{"task_id": "a", "input": "q", "expected": "x"}"#, json!(["a", "q", "x", {}, {}])),
        (r#"{"id": "a", "question": "q"}"#, json!(["a", "q", null, {}, {}])),
        (r#"{"id": "a", "question": "q", "answer": ""}"#, json!(["a", "q", "", {}, {}])),
        (
            r#"{"answer": null, "expected": "x", "task_id": "b", "id": "a", "input": "p", "question": "q"}"#,
            json!(["a", "q", null, {}, {"expected": "x", "task_id": "b", "input": "p"}]),
        ),
    ] {
        assert_eq!(fields(line), expected, "{line}");
    }
}

#[test]
fn other_values_become_text() {
    for (written, id, answer) in [
        ("7", "7", json!("7")),
        ("1.50", "1.50", json!("1.50")),
        ("1e3", "1e3", json!("1e3")),
        (
            "123456789012345678901234567890",
            "123456789012345678901234567890",
            json!("123456789012345678901234567890"),
        ),
        ("true", "true", json!("true")),
        (r#"["a", 1]"#, r#"["a",1]"#, json!(r#"["a",1]"#)),
        (r#"{"b": "巴黎"}"#, r#"{"b":"巴黎"}"#, json!(r#"{"b":"巴黎"}"#)),
        ("null", "None", Value::Null),
    ] {
        let line = format!(r#"{{"id": {written}, "question": "q", "answer": {written}}}"#);
        assert_eq!(fields(&line), json!([id, "q", answer, {}, {}]), "{written}");
    }
}

#[test]
fn kwargs_are_an_object_or_nothing_and_metadata_nests() {
    let line =
        r#"{"id": "a", "question": "q", "kwargs": {"seed_path": "/d"}, "metadata": {"x": 1}, "level": 2}"#;
    let expected = json!(["a", "q", null, {"seed_path": "/d"}, {"metadata": {"x": 1}, "level": 2}]);
    assert_eq!(fields(line), expected);
    assert_eq!(fields(r#"{"id": "a", "question": "q", "kwargs": [1]}"#), json!(["a", "q", null, {}, {}]));
}

#[test]
fn lines_are_read_with_any_text_and_any_line_ending() {
    let lines = "\u{feff}{\"id\": \"一\", \"question\": \"法国的首都是哪里？\", \"answer\": \"巴黎\"}\r\n\r\n  \n{\"id\": \"e\", \"question\": \"\\ud83d\\ude00 \u{2028} é\"}";
    let items = read("q.jsonl", lines).unwrap();
    let found: Vec<_> = items.iter().map(|item| (item.id.as_str(), item.question.as_str())).collect();
    assert_eq!(found, [("一", "法国的首都是哪里？"), ("e", "😀 \u{2028} é")]);
}

#[test]
fn a_list_is_read_with_or_without_an_object_around_it() {
    let list = r#"[{"id": 1, "question": "a"}, {"id": 2, "question": "b"}]"#;
    let object = format!("\u{feff}{{\"name\": {{\"data\": []}}, \"data\": {list}, \"more\": [1]}}");
    let lines = "{\"id\": 1, \"question\": \"a\"}\n{\"id\": 2, \"question\": \"b\"}";
    let expected = read("q.jsonl", lines).unwrap();
    assert_eq!(read("q.json", list).unwrap(), expected);
    assert_eq!(read("q.JSON", object).unwrap(), expected);
}

#[test]
fn every_invalid_line_is_reported_with_its_number() {
    let mut lines = b"{\"id\": 1, \"question\": \"a\"}\nnot\n[1]\n\n{\"question\": \"a\"}\n".to_vec();
    lines.extend(b"{\"id\": 2}\n{\"id\": \"1\", \"question\": \"b\"}\n{\"id\": \"\", \"question\": \"b\"}\n");
    lines.extend(b"{\"id\": 3, \"question\": \"\xff\"}\n{\"id\": 4, \"question\": \" \"}\n{\"id\": 5, \"question\": null}\n");
    lines.extend(b"{\"id\": 6, \"question\": \"a\", \"x\": 1e999}\n{\"id\": 7, \"question\": \"a\"} {}\n");
    insta::assert_snapshot!(refused("q.jsonl", lines), @r#"
    q.jsonl has 11 invalid questions:
      line 2: not JSON: expected ident at column 2
      line 3: a question must be a JSON object
      line 5: missing `id`
      line 6: missing `question`
      line 7: the id "1" is already used in line 1
      line 8: the `id` is empty
      line 9: not UTF-8 from byte 24
      line 10: the question is empty
      line 11: missing `question`
      line 12: `x` is not JSON: number out of range at column 5
      line 13: not JSON: trailing characters at column 28
    "#);
}

#[test]
fn only_the_first_twenty_problems_are_listed() {
    let text = refused("q.jsonl", "x\n".repeat(1000));
    assert_eq!(text.lines().count(), 22);
    assert!(text.starts_with("q.jsonl has 1000 invalid questions:\n  line 1: "));
    assert!(text.ends_with("\n  and 980 more"));
}

#[test]
fn a_file_without_questions_is_rejected() {
    let errors = [
        refused("q.jsonl", "\n"),
        refused("q.json", "[]"),
        refused("q.json", "{\"rows\": []}"),
        refused("q.json", "{\"data\": {\"data\": []}}"),
        refused("q.json", "\n[{\"id\": 1,]"),
        refused("q.json", "3"),
        refused("q.json", "[{\"id\": 1}, 2]"),
        refused("q.csv", "id,question"),
    ];
    insta::assert_snapshot!(errors.join("\n"), @"
    q.jsonl has no questions
    q.json has no questions
    q.json does not contain a list of questions: missing list under `data` at line 1 column 12
    q.json does not contain a list of questions: missing list under `data` at line 1 column 21
    q.json does not contain a list of questions: key must be a string at line 2 column 11
    q.json does not contain a list of questions: invalid type: integer `3`, expected a list, or an object with a list under `data` at line 1 column 1
    q.json has 2 invalid questions:
      entry 1: missing `question`
      entry 2: a question must be a JSON object
    q.csv: its name must end in .jsonl or .json
    ");
}

#[test]
fn ids_select_before_the_number() {
    let ids = |items: Vec<BenchmarkItem>| items.into_iter().map(|item| item.id).collect::<Vec<_>>();
    let items = || {
        let values = ["task_001", "task_002", "task_003"].map(|id| json!({"id": id, "question": "q"}));
        read("q.json", json!(values).to_string()).unwrap()
    };
    let wanted = ["task_003".to_owned(), "task_001".to_owned()];
    assert_eq!(ids(select(items(), Some(&wanted), None).unwrap()), ["task_001", "task_003"]);
    assert_eq!(ids(select(items(), Some(&wanted), Some(1)).unwrap()), ["task_001"]);
    assert_eq!(ids(select(items(), None, Some(2)).unwrap()), ["task_001", "task_002"]);
    let unknown = ["task_001", "task_02", "other"].map(str::to_owned);
    let error = select(items(), Some(&unknown), None).unwrap_err();
    insta::assert_snapshot!(error, @r#"unknown question id: "task_02" (did you mean "task_002"?), "other""#);
}

#[test]
fn an_id_that_is_not_a_valid_name_still_names_its_task() {
    let name =
        |id: &str| BenchmarkItem { id: id.to_owned(), ..BenchmarkItem::default() }.task_name().to_string();
    assert_eq!(name("题目 1"), "题目 1");
    assert_eq!(name("dev/12"), "dev_12~6ea348c6b9ff");
    assert_ne!(name("a/b"), name("a\\b"));
    assert!(name(&"长".repeat(300)).starts_with("长长长"));
}

proptest! {
    #[test]
    fn any_line_is_a_question_or_a_problem(line in r#"(\{|\}|"id"|"question"|:|,|"x"|null|1|[ -~]){0,12}"#) {
        let _ = BenchmarkItem::parse(&line);
    }

    #[test]
    fn any_text_is_read_unchanged(id in r"\PC{1,9}[a-z]", question in r"[\PC\n\t]{0,20}[a-z]", answer in r"\PC{0,9}") {
        let row = json!({"id": id, "question": question, "answer": answer, "more": answer});
        let item = read("q.jsonl", row.to_string()).unwrap().remove(0);
        prop_assert_eq!((item.id, item.question, item.answer), (id, question, Some(answer.clone())));
        prop_assert_eq!(&item.metadata["more"], &json!(answer));
    }
}
