"""The engine's server for scripts that run where nothing but numpy is installed: started, asked, stopped."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Device = Literal["cpu", "gpu"]

STOCK: Mapping[Device, tuple[str, ...]] = {
    "cpu": ("--gpu-layers", "0", "--no-repack"),
    "gpu": ("--gpu-layers", "all", "--no-repack"),
}
PLACED: Mapping[Device, tuple[str, ...]] = {
    "cpu": ("--gpu-layers", "0", "--no-repack", "--ostinato-branches"),
    "gpu": ("--gpu-layers", "all", "--no-repack", "--ostinato-branches", "--cpu-moe", "--fit", "off", "--no-warmup"),
}
"""Arguments for llama.cpp's own nodes, and for experts divided between two branches, none hot at first on a CPU."""


@dataclass(frozen=True)
class Answer:
    """One HTTP answer, or the way the connection ended (status 0)."""

    status: int
    body: Any
    seconds: float


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("engine", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class EngineServer:
    """One engine process with one model. Use it as a context manager: it is ready then."""

    def __init__(
        self,
        libraries: Path,
        model: Path,
        flags: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        launcher: Sequence[str] = (),
        ready_within_s: float = 120.0,
    ) -> None:
        self._directory = tempfile.TemporaryDirectory()  # its name is short enough for a socket
        self._socket = str(Path(self._directory.name, "e.sock"))
        self._log_path = Path(self._directory.name, "log")
        self._ready_within_s = ready_within_s
        search = ":".join(filter(None, [str(libraries), os.environ.get("LD_LIBRARY_PATH")]))
        with self._log_path.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *launcher,
                    str(libraries / "ostinato-engine"),
                    "--model",
                    str(model),
                    "--host",
                    self._socket,
                    "--no-ui",
                    "--offline",
                    *flags,
                ],
                env={**os.environ, "LD_LIBRARY_PATH": search, **(environment or {})},
                stdout=output,
                stderr=output,
            )

    def __enter__(self) -> EngineServer:
        ends_at = time.monotonic() + self._ready_within_s
        while self.get("/health").status != 200:
            if self.process.poll() is not None or time.monotonic() > ends_at:
                words = self.log[-3000:]
                self.__exit__()
                raise RuntimeError(f"the engine is not ready: {words}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._directory.cleanup()

    @property
    def log(self) -> str:
        """What it has said."""
        return self._log_path.read_text(errors="replace")

    def get(self, path: str) -> Answer:
        """A GET."""
        return self._request("GET", path, None, 10.0)

    def text(self, path: str) -> str:
        """A GET of something that is no JSON."""
        return str(self._request("GET", path, None, 10.0, is_json=False).body)

    def post(self, path: str, body: Any, timeout_s: float = 120.0) -> Answer:
        """A POST of JSON."""
        return self._request("POST", path, json.dumps(body), timeout_s)

    def complete(self, prompt: str, n_predict: int = 16, timeout_s: float = 120.0, *, reuse: bool = True) -> Answer:
        """Greedy tokens behind `prompt`: the text, or the error. All of it is read anew without `reuse`."""
        body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "ignore_eos": True, "cache_prompt": reuse}
        answer = self.post("/completion", body, timeout_s)
        if answer.status == 200:
            return Answer(200, answer.body["content"], answer.seconds)
        return answer

    def _request(self, method: str, path: str, body: str | None, timeout_s: float, *, is_json: bool = True) -> Answer:
        begin = time.monotonic()
        connection = _UnixConnection(self._socket, timeout_s)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read().decode(errors="replace")
            value = json.loads(data or "null") if is_json else data
            return Answer(response.status, value, time.monotonic() - begin)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return Answer(0, repr(error), time.monotonic() - begin)
        finally:
            connection.close()
