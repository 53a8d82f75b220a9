"""A vLLM engine in a process of its own, told by lines what to do.

engine.py NAME=JSON...: options of vllm.LLM. It reads a line of JSON at a time
from its standard input, {"do": NAME, ...}, and answers with one on the
descriptor that it was given as standard output. What vLLM prints goes to the
standard error.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from typing import Any, Callable, Sequence

PROMPTS = ([1, 2, 3, 4, 5, 6, 7], [11, 500, 23, 900, 41])


class Facts:
    """What is asked of each of an engine's workers (`--worker-extension-cls`).
    """

    def hoist_facts(self) -> dict[str, Any]:
        model = self.model_runner.model  # type: ignore[attr-defined]
        weights = getattr(model, "hoist_weights", None)
        spans = weights.spans() if weights is not None else []
        tensors = [(one.data_ptr(), one.nbytes) for one in model.parameters()]
        return {
            "bytes": sum(nbytes for _, nbytes in tensors),
            "shared": sum(nbytes for at, nbytes in tensors
                          if any(a <= at and at + nbytes <= b
                                 for a, b in spans)),
            "dirty": private_dirty(spans),
            "maps": hoistd_maps(),
            "fds": hoistd_fds(),
            "addresses": [at for at, _ in tensors],
            "model": weights.name if weights is not None else None,
        }

    def hoist_in_place(self) -> dict[str, Any]:
        weights = self.model_runner.model.hoist_weights  # type: ignore[attr-defined]
        return dataclasses.asdict(weights.in_place.stats)

    def hoist_advance(self) -> None:
        weights = self.model_runner.model.hoist_weights  # type: ignore[attr-defined]
        weights.in_place.advance(wait=True)

    def hoist_suspend(self) -> None:
        from hoist.vllm import suspend
        suspend()

    def hoist_resume(self) -> None:
        from hoist.vllm import resume
        resume()


def private_dirty(spans: list[tuple[int, int]]) -> int:
    """KiB, of all mappings that reach into one of the spans."""
    found, inside = 0, False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            first = line.split(maxsplit=1)[0]
            if not first.endswith(":"):
                begin, end = (int(one, 16) for one in first.split("-"))
                inside = any(begin < b and a < end for a, b in spans)
            elif inside and first == "Private_Dirty:":
                found += int(line.split()[1])
    return found


def hoistd_maps() -> list[str]:
    with open("/proc/self/maps") as maps:
        return [line.split(maxsplit=5)[5].strip() for line in maps
                if "memfd:hoist" in line]


def hoistd_fds() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue  # The listing's own.
    return [one for one in found if "memfd:hoist" in one]


def io_of_self() -> dict[str, int]:
    with open("/proc/self/io") as io:
        return {name: int(value) for name, value in
                (line.strip().split(": ") for line in io)}


def watch_loading(seen: dict[str, Any]) -> None:
    """What the loader reads of disks, and how long it takes."""
    from hoist.vllm._loader import HoistModelLoader
    load = HoistModelLoader.load_model

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        args = (kwargs.pop("vllm_config", None) or args[0], *args[1:])
        # As vLLM's GPU worker, before it looks how much memory is free.
        seen["external"] = self.get_external_weight_memory(args[0])
        before, begin = io_of_self(), time.perf_counter()
        made = load(self, *args, **kwargs)
        seen["load_ms"] = (time.perf_counter() - begin) * 1e3
        seen["read_bytes"] = io_of_self()["read_bytes"] - before["read_bytes"]
        return made

    HoistModelLoader.load_model = watched  # type: ignore[method-assign]


def let_cpus_read_compiled_code() -> None:
    """As CUDA's engines do. vLLM 0.32 writes a CPU's compiled code to its cache
    and fails to read it back: it calls a method that a plain function lacks."""
    import torch
    load = torch.compiler.load_compiled_function

    def loaded(*args: Any, **kwargs: Any) -> Any:
        code = load(*args, **kwargs)
        inner = code._artifacts.compiled_fn
        if not hasattr(inner, "finalize_loading"):
            inner.finalize_loading = lambda config: None
        return code

    torch.compiler.load_compiled_function = loaded


class Engine:
    def __init__(self, options: dict[str, Any]) -> None:
        from vllm import LLM
        from vllm.platforms import current_platform
        self.seen: dict[str, Any] = {}
        if current_platform.is_cpu():
            let_cpus_read_compiled_code()
            if options["load_format"] == "hoist":
                watch_loading(self.seen)
        self.llm = LLM(skip_tokenizer_init=True,
                       worker_extension_cls="engine.Facts",
                       disable_log_stats=True,
                       **{"enforce_eager": True, "dtype": "bfloat16",
                          "max_model_len": 256,
                          "kv_cache_memory_bytes": 32 << 20, **options})

    def loaded(self) -> dict[str, Any]:
        return self.seen

    def compiled_code_read(self) -> int:
        """How many functions came out of vLLM's compile cache."""
        from vllm.compilation.counter import compilation_counter
        return compilation_counter.num_aot_artifacts_loaded

    def generate(self, tokens: int = 24, adapter: Any = None,
                 prompts: Sequence[Sequence[int]] | None = None
                 ) -> list[list[int]]:
        return [list(one.token_ids)
                for one in self._made(tokens, adapter, prompts)]

    def probable(self, tokens: int = 24, most: int = 20) -> list[Any]:
        """Of each token the most probable ones, with their logarithms."""
        return [[sorted((token, one.logprob) for token, one in step.items())
                 for step in made.logprobs]
                for made in self._made(tokens, None, None, logprobs=most)]

    def _made(self, tokens: int, adapter: Any,
              prompts: Sequence[Sequence[int]] | None, **options: Any
              ) -> list[Any]:
        from vllm import SamplingParams
        made = self.llm.generate(
            [{"prompt_token_ids": list(one)} for one in prompts or PROMPTS],
            SamplingParams(temperature=0, max_tokens=tokens, detokenize=False,
                           ignore_eos=True, **options),
            use_tqdm=False, lora_request=adapter)
        return [one.outputs[0] for one in made]

    def ask(self, what: str) -> list[Any]:
        return self.llm.collective_rpc(what)


def main(make: Callable[[dict[str, Any]], Any] = Engine) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    options = {name: json.loads(value) for name, value in
               (one.split("=", 1) for one in sys.argv[1:])}
    try:
        engine = make(options)
    except Exception as error:
        print(json.dumps({"error": type(error).__name__, "says": str(error)}),
              file=answers)
        raise
    print(json.dumps({"is": "ready"}), file=answers)
    for line in sys.stdin:
        wanted = json.loads(line)
        try:
            said = getattr(engine, wanted.pop("do"))(**wanted)
            print(json.dumps({"is": said}), file=answers)
        except Exception as error:
            print(json.dumps({"error": type(error).__name__,
                              "says": str(error)}), file=answers)


if __name__ == "__main__":
    main()
