#!/usr/bin/env python3
"""Three vLLM engines and two models of PyTorch take turns on one device.

vllm_turns.py MODEL MODEL MODEL [--mib N N] [--seconds S] [--dtype TYPE]
              [--kv-mib N] [--socket PATH]

MODELs are folders of safetensors files, for vLLM. Each engine is a process of
its own; after its burst of requests it suspends its weights, and resumes them
before the next one, at the same addresses. PyTorch's models sleep and wake as
in turns.py, and give way to an engine that resumes. An engine's answers must be
the tokens of its first one. Exit status: 0 if all are right, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import sys
from multiprocessing.connection import Connection
from typing import Any

import surroundings

surroundings.need("torch", "vllm")
surroundings.find_hoist()
surroundings.keep_others_quiet()

import hoist  # noqa: E402
import turns  # noqa: E402

PROMPT = [1, 2, 3, 4, 5, 6, 7]


class Engine:
    """A process with one engine of vLLM's."""

    def __init__(self, model: str, options: argparse.Namespace) -> None:
        self.name = pathlib.Path(model).name
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve,
                                        args=(theirs, model, options))
        self._process.start()
        theirs.close()
        self._state = turns.ASLEEP
        self._wanted: list[int] = []

    def start(self) -> None:
        """Loads the weights, and suspends them."""
        self._wanted = self._answer("start")
        self.sleep()

    def _answer(self, request: str) -> Any:
        """RuntimeError: the engine's error. EOFError: its process has ended;
        the log above says why."""
        self._pipe.send(request)
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def state(self) -> str:
        return self._state

    def answers_right(self) -> bool:
        if self._state == turns.ASLEEP:
            self.wake()
        return bool(self._answer("generate") == self._wanted)

    def sleep(self) -> None:
        self._answer("suspend")
        self._state = turns.ASLEEP

    def wake(self) -> None:
        self._answer("resume")
        self._state = turns.WHOLE

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def serve(pipe: Connection, model: str, options: argparse.Namespace) -> None:
    """An engine's process."""
    os.dup2(2, 1)  # vLLM's log.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # The weights are here.
    from hoist.vllm import resume, suspend
    from vllm import LLM, SamplingParams
    llm: Any = None

    def generate() -> list[int]:
        made = llm.generate(
            [{"prompt_token_ids": PROMPT}],
            SamplingParams(temperature=0, max_tokens=8, detokenize=False,
                           ignore_eos=True), use_tqdm=False)
        return list(made[0].outputs[0].token_ids)

    with contextlib.suppress(EOFError):
        while True:
            request = pipe.recv()
            try:
                if request == "start":
                    llm = LLM(
                        model=model, load_format="hoist", enforce_eager=True,
                        skip_tokenizer_init=True, dtype=options.dtype,
                        max_model_len=256,
                        kv_cache_memory_bytes=options.kv_mib * turns.MIB,
                        model_loader_extra_config={
                            "socket": options.socket} if options.socket
                        else {})
                pipe.send({"start": generate, "generate": generate,
                           "suspend": suspend, "resume": resume}[request]())
            except Exception as error:
                pipe.send(RuntimeError(
                    f"{request}: {type(error).__name__}: {error}"))


def run(options: argparse.Namespace) -> int:
    session = hoist.connect(options.socket, name="vllm_turns.py")
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(contextlib.closing(
            Engine(model, options))) for model in options.model]
        for engine in engines:
            engine.start()
        layers = [turns.Layers(session, mib, 512, seed)
                  for seed, mib in enumerate(options.mib)]
        models = [*engines, *layers]
        answers, wrong = turns.take_turns(models, options.seconds,
                                          hand_over=True)
        for one in layers:
            one.check()
    turns.report(models, answers, wrong)
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs=3)
    parser.add_argument("--mib", type=int, nargs=2, default=[24] * 2)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-mib", type=int, default=64)
    parser.add_argument("--socket")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
