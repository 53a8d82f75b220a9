"""`vllm serve`, and its clients over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from engines import Failed, Place

from clients import crowd, prompts  # In support, which engines finds.

CLIENTS = 32


class Served:
    def __init__(self, place: Place, name: str, daemon: str | None = None,
                 cache: str = "vllm", **extra: Any) -> None:
        self.name, self.model = name, str(place.model)
        self.patience_s = place.patience_s
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = self.command(place.options(
            load_format="hoist" if daemon else "auto", dtype="bfloat16",
            **extra))
        self.log = place.logs / f"{command[0]}-{self.port}.log"
        self.began = time.monotonic()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.cli.main", *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
                env={**place.variables(cache, daemon),
                     "VLLM_ENABLE_V1_MULTIPROCESSING": "1"})

    def command(self, options: dict[str, Any]) -> list[str]:
        return ["serve", options.pop("model"), *flags(
            {**options, "host": "127.0.0.1", "port": self.port})]

    def ready(self) -> Served:
        end = time.monotonic() + self.patience_s
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError):
                line = http.client.HTTPConnection("127.0.0.1", self.port, 2)
                line.request("GET", "/health")
                if line.getresponse().status == 200:
                    self.start_s = time.monotonic() - self.began
                    return self
            time.sleep(0.2)
        raise Failed(f"{self.name} does not serve:\n"
                     + self.log.read_text(errors="replace")[-1500:])

    def complete(self, prompt: list[int], tokens: int) -> list[int]:
        """The tokens; OSError, ValueError: it did not answer with them."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, 60)
        with contextlib.closing(line):
            line.request("POST", "/v1/completions", json.dumps({
                "model": self.model, "prompt": prompt, "max_tokens": tokens,
                "temperature": 0, "ignore_eos": True,
                "return_token_ids": True}),
                {"Content-Type": "application/json"})
            answer = line.getresponse()
            said = answer.read()
        if answer.status != 200:
            raise ValueError(f"{answer.status}: {said[:300]!r}")
        found: list[int] = json.loads(said)["choices"][0]["token_ids"]
        return found

    def alone(self, tokens: int, seconds: float) -> list[list[int]]:
        """One client's answers to one prompt, again and again."""
        (prompt,) = prompts([64])
        end = time.monotonic() + seconds
        found = [self.complete(prompt, tokens)]
        while time.monotonic() < end:
            found.append(self.complete(prompt, tokens))
        return found

    def crowd(self, tokens: int, seconds: float) -> dict[str, Any]:
        return crowd(lambda prompt: self.complete(prompt, tokens), CLIENTS,
                     tokens, seconds)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Preload(Served):
    """vLLM's own cache of weights, for engines of `ipc_cache`."""

    def command(self, options: dict[str, Any]) -> list[str]:
        return ["preload", *flags(
            {**options, "weight_cache_health_host": "127.0.0.1",
             "weight_cache_health_port": self.port})]


def flags(options: dict[str, Any]) -> list[str]:
    """Options of vllm.LLM as vllm serve's."""
    found = []
    for name, value in options.items():
        name = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{name}" if value else f"--no-{name}")
        else:
            found += [f"--{name}", value if isinstance(value, str)
                      else json.dumps(value)]
    return found
