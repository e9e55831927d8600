"""Validates rows, conversations and samples against their schemas, and sees that what belongs together agrees."""
import json, math, os, sys

import pyarrow.parquet as pq
from jsonschema import Draft202012Validator

given = json.load(sys.stdin)


def validator(name):
    with open(os.path.join(given["schemas"], name + ".schema.json"), encoding="utf-8") as file:
        schema = json.load(file)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def lines(path):
    with open(path, encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file.read().split("\n")[:-1]]


def outputs(at):
    rows, metadata = lines(os.path.join(at, "results.jsonl")), json.load(open(os.path.join(at, "metadata.json")))
    each = validator("outputs")
    for row in rows:
        each.validate(row)
        for message in row["prompt"] + row["completion"]:
            for call in map(json.loads, message.get("tool_calls") or []):
                assert all(isinstance(call[name], str) for name in ["id", "name", "arguments"]), call
        assert all(row.get(name) == value for name, value in row["metrics"].items() if name in row), row
    validator("metadata").validate(metadata)
    assert len({(row["example_id"], row["attempt"]) for row in rows}) == len(rows)
    mean = sum(row["reward"] for row in rows) / len(rows)
    assert math.isclose(metadata["avg_reward"], mean, abs_tol=1e-12), metadata
    errors = sum(row["error"] is not None for row in rows) / len(rows)
    assert math.isclose(metadata["avg_error"], errors, abs_tol=1e-12), metadata
    return len(rows)


def traces(path):
    each, found = validator("trace"), lines(path)
    for trace in found:
        each.validate(trace)
        called = set()
        for message in trace["messages"]:
            called |= {call["id"] for call in message.get("tool_calls", [])}
            assert message["role"] != "tool" or message["tool_call_id"] in called, trace
    return len(found)


def samples(path):
    each, found = validator("sample"), lines(path)
    for sample in found:
        each.validate(sample)
        lists = ["token_ids", "loss_mask", "logprobs", "advantages"]
        assert len({len(sample[name]) for name in lists}) == 1, sample
        assert sample["first_turn"] <= sample["last_turn"]
    return len(found)


reported = {}
for at, _, names in sorted(os.walk(given["out"])):
    for name in sorted(names):
        path = os.path.join(at, name)
        kinds = {
            "results.jsonl": lambda: outputs(at),
            "metadata.json": lambda: 1,
            "traces.jsonl": lambda: traces(path),
            "samples.jsonl": lambda: samples(path),
        }
        if name == "samples.parquet":
            rows = pq.read_table(path).to_pylist()
            # Parquet has no experts as an empty list, and JSON leaves them out.
            rows = [{name: value for name, value in row.items() if not name.startswith("routed_experts") or value} for row in rows]
            assert rows == lines(path.replace(".parquet", ".jsonl")), rows
            count = len(rows)
        elif name.endswith(".summary.json"):
            assert json.load(open(path))["samples"] >= 0
            continue
        else:
            count = kinds[name]()
        reported[os.path.relpath(path, given["out"])] = count
print(json.dumps(reported))
