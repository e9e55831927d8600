"""A training loop: scored rollouts from `rollout serve`, a step, and the next rollouts from the new weights."""

import json
import os
import urllib.request

SERVICE = os.environ.get("ROLLOUT_URL", "http://127.0.0.1:8321")


class Trainer:
    """Replace this by your trainer: it learns from a batch, and the server loads the weights under a new name."""

    def __init__(self, model):
        self.model, self.steps = model, 0

    def step(self, batch):
        self.steps += 1
        name = f"step-{self.steps}"
        with open(f"{name}.jsonl", "w") as notes:
            notes.writelines(json.dumps(sample) + "\n" for sample in batch)
        self.model = name


def ask(path, **asked):
    """Sends a request, and yields the lines of the answer as they arrive."""
    body = json.dumps(asked).encode() if asked else None
    request = urllib.request.Request(SERVICE + path, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as lines:
        for line in map(json.loads, lines):
            if line.get("type") == "error":
                raise RuntimeError(line["error"]["message"])
            yield line


def train(trainer, steps):
    # {"example_ids": [0, 1, 2]} of an interaction, {"task_ids": ["hello-world"]} of container tasks.
    [ids] = ask("/v1/examples")
    for _ in range(steps):
        batch, rewards, line = [], [], {}
        for line in ask("/v1/rollouts", model=trainer.model, rollouts_per_example=4, **ids, **{"return": "samples"}):
            if line["type"] == "group":
                # A rollout that failed has a reward of 0, which says nothing about the model.
                rewards += [reward for reward, error in zip(line["rewards"], line["errors"]) if error is None]
                # If all rewards of a group are equal, there is nothing to learn.
                batch += [sample for sample in line["samples"] if sample["advantage"]]
        if line.get("type") != "summary":
            raise RuntimeError("the answer is incomplete: its summary is missing")
        sampled = sum(sum(sample["loss_mask"]) for sample in batch)
        mean = sum(rewards) / len(rewards) if rewards else float("nan")
        print(f"{trainer.model}: mean reward {mean:.2f}, {len(batch)} samples with {sampled} sampled tokens")
        trainer.step(batch)


if __name__ == "__main__":
    [info] = ask("/v1/info")
    train(Trainer(info["model"]), steps=2)
