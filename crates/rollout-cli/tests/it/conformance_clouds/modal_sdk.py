"""Drives a fake of Modal with Modal's own client, and prints what it saw as JSON."""

import json
import os
import pathlib
import sys
import tempfile

os.environ.update(json.load(sys.stdin)["variables"])
os.environ["MODAL_CONFIG_PATH"] = "/dev/null"

import modal  # noqa: E402
import modal.exception  # noqa: E402

seen = {}
app = modal.App.lookup("client", create_if_missing=True)

with tempfile.TemporaryDirectory() as directory:
    context = pathlib.Path(directory)
    (context / "note").write_text("from the context\n")
    (context / "Dockerfile").write_text("FROM test\nWORKDIR /app\nCOPY note /app/note\n")
    image = modal.Image.from_dockerfile(context / "Dockerfile", context_dir=context)
    sandbox = modal.Sandbox.create(
        "sleep",
        "600",
        app=app,
        image=image,
        name="named",
        timeout=600,
        cpu=(0.5, 0.5),
        memory=(256, 256),
        block_network=True,
        tags={"kind": "test"},
    )

data = bytes(range(256)) * 4000
process = sandbox.exec("bash", "-c", "cat; echo $WORD >&2; exit 3", env={"WORD": "word"}, text=False)
process.stdin.write(data)
process.stdin.write_eof()
process.stdin.drain()
seen["echo"] = process.stdout.read() == data
seen["error"] = process.stderr.read().decode().strip()
seen["code"] = process.wait()
seen["signal"] = sandbox.exec("bash", "-c", "kill -9 $$").wait()
seen["copied"] = sandbox.exec("cat", "note").stdout.read()

others = [modal.Sandbox.create("sleep", "600", app=app, image=image, tags={"kind": "other"}) for _ in range(7)]
every = [listed.object_id for listed in modal.Sandbox.list(app_id=app.app_id)]
tagged = [listed.object_id for listed in modal.Sandbox.list(app_id=app.app_id, tags={"kind": "test"})]
seen["listed"] = len(every) == len(set(every)) == 8 and tagged == [sandbox.object_id]
sandbox.set_tags({"kind": "test", "more": "tags"})
seen["tags"] = sandbox.get_tags()
seen["running"] = sandbox.poll()
reopened = modal.Sandbox.from_id(sandbox.object_id)
seen["reopened"] = reopened.exec("echo", "again").stdout.read()

for other in [sandbox, *others]:
    other.terminate()
sandbox.wait(raise_on_termination=False)
seen["terminated"] = sandbox.poll()
seen["left"] = len(list(modal.Sandbox.list(app_id=app.app_id)))

short = modal.Sandbox.create("bash", "-c", "exit 7", app=app, image=image)
short.wait(raise_on_termination=False)
seen["exited"] = short.returncode
try:
    modal.Sandbox.from_id("sb-does-not-exist").exec("true")
except modal.exception.Error as error:
    seen["missing"] = type(error).__name__
try:
    broken = modal.Image.from_registry("test").dockerfile_commands("RUN exit 1")
    modal.Sandbox.create("true", app=app, image=broken)
except modal.exception.Error as error:
    seen["build"] = type(error).__name__

print(json.dumps(seen))
