"""An engine that is measured: ../engine.py's, with more to be asked.

measured.py NAME=JSON...: options of vllm.LLM. Its prompts differ from
engine.py's: eight, of 5 to 500 tokens, which start in one batch.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import re
import statistics
import sys
import time
from typing import Any, Iterator

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "support")]

import engine  # noqa: E402
from clients import prompts  # noqa: E402

engine.PROMPTS = prompts([5, 17, 32, 64, 100, 200, 333, 500])


class Measured(engine.Engine):
    def __init__(self, options: dict[str, Any]) -> None:
        """layers: of the model, which may be more than its files have."""
        layers = options.pop("layers", None)
        if layers is not None:
            options["hf_overrides"] = repeat_layers(options["model"], layers)
        super().__init__(options)

    def adapted(self, adapter: str, tokens: int) -> list[list[int]]:
        """As `generate`, with a LoRA adapter."""
        from vllm.lora.request import LoRARequest
        return self.generate(tokens, LoRARequest("adapter", 1, adapter))

    def generate_short(self, tokens: int) -> list[list[int]]:
        """As `generate`, of eight prompts of one token. No expert then has more
        rows than one block of Marlin's kernels. With more, vLLM's own tokens
        differ from run to run."""
        return self.generate(tokens, prompts=prompts([1] * 8))

    def rate(self, batch: int, tokens: int, most: int = 8) -> dict[str, Any]:
        """Tokens a second, prompts of 64 tokens included. Repeated until three
        runs in a row differ by less than 2 %, or `most` times."""
        taken: list[float] = []
        self._run(batch, tokens)
        while len(taken) < most and (len(taken) < 3 or spread(taken) >= 0.02):
            begin = time.perf_counter()
            self._run(batch, tokens)
            taken.append(time.perf_counter() - begin)
        return {"rate": batch * tokens / statistics.median(taken[-3:]),
                "spread": spread(taken), "passes": (len(taken) + 1) * tokens}

    def _run(self, batch: int, tokens: int) -> None:
        from vllm import SamplingParams
        self.llm.generate(
            [{"prompt_token_ids": one} for one in prompts([64] * batch)],
            SamplingParams(temperature=0, max_tokens=tokens, detokenize=False,
                           ignore_eos=True), use_tqdm=False)

    def link(self) -> float:
        """GB/s of copies of 256 MiB from pinned memory."""
        import torch
        if not torch.cuda.is_available():
            return 1.0
        host = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
        device = torch.empty_like(host, device="cuda")
        taken = []
        for _ in range(8):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            device.copy_(host, non_blocking=True)
            torch.cuda.synchronize()
            taken.append(time.perf_counter() - begin)
        return host.nbytes / statistics.median(taken[1:]) / 1e9

    def sleep(self, level: int, ours: bool) -> float:
        begin = time.perf_counter()
        self.llm.sleep(level=level)
        if ours:
            self.ask("hoist_suspend")
        return time.perf_counter() - begin

    def wake(self, level: int, ours: bool, reload: bool) -> float:
        begin = time.perf_counter()
        if ours:
            self.ask("hoist_resume")
        self.llm.wake_up()
        if level == 2 and reload:
            self.ask("reload_weights")
        return time.perf_counter() - begin


def repeat_layers(folder: str, layers: int) -> dict[str, Any]:
    """From now on vLLM reads `layers` layers of the folder's files: after the
    last one the first comes again, its tensors rolled by a row more each time,
    so that no two layers have equal experts. Returns what config.json has to say then.
    """
    from vllm.model_executor.model_loader.default_loader import (
        DefaultModelLoader)
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    count = config["num_hidden_layers"]
    read = DefaultModelLoader._get_weights_iterator

    def repeated(self: Any, source: Any) -> Iterator[tuple[str, Any]]:
        for name, tensor in read(self, source):
            found = re.fullmatch(r"(model\.layers\.)(\d+)(\..*)", name)
            if found is None:
                yield name, tensor
                continue
            prefix, first, rest = found.groups()
            for number in range(int(first), layers, count):
                turn = number // count
                yield (f"{prefix}{number}{rest}",
                       tensor.roll(turn, 0) if turn else tensor)

    DefaultModelLoader._get_weights_iterator = repeated
    kinds = itertools.cycle(config["layer_types"])
    return {"num_hidden_layers": layers,
            "layer_types": list(itertools.islice(kinds, layers))}


def spread(taken: list[float]) -> float:
    last = taken[-3:]
    return (max(last) - min(last)) / statistics.median(last)


if __name__ == "__main__":
    engine.main(Measured)
