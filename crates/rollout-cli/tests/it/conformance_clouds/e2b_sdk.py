"""Uses a server through the client of E2B, and prints what it saw as JSON."""
import json
import os
import sys

os.environ.update(json.load(sys.stdin)["variables"])
os.environ["E2B_HTTP_VERSION"] = "1.1"

from e2b import CommandExitException, Sandbox, SandboxQuery, Template  # noqa: E402

seen = {}

template = (
    Template()
    .from_image("test")
    .set_user("root")
    .set_workdir("/app")
    .set_envs({"GREETING": "hello"})
    .run_cmd("echo $GREETING > /greeting")
)
built = Template.build(template, "sdk-template", cpu_count=1, memory_mb=512)
seen["built"] = bool(built.template_id)
seen["exists"] = Template.exists("sdk-template")

try:
    Template.build(Template().from_image("test").set_user("root").run_cmd("exit 3"), "sdk-broken")
except Exception as error:
    seen["broken"] = type(error).__name__

sandbox = Sandbox.create("sdk-template", timeout=120, metadata={"kind": "a test & more"})
result = sandbox.commands.run("cat /greeting; echo word >&2", user="root")
seen["stdout"], seen["stderr"], seen["code"] = result.stdout, result.stderr, result.exit_code
try:
    sandbox.commands.run("exit 7", user="root")
except CommandExitException as error:
    seen["failed"] = error.exit_code

handle = sandbox.commands.run("head -c 5", user="root", background=True, stdin=True)
sandbox.commands.send_stdin(handle.pid, "bytes")
seen["echo"] = handle.wait().stdout
handle = sandbox.commands.run("sleep 600", user="root", background=True)
seen["processes"] = [process.pid for process in sandbox.commands.list()] == [handle.pid]
seen["killed"] = sandbox.commands.kill(handle.pid)

found = Sandbox.list(SandboxQuery(metadata={"kind": "a test & more"})).next_items()
seen["listed"] = [item.sandbox_id for item in found] == [sandbox.sandbox_id]
seen["others"] = len(Sandbox.list(SandboxQuery(metadata={"kind": "other"})).next_items())
info = sandbox.get_info()
seen["info"] = [info.metadata, info.cpu_count, info.memory_mb]
sandbox.set_timeout(300)
seen["running"] = sandbox.is_running()
seen["again"] = Sandbox.connect(sandbox.sandbox_id).commands.run("echo again", user="root").stdout
seen["deleted"] = [sandbox.kill(), sandbox.kill()]
seen["left"] = len(Sandbox.list().next_items())
print(json.dumps(seen))
