"""`byoc serve` in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from typing import Any


class Server:
    """Server on free ports of the loopback interface, from its start to SIGTERM."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "byoc", "serve", *arguments, "--http=0", "--grpc=0", "--log-format=json"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log: list[dict[str, Any]] = []
        self.address = ""
        self.rest: list[str] = []
        for line in self.process.stderr:
            if not line.startswith("{"):
                self.rest.append(line)
                continue
            self.log.append(json.loads(line))
            self.address = self.log[-1].get("http", self.address)
            if self.log[-1]["message"] == "started":
                break
        assert self.address, "".join(self.rest)
        self.reader = threading.Thread(target=lambda: self.rest.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def request(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Returns the status and the JSON of a response."""
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", data, timeout=60) as response:
                text = response.read()
                return response.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or "null")

    def stop(self) -> int:
        """Stops the server with SIGTERM, and returns its exit code."""
        self.process.terminate()
        code = self.process.wait(timeout=60)
        self.reader.join()
        return code

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.process.kill()
        self.process.wait()
