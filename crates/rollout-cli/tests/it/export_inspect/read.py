"""Reads the logs in a directory with Inspect itself, and prints what it finds as JSON."""

import json
import math
import sys

from inspect_ai.analysis import evals_df, messages_df, samples_df
from inspect_ai.log import list_eval_logs, read_eval_log, read_eval_log_sample_summaries, read_eval_log_samples
from inspect_ai.scorer import SampleScore, mean, stderr


def message(message):
    shown = {"role": message.role, "text": message.text}
    if isinstance(message.content, list):
        shown["parts"] = [part.type for part in message.content]
    if message.role == "assistant" and message.tool_calls:
        shown["calls"] = [[call.function, call.arguments, call.parse_error] for call in message.tool_calls]
    if message.role == "tool":
        shown["answers"] = [message.tool_call_id, message.function]
    return shown


def event(event):
    shown = {"event": event.event}
    if event.event == "model":
        shown["input"] = len(event.input)
        shown["completion"] = event.output.completion
        shown["tools"] = [tool.name for tool in event.tools]
        if event.output.usage:
            shown["usage"] = event.output.usage.model_dump(exclude_none=True)
    if event.event == "tool":
        shown |= {"function": event.function, "arguments": event.arguments, "result": str(event.result)}
    if event.event == "error":
        shown["message"] = event.error.message
    if event.event == "score":
        shown["score"] = [event.scorer, event.score.value]
    return shown


def sample(sample):
    ids = [message.id for message in sample.messages]
    assert len(set(ids)) == len(ids), ids
    times = [event.timestamp for event in sample.events]
    assert times == sorted(times), times
    return {
        "id": sample.id,
        "epoch": sample.epoch,
        "input": sample.input if isinstance(sample.input, str) else [message.role for message in sample.input],
        "target": sample.target,
        "messages": [message(one) for one in sample.messages],
        "completion": sample.output.completion,
        "scores": {name: score.value for name, score in (sample.scores or {}).items()},
        "answers": {name: score.answer for name, score in (sample.scores or {}).items()},
        "error": sample.error.message if sample.error else None,
        "usage": {model: usage.model_dump(exclude_none=True) for model, usage in sample.model_usage.items()},
        "events": [event(one) for one in sample.events],
        "metadata": sample.metadata,
        "total_time": sample.total_time,
    }


def recomputed(name, samples):
    """What Inspect makes of the scores itself, with attempts at one task taken together."""
    scored = [one for one in samples if name in (one.scores or {})]
    scores = [SampleScore(score=one.scores[name], sample_metadata={"task": one.id}) for one in scored]
    return {"mean": mean()(scores), "stderr": stderr(cluster="task")(scores)}


def log(info):
    whole = read_eval_log(info.name)
    header = read_eval_log(info.name, header_only=True)
    assert header.results == whole.results
    assert (info.task, info.task_id) == (header.eval.task.replace("_", "-"), header.eval.task_id)
    streamed = list(read_eval_log_samples(info.name, all_samples_required=header.status == "success"))
    summaries = read_eval_log_sample_summaries(info.name)
    assert [(one.id, one.epoch) for one in summaries] == [(one.id, one.epoch) for one in streamed]
    assert [one.summary().scores for one in streamed] == [one.scores for one in summaries]
    assert len({one.uuid for one in streamed}) == len(streamed)
    for score in header.results.scores:
        for name, value in recomputed(score.name, streamed).items():
            if name in score.metrics:
                assert math.isclose(score.metrics[name].value, value, abs_tol=1e-12), (score, value)
            else:
                # Of a single task there is no standard error; Inspect's own function says 0.
                tasks = {one.id for one in streamed if score.name in (one.scores or {})}
                assert (name, len(tasks)) == ("stderr", 1), (score, name)
    return {
        "task": header.eval.task,
        "model": header.eval.model,
        "solver": header.eval.solver,
        "status": header.status,
        "epochs": header.eval.config.epochs,
        "provenance": header.eval.metadata["provenance"],
        "sample_ids": header.eval.dataset.sample_ids,
        "total": header.results.total_samples,
        "completed": header.results.completed_samples,
        "metrics": {
            score.name: {name: metric.value for name, metric in score.metrics.items()}
            for score in header.results.scores
        },
        "scored": {score.name: [score.scored_samples, score.unscored_samples] for score in header.results.scores},
        "usage": {model: usage.model_dump(exclude_none=True) for model, usage in header.stats.model_usage.items()},
        "reductions": {
            reduction.scorer: {one.sample_id: one.value for one in reduction.samples}
            for reduction in whole.reductions
        },
        "samples": [sample(one) for one in sorted(streamed, key=lambda one: (one.id, one.epoch))],
    }


directory = sys.stdin.read()
logs = [log(info) for info in list_eval_logs(directory)]
frames = [evals_df(directory, quiet=True), samples_df(directory, quiet=True), messages_df(directory, quiet=True)]
rows = [len(logs), sum(len(log["samples"]) for log in logs)]
# The table of messages has those that a model saw.
spoken = [one for log in logs for one in log["samples"] if any(event["event"] == "model" for event in one["events"])]
rows.append(sum(len(one["messages"]) for one in spoken))
assert [len(frame) for frame in frames] == rows, ([len(frame) for frame in frames], rows)
print(json.dumps(sorted(logs, key=lambda log: (log["solver"], log["task"]))))
