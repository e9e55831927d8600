//! CSV and Parquet, read by the csv module of Python and by pyarrow.

use std::{fs, path::Path};

use rollout::export::table::{Column, Kind, StepRow, TrialRow};
use rollout_testkit::{ModelServer, Python, TestJob};
use serde_json::{Value, json};

use super::{HOSTILE, benchmark, containers, diligent, rollouts};

/// Reads both forms of both tables, checks that they say the same, and that trials say what their result.json does.
const READ: &str = r#"
import csv, json, os, sys
from datetime import datetime
import pyarrow.parquet as pq

given = json.load(sys.stdin)
csv.field_size_limit(1 << 30)

def unguarded(cell):
    rest = cell.lstrip("'")
    number = rest and all(c in "0123456789+-.eE" for c in rest)
    try: number = number and float(rest) is not None
    except ValueError: number = False
    formula = rest[:1] in list("=+-@\t\r\n＝＋－＠") and not number
    return cell[1:] if cell.startswith("'") and formula else cell

def moment(text):
    return datetime.fromisoformat(text)

def same(value, cell):
    if value is None: return cell == ""
    if isinstance(value, bool): return cell == ("true" if value else "false")
    if isinstance(value, int): return cell == str(value)
    if isinstance(value, float): return float(cell) == value
    if isinstance(value, datetime): return moment(cell) == value
    return unguarded(cell) == value.replace("\0", "\ufffd")

reported = {}
for name in ["trials", "steps"]:
    file = pq.ParquetFile(os.path.join(given["out"], name + ".parquet"))
    table = file.read()
    with open(os.path.join(given["out"], name + ".csv"), newline="", encoding="utf-8") as text:
        cells = list(csv.DictReader(text, strict=True))
    rows = table.to_pylist()
    assert len(rows) == len(cells), (len(rows), len(cells))
    for row, line in zip(rows, cells):
        assert list(row) == list(line), line
        for key, value in row.items():
            assert same(value, line[key]), (key, value, line[key])
    reported[name] = {
        "schema": [[field.name, str(field.type), field.nullable] for field in table.schema],
        "version": table.schema.metadata[b"rollout.schema_version"].decode(),
        "codecs": sorted({file.metadata.row_group(g).column(c).compression
                          for g in range(file.num_row_groups) for c in range(file.metadata.num_columns)}),
        "rows": json.loads(json.dumps(rows, default=str)),
    }
    if name == "trials":
        for row in rows:
            path = os.path.join(given["job"], row["trial"], "result.json")
            if not os.path.exists(path): continue
            result = json.load(open(path))
            for key in ["reward", "tries", "attempt"]:
                assert row[key] == result[key], key
            assert row["cost_usd"] == result["cost"]
            for key in ["type", "message"]:
                assert row["error_" + key] == (result["error"] or {}).get(key), key
            for key, value in result["durations"].items():
                assert row[key] == value, key
            for key, value in result["timestamps"].items():
                assert row[key] == (value and moment(value)), key
            for key in ["provider", "image", "network"]:
                assert row[key] == result["environment"][key], key
            assert json.loads(row["enforced_limits"]) == result["environment"]["enforced"]
            usage = result.get("usage") or {}
            for key in ["input_tokens", "output_tokens", "cached_tokens"]:
                assert row[key] == usage.get(key), key
print(json.dumps(reported))
"#;

/// The tables of a job, as Python reads them.
fn tables(job: &TestJob) -> Value {
    for format in ["csv", "parquet"] {
        job.rollout(&["export", format, "jobs/job", "-o", "out"]).expect(0);
    }
    let paths = json!({"out": job.root().join("out"), "job": job.dir()});
    let tables: Value = Python::new().run(READ, &paths.to_string()).parse().unwrap();
    for (name, schema) in [("trials", schema(TrialRow::COLUMNS)), ("steps", schema(StepRow::COLUMNS))] {
        assert_eq!(tables[name]["schema"], schema);
        assert_eq!((&tables[name]["version"], &tables[name]["codecs"]), (&json!("2"), &json!(["ZSTD"])));
    }
    tables
}

/// The schema that the documentation promises.
fn schema<R>(columns: &[Column<R>]) -> Value {
    let field = |column: &Column<R>| {
        let kind = match column.kind {
            Kind::Text | Kind::Json => "string",
            Kind::Integer => "int64",
            Kind::Real => "double",
            Kind::Boolean => "bool",
            Kind::Time => "timestamp[us, tz=UTC]",
        };
        json!([column.name, kind, !column.is_required])
    };
    columns.iter().map(field).collect()
}

/// These columns of each row.
fn columns(rows: &Value, names: &[&str]) -> Vec<Value> {
    let row = |row: &Value| names.iter().map(|name| row[name].clone()).collect();
    rows.as_array().unwrap().iter().map(row).collect()
}

#[test]
fn tables_of_container_tasks_match_the_results() {
    let server = diligent();
    let job = containers(&server);
    job.run().expect(1);
    let tables = tables(&job);
    let names = [
        "trial",
        "standing",
        "reward",
        "solved",
        "error_type",
        "model",
        "n_turns",
        "n_tool_calls",
        "category",
    ];
    assert_eq!(
        columns(&tables["trials"]["rows"], &names),
        [
            json!(["model/set/broken__1", "failed", null, null, "verifier_failed", "scripted", 2, 1, null]),
            json!(["model/set/plain__1", "completed", 1.0, true, null, "scripted", 2, 1, "files"]),
            json!(["oracle/set/broken__1", "failed", null, null, "verifier_failed", null, null, null, null]),
            json!(["oracle/set/plain__1", "completed", 1.0, true, null, null, null, null, "files"]),
        ]
    );
    assert_eq!(
        columns(&tables["trials"]["rows"], &["difficulty", "tags"])[1],
        json!(["easy", "[\"a\",\"b\"]"])
    );
    let steps = columns(
        &tables["steps"]["rows"],
        &["trial", "step", "turn", "kind", "role", "tool_call_id", "tool_name", "tool_arguments"],
    );
    assert_eq!(
        steps[6..],
        [
            json!(["model/set/plain__1", 1, 0, "message", "system", null, null, null]),
            json!(["model/set/plain__1", 2, 0, "message", "user", null, null, null]),
            json!(["model/set/plain__1", 3, 1, "message", "assistant", null, null, null]),
            json!([
                "model/set/plain__1",
                4,
                1,
                "tool_call",
                "assistant",
                "call-1",
                "bash",
                "{\"command\":\"touch /app/done; echo made\"}"
            ]),
            json!(["model/set/plain__1", 5, 1, "message", "tool", "call-1", "bash", null]),
            json!(["model/set/plain__1", 6, 2, "message", "assistant", null, null, null]),
        ]
    );
    let last = &tables["steps"]["rows"][11];
    assert_eq!((&last["content"], &last["finish_reason"]), (&json!(HOSTILE), &json!("stop")));
    assert!(last["model_sec"].is_number() && last["created_at"].is_string(), "{last}");
}

#[test]
fn tables_of_rollouts_and_of_benchmarks_have_the_same_columns() {
    let server = ModelServer::arithmetic();
    let job = rollouts(&server);
    job.run().expect(0);
    let tables_of_rollouts = tables(&job);
    let names = ["trial", "reward", "model", "n_turns", "stop_condition", "provider", "example_id"];
    assert_eq!(
        columns(&tables_of_rollouts["trials"]["rows"], &names)[3],
        json!(["model/sums/1__2", 1.0, "scripted", 1, "max_turns_reached", null, 1])
    );
    assert_eq!(tables_of_rollouts["steps"]["rows"].as_array().unwrap().len(), 8);

    let job = benchmark(&server);
    job.rollout(&["eval", "config.json"]).expect(0);
    let tables_of_benchmark = tables(&job);
    assert_eq!(
        columns(&tables_of_benchmark["trials"]["rows"], &["task", "reward", "rewards", "model"]),
        [json!(["q1", 1.0, "{\"exact_match\":1.0}", "m"]), json!(["q2", 0.0, "{\"exact_match\":0.0}", "m"])]
    );
}

#[test]
fn new_files_are_listed_and_never_overwritten() {
    let server = diligent();
    let job = containers(&server);
    job.run().expect(1);
    insta::assert_snapshot!(job.rollout(&["export", "csv", "jobs/job", "-o", "out"]).expect(0).stdout(), @"
    out/trials.csv
    out/steps.csv
    4 trials
    left out: steps of 2 of 4 trials: script agents record no conversation; their output is in the logs
    ");
    insta::assert_snapshot!(job.rollout(&["export", "csv", "jobs/job", "-o", "out"]).expect(2).stderr(), @"
    error: out/trials.csv already exists, and results are never overwritten
    hint: choose another directory, or remove the file
    ");
    let text = fs::read_to_string(job.root().join("out/steps.csv")).unwrap();
    assert!(
        text.contains(",\"'=HYPERLINK(\"\"http://x\"\",\"\"a\"\"),\r\n'quoted' \"\"twice\"\"\u{fffd}"),
        "{text}"
    );
}

/// The tables of the documentation are made of the columns, and this is what keeps them so.
#[test]
fn the_documentation_has_every_column() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/exports-tables.md");
    let document = fs::read_to_string(path).unwrap();
    for table in [documented(TrialRow::COLUMNS), documented(StepRow::COLUMNS)] {
        assert!(document.contains(&table), "docs/exports-tables.md must contain this table:\n{table}");
    }
}

fn documented<R>(columns: &[Column<R>]) -> String {
    let line = |column: &Column<R>| {
        let null = if column.is_required { "" } else { "or null" };
        format!("| `{}` | {} {null} | {} |\n", column.name, column.kind.as_str(), column.meaning)
            .replace("  |", " |")
    };
    let lines: String = columns.iter().map(line).collect();
    format!("| Column | Type | Meaning |\n| --- | --- | --- |\n{lines}")
}
