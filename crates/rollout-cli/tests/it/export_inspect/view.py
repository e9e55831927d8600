"""Starts Inspect's viewer on a directory, and fetches what its page would fetch to show a log."""

import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile

directory = sys.stdin.read()
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
home = tempfile.TemporaryDirectory()
command = [os.path.join(os.path.dirname(sys.executable), "inspect"), "view", "start", "--log-dir", directory]
server = subprocess.Popen(
    [*command, "--host", "127.0.0.1", "--port", str(port)],
    env={**os.environ, "HOME": home.name, "XDG_DATA_HOME": home.name},
    stdout=sys.stderr,
)


def fetch(path):
    return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60).read()


class Remote(io.RawIOBase):
    """The log as the page sees it: any range of its bytes."""

    def __init__(self, log, size):
        self.log, self.size, self.at = log, size, 0

    def seekable(self):
        return True

    def readable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=0):
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def read(self, length=-1):
        end = self.size if length < 0 else min(self.size, self.at + length)
        if end <= self.at:
            return b""
        found = fetch(f"/api/log-bytes/{self.log}?start={self.at}&end={end - 1}")
        self.at += len(found)
        return found


try:
    deadline = time.monotonic() + 100
    while True:
        try:
            listing = json.loads(fetch("/api/logs"))
            break
        except urllib.error.URLError:
            assert server.poll() is None and time.monotonic() < deadline, "the viewer does not answer"
            time.sleep(0.1)
    assert b"<html" in fetch("/").lower()
    shown = []
    for entry in listing["files"]:
        log = urllib.parse.quote(entry["name"], safe="")
        header = json.loads(fetch(f"/api/logs/{log}?header-only=100"))
        size = json.loads(fetch(f"/api/log-info/{log}"))["size"]
        members = zipfile.ZipFile(Remote(log, size))
        summaries = json.loads(members.read("summaries.json"))
        first = json.loads(members.read("samples/{id}_epoch_{epoch}.json".format(**summaries[0])))
        assert json.loads(members.read("header.json"))["eval"] == json.loads(members.read("_journal/start.json"))["eval"]
        shown.append([entry["task"], header["eval"]["solver"], header["status"], len(summaries), first["id"]])
    print(json.dumps(sorted(shown)))
finally:
    server.terminate()
    server.wait()
