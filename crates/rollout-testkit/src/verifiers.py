"""Answers lines of JSON with what the verifiers library does: one request a line, one answer a line."""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.update(HF_HOME=tempfile.gettempdir(), HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")

import verifiers as vf
from datasets import Dataset
from verifiers.clients import Client
from verifiers.rubrics.math_rubric import verify_response
from verifiers.types import (
    Response,
    ResponseMessage,
    ResponseTokens,
    RolloutTiming,
    State,
    Tool,
    ToolCall,
    Usage,
)
from verifiers.utils.message_utils import normalize_messages
from verifiers.utils.metric_utils import PassAtKMetric
from verifiers.utils.response_utils import parse_response_tokens
from verifiers.utils.save_utils import load_outputs


def response(number, content, calls=None, tokens=None):
    message = ResponseMessage(
        content=content,
        reasoning_content="hm" if calls else None,
        tool_calls=calls,
        finish_reason="tool_calls" if calls else "stop",
        is_truncated=False,
        tokens=tokens,
    )
    usage = Usage(prompt_tokens=10 * number, reasoning_tokens=0, completion_tokens=4, total_tokens=10 * number + 4)
    return Response(id=f"r{number}", created=1, model="m", usage=usage, message=message)


def token_lists(prompt, completion, experts=False):
    return ResponseTokens(
        prompt_ids=list(range(prompt)),
        prompt_mask=[0] * prompt,
        completion_ids=list(range(100, 100 + completion)),
        completion_mask=[1] * completion,
        completion_logprobs=[-0.5 * place for place in range(completion)],
        routed_experts=[[[place]] for place in range(prompt + completion)] if experts else None,
    )


class Scripted(Client):
    """Calls a tool twice, then answers. The second example fails in its first turn."""

    def __init__(self, fails=()):
        self.calls = 0
        self.fails = fails

    def setup_client(self, config):
        return None

    async def to_native_tool(self, tool):
        return tool

    async def to_native_prompt(self, messages):
        return messages, {}

    async def get_native_response(self, *args, **kwargs):
        return None

    async def raise_from_native_response(self, given):
        return None

    async def from_native_response(self, given):
        return given

    async def close(self):
        return None

    async def get_response(self, prompt, model, sampling_args, tools=None, **kwargs):
        self.calls += 1
        if any(text in str(prompt[-1].content) for text in self.fails):
            raise vf.ModelError("the server is ill") from ValueError("é\n")
        if prompt[-1].role == "user" and tools:
            good = ToolCall(id="c1", name="add", arguments='{"a": 1, "b": 2}')
            bad = ToolCall(id="c2", name="add", arguments="{oops é")
            return response(1, None, [good, bad], token_lists(3, 2))
        return response(2, "It is 3", None, token_lists(4, 1))


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def right(completion, answer, **kwargs) -> float:
    last = completion[-1] if completion else None
    return 1.0 if last is not None and answer in (last.content or "") else 0.0


def environment(request):
    rows = [{"question": question, "answer": answer} for question, answer in request["examples"]]
    tools = [add] if request.get("tools") else []
    env = vf.ToolEnv(dataset=Dataset.from_list(rows), tools=tools, rubric=vf.Rubric(funcs=[right]), max_turns=4)
    env.env_id = request["env_id"]
    return env


async def generate(request):
    env = environment(request)
    client = Scripted(request.get("fails", ()))
    inputs = env.get_dataset().repeat(request["rollouts"]).to_list()
    results = await env.generate(
        inputs[: request.get("only", len(inputs))],
        client,
        request["model"],
        results_path=Path(request["dir"]),
        save_results=True,
        state_columns=request.get("columns", []),
        on_progress=lambda *args: None,
        on_start=lambda *args: None,
    )
    metadata = {key: value for key, value in results["metadata"].items() if key not in ("path_to_save", "date", "tools")}
    return {"calls": client.calls, "rows": len(results["outputs"]), "metadata": metadata}


def checked(request):
    """Reads saved rows into the types of the library, and returns them."""
    outputs = load_outputs(Path(request["dir"]))
    for output in outputs:
        for key in ("prompt", "completion"):
            for message in output[key] or []:
                calls = message.get("tool_calls") or []
                assert all(isinstance(call, str) for call in calls), "calls of saved messages are texts"
                plain = {**message, "tool_calls": [json.loads(call) for call in calls]} if calls else message
                normalize_messages([plain])
        timing = RolloutTiming.model_validate(output["timing"])
        assert abs(timing.total - output["timing"]["total"]) < 1e-5, "spans add up"
        assert abs(timing.overhead - output["timing"]["overhead"]) < 1e-5, "overhead is what is left"
        for tool in output["tool_defs"] or []:
            Tool.model_validate(tool)
        for step in output.get("trajectory") or []:
            normalize_messages(step["prompt"])
            normalize_messages(step["completion"])
            given = Response.model_validate(step["response"])
            if given.message.tokens is not None:
                again = asyncio.run(parse_response_tokens(given))
                same = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "completion_logprobs")
                assert all(again[key] == step["tokens"][key] for key in same), "masks are of the response too"
    return [dict(output) for output in outputs]


async def advantages(rewards):
    async def given(state) -> float:
        return state["given"]

    states = []
    for number, reward in enumerate(rewards):
        state = State(input={"prompt": [], "example_id": 0, "answer": ""})
        state.update(
            given=reward, completion=[], trajectory=[{"reward": None, "advantage": None}], timing=RolloutTiming(),
            metrics=None, reward=None, advantage=None, tool_defs=[], error=None, trajectory_id=str(number),
        )
        states.append(state)
    await vf.Rubric(funcs=[given]).score_group(states)
    return [[state["reward"], state["advantage"], state["trajectory"][0]["advantage"]] for state in states]


async def answer(request):
    match request["do"]:
        case "tokens":
            tokens = token_lists(request["prompt"], request["completion"], request["experts"])
            given = response(1, "x", None, tokens)
            return dict(await parse_response_tokens(given, request["limit"]))
        case "advantages":
            return await advantages(request["rewards"])
        case "pass":
            metric = PassAtKMetric(request["rollouts"], threshold=request["threshold"])
            for example, reward in request["rows"]:
                metric.add_output({"example_id": example, "reward": reward})
            return metric.compute()
        case "math":
            return verify_response(request["response"], request["answer"], 50_000, 60)[0]
        case "generate":
            return await generate(request)
    raise ValueError(request["do"])


for line in sys.stdin:
    request = json.loads(line)
    given = checked(request) if request["do"] == "load" else asyncio.run(answer(request))
    print(json.dumps(given), flush=True)
