"""SGLang's server as a process, and requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

from clients import crowd  # noqa: E402
from real_daemon import until  # noqa: E402


class Failed(Exception):
    """A server that does not serve; the text is the end of its log."""


class Served:
    """A server that loads `model` through hoistd at `daemon`, or with SGLang's
    own loader. options: flags of sglang.launch_server."""

    def __init__(self, log: pathlib.Path, model: pathlib.Path,
                 daemon: str | None = None, on_cpu: bool = True,
                 **options: Any) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log, self.began = log, time.monotonic()
        given = {"model_path": str(model), "port": self.port,
                 "load_format": "hoist" if daemon else "auto",
                 "random_seed": 0, "disable_radix_cache": True,
                 **(CPU if on_cpu else {}), **options}
        with open(log, "ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sglang.launch_server", *flags(given)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True, env=variables(daemon, on_cpu))

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def ready(self, patience_s: float = 300) -> Served:
        """Failed: it has ended, or does not serve in time."""
        with contextlib.suppress(AssertionError):
            until(lambda: self._healthy() or self.process.poll() is not None,
                  patience_s)
        if not self._healthy():
            raise Failed(self.text()[-3000:])
        self.start_s = time.monotonic() - self.began
        return self

    def _healthy(self) -> bool:
        try:
            return self._asked("GET", "/health", None)[0] == 200
        except OSError:
            return False

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def ask(self, path: str, **body: Any) -> Any:
        """The answer's JSON. OSError, ValueError: there is none."""
        status, said = self._asked("POST", path, body)
        if status != 200:
            raise ValueError(f"{status}: {said[:500]!r}")
        return json.loads(said)

    def _asked(self, how: str, path: str, body: Any) -> tuple[int, bytes]:
        line = http.client.HTTPConnection("127.0.0.1", self.port, 60)
        with contextlib.closing(line):
            line.request(how, path, body and json.dumps(body),
                         {"Content-Type": "application/json"})
            answer = line.getresponse()
            return answer.status, answer.read()

    def generate(self, asked: list[list[int]], tokens: int
                 ) -> list[list[int]]:
        """The tokens that follow each prompt, as one batch of requests."""
        said = self.ask("/generate", input_ids=asked, sampling_params={
            "temperature": 0, "max_new_tokens": tokens, "ignore_eos": True})
        return [one["output_ids"] for one in said]

    def crowd(self, clients: int, tokens: int, seconds: float
              ) -> dict[str, Any]:
        return crowd(lambda prompt: self.generate([prompt], tokens)[0], clients,
                     tokens, seconds)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


CPU = {"device": "cpu", "attention_backend": "torch_native",
       "skip_tokenizer_init": True, "max_total_tokens": 4096,
       "mem_fraction_static": 0.3}


def variables(daemon: str | None, on_cpu: bool) -> dict[str, str]:
    path = [*([str(HERE / "on_cpu")] if on_cpu else []),
            *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "HF_HUB_OFFLINE": "1",
            "HOIST_SOCKET": daemon or "/nonexistent",
            "PYTHONPATH": os.pathsep.join(path)}


def flags(options: dict[str, Any]) -> list[str]:
    found = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            found.append(flag)
        elif value is not False:
            found += [flag, value if isinstance(value, str)
                      else json.dumps(value)]
    return found
