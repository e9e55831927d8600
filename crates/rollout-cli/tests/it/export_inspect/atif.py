"""Checks every trajectory below a directory against the schema and the rules that a schema cannot say."""

import json
import pathlib
import sys

import jsonschema

given = json.load(sys.stdin)
validator = jsonschema.Draft202012Validator(given["schema"])
root = pathlib.Path(given["directory"])
trajectories = {}
for path in sorted(root.rglob("*.json")):
    trajectory = json.loads(path.read_bytes())
    validator.validate(trajectory)
    steps = trajectory["steps"]
    assert [step["step_id"] for step in steps] == list(range(1, len(steps) + 1))
    assert trajectory["final_metrics"]["total_steps"] == len(steps)
    for step in steps:
        calls = {call["tool_call_id"] for call in step.get("tool_calls", [])}
        results = step.get("observation", {}).get("results", [])
        assert all(result.get("source_call_id") in {None, *calls} for result in results), step
        for said in [step["message"], *(result["content"] for result in results)]:
            for part in said if isinstance(said, list) else []:
                image = part.get("source", {}).get("path")
                assert image is None or "://" in image or (path.parent / image).is_file(), image
    trajectories[str(path.relative_to(root))] = trajectory
print(json.dumps(trajectories))
