"""Uses the official client of Daytona, and prints what it saw as JSON."""

import json
import os
import sys
import tempfile

given = json.load(sys.stdin)
os.environ.update(given["variables"])
# The client also reads files of the working directory.
work = tempfile.mkdtemp()
os.chdir(work)

from daytona import (  # noqa: E402
    CreateSandboxFromSnapshotParams,
    CreateSnapshotParams,
    Daytona,
    DaytonaError,
    Image,
    ListSandboxesQuery,
    Resources,
    SessionExecuteRequest,
)
from daytona._sync import object_storage  # noqa: E402
from obstore.store import S3Store  # noqa: E402


def plain_store(**settings):
    """The storage on loopback has no TLS, which the client expects."""
    settings["client_options"] = {**settings["client_options"], "allow_http": True}
    return S3Store(**settings)


object_storage.S3Store = plain_store

seen = {}
with open("file.txt", "w") as file:
    file.write("from the context\n")
with open("large.bin", "wb") as file:
    file.write(b"x" * (11 << 20))
client = Daytona()
image = (
    Image.base("base")
    .add_local_file("file.txt", "/data/file.txt")
    .add_local_file("large.bin", "/data/large.bin")
    .run_commands("wc -c < /data/large.bin > /data/size")
)
logs = []
snapshot = client.snapshot.create(
    CreateSnapshotParams(name="of-the-client", image=image, resources=Resources(cpu=1, memory=1, disk=3)),
    on_logs=logs.append,
)
seen["snapshot"] = [snapshot.name, snapshot.state.value]
seen["logs"] = any("wc -c" in line for line in logs)
try:
    client.snapshot.create(CreateSnapshotParams(name="broken", image=Image.base("base").run_commands("exit 7")))
except DaytonaError as error:
    seen["broken"] = "Failed to create snapshot" in str(error)

sandbox = client.create(
    CreateSandboxFromSnapshotParams(
        snapshot="of-the-client", labels={"kind": "test"}, ttl_minutes=30, auto_delete_interval=0
    )
)
seen["state"] = sandbox.state.value
seen["size"] = [sandbox.cpu, sandbox.memory, sandbox.disk]
seen["lifetime"] = sandbox.auto_destroy_at is not None
found = sandbox.process.exec("cat /data/file.txt /data/size; echo $WORD", env={"WORD": "word"})
seen["exec"] = [found.exit_code, found.result]
seen["code"] = sandbox.process.exec("exit 3").exit_code

sandbox.process.create_session("session")
ran = sandbox.process.execute_session_command("session", SessionExecuteRequest(command="echo out; echo err >&2"))
seen["session"] = [ran.exit_code, ran.stdout, ran.stderr]
started = sandbox.process.execute_session_command(
    "session", SessionExecuteRequest(command="sleep 1000", run_async=True)
)
running = sandbox.process.get_session_command("session", started.cmd_id)
seen["running"] = [running.command, running.exit_code]
seen["commands"] = len(sandbox.process.get_session("session").commands)

preview = sandbox.get_preview_link(4000)
seen["preview"] = "4000-" + sandbox.id in preview.url and len(preview.token) > 0
sandbox.set_labels({"kind": "test", "more": "labels"})
listed = list(client.list(ListSandboxesQuery(labels={"more": "labels"}, limit=1)))
seen["listed"] = [found.id == sandbox.id for found in listed]
seen["by name"] = client.get(sandbox.name).id == sandbox.id

try:
    client.create(CreateSandboxFromSnapshotParams(snapshot="unknown"))
except DaytonaError as error:
    seen["unknown"] = error.status_code
client.delete(sandbox, wait=True)
seen["left"] = len(list(client.list()))
client.snapshot.delete(snapshot)
seen["snapshots"] = [found.name for found in client.snapshot.list().items]
print(json.dumps(seen))
sys.stdout.flush()
# Threads of the client that wait for events would keep the process.
os._exit(0)
