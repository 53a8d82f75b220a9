#!/usr/bin/env python3
"""What hoist costs a decoder that is launch-bound.

bench_decode.py --bin DIR [--layers N] [--width W] [--tokens T] [--runs R]
                [--vocabulary V] [--static] [--accelerate] [--embedding]
                [--device cuda|emulated]

A Llama of N layers, with random weights of a fixed seed, decodes T tokens
greedily, R times in turns: plain; under hoist with a budget for all of it, by
block and by leaf; with half of it, by block and by leaf; and under accelerate
with half of it, if that is there. With --static it generates with a static
cache instead, which transformers compiles, plain and under hoist with a budget
for all and for half of it. With --embedding there is one decoder beside plain's: a
budget for all but the embedding, which is read in place. Prints medians: milliseconds
a token and times plain; times the floor, which is plain's or what the streamed bytes
take at the link's rate, measured here (with --static the prompt's pass counts, too);
with --static, times the bound, which no order of copies can beat in that budget
(between two tokens the GPU waits for the host; device memory holds no more than the
budget when it goes on, so the rest of the weights comes after that); how much longer
the host takes for a step's launches (the GPU is idle when they begin), for each
streamed group; the part of that which is Python's, in hoist's hooks and but for the
calls into libhoist, which wait where the stream is full; the time of those calls; the
time of the hooks around a pass, once a pass; hoist's frames in a profile of a step; and
whether all tokens and logits were plain's, bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import statistics
import sys
import time
from typing import Any, Callable, Iterator

import hoist
import torch
import transformers

from common import MIB, hoistd, link_rate, table
from hook_time import HookTime, frames
from peers.llama import config_of

LAUNCHES = 5  # That are measured, after each run.
TOML = """
[device]
backend = "{device}"
pool = {pool}
[host]
pool = {pool}
in_place = {in_place}
"""


def make(arguments: argparse.Namespace, device: torch.device) -> Any:
    torch.manual_seed(0)
    config = config_of(arguments.width, arguments.width // 64, arguments.layers,
                       arguments.vocabulary)
    with torch.device(device):
        model = transformers.LlamaForCausalLM(config)
    return model.to(torch.bfloat16).eval()


def bytes_of(model: torch.nn.Module) -> int:
    return sum(value.nbytes for value in model.parameters())


Call = Callable[..., Any]


@contextlib.contextmanager
def around_compiled(model: Any, wrap: Callable[[Call], Call]) -> Iterator[None]:
    """In the block generate() calls what `wrap` makes of the compiled module."""
    compiled = model.get_compiled_call
    model.get_compiled_call = lambda config: wrap(compiled(config))
    try:
        yield
    finally:
        del model.get_compiled_call


@contextlib.contextmanager
def spans(model: Any) -> Iterator[list[tuple[Any, Any]]]:
    """Of the compiled calls in the block: events before and after each, on the GPU."""
    found = []

    def wrap(call: Call) -> Call:
        def run(*args: Any, **kwargs: Any) -> Any:
            begin, end = (torch.cuda.Event(enable_timing=True)
                          for _ in range(2))
            begin.record()
            output = call(*args, **kwargs)
            end.record()
            found.append((begin, end))
            return output

        return run

    with around_compiled(model, wrap):
        yield found


class Decoder:
    """One model; what it takes a token, and what it gave."""

    def __init__(self, name: str, model: Any, device: torch.device) -> None:
        self.name = name
        self.model = model
        self.device = device
        self.token_ms: list[float] = []
        self.launch_us: list[float] = []
        self.given: Any = None
        self.same = True
        self.frames = 0
        # For each streamed group.
        self.hooks_us = self.stage_us = self.done_us = 0.0
        self.root_us = 0.0  # Of a pass.
        self.streamed = 0.0
        self.streamed_bytes = 0  # A pass.
        self.beyond_bytes = 0  # Of weights that the budget has no room for.
        # Of generate(), for each run: what its tokens but the first take of the
        # GPU together, and the rest of its time, a token each.
        self.spans_ms: list[float] = []
        self.idle_ms: list[float] = []

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def step(self, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        return self.model(input_ids=ids, past_key_values=cache,
                          use_cache=True).logits[:, -1:]

    def decode(self, tokens: int) -> torch.Tensor:
        cache = transformers.DynamicCache()
        prompt = torch.arange(1, 17, device=self.device)[None]
        logits = self.step(prompt, cache)
        self.sync()
        begin = time.perf_counter()
        for _ in range(tokens):
            logits = self.step(logits.argmax(-1), cache)
        self.sync()
        self.token_ms.append((time.perf_counter() - begin) / tokens * 1e3)
        ids = logits.argmax(-1)
        for _ in range(LAUNCHES):
            self.sync()
            begin = time.perf_counter()
            self.step(ids, cache)
            self.launch_us.append((time.perf_counter() - begin) * 1e6)
        self.sync()
        return logits

    def generated(self, tokens: int) -> torch.Tensor:
        prompt = torch.arange(1, 17, device=self.device)[None]
        found = self.model.generate(
            prompt, max_new_tokens=tokens, min_new_tokens=tokens,
            do_sample=False, cache_implementation="static", pad_token_id=0)
        self.sync()
        return found

    def generate(self, tokens: int) -> torch.Tensor:
        self.sync()
        events = self.device.type == "cuda"
        with spans(self.model) if events else contextlib.nullcontext() as timed:
            begin = time.perf_counter()
            found = self.generated(tokens)
            self.token_ms.append((time.perf_counter() - begin) / tokens * 1e3)
        if timed is not None:
            spent = sum(one.elapsed_time(two) for one, two in timed) / tokens
            self.spans_ms.append(spent)
            self.idle_ms.append(self.token_ms[-1] - spent)
        return found

    def run(self, work: Callable[[int], torch.Tensor], tokens: int) -> None:
        before = self._stages()
        given = work(tokens)
        self.streamed = (self._stages() - before) / (tokens + 1 + LAUNCHES)
        if self.name.startswith("hoist"):
            stats = hoist.stats(self.model)
            self.streamed_bytes = stats.streamed_bytes
            self.beyond_bytes = max(0, stats.model_bytes - stats.budget_bytes)
        if self.given is None:
            self.given = given
        self.same &= torch.equal(given, self.given)

    def _stages(self) -> int:
        try:
            return hoist.stats(self.model).stages
        except hoist.NotFound:
            return 0

    def time_hooks(self, steps: int = 9) -> None:
        cache = transformers.DynamicCache()
        ids = torch.ones(1, 1, dtype=torch.long, device=self.device)
        found = []
        hooks = HookTime()
        for _ in range(steps):
            before = self._stages()
            with hooks:
                self.step(ids, cache)
            self.sync()
            stages = self._stages() - before
            if stages:
                found.append([*(hooks.seconds(book) / stages * 1e6
                                for book in ("group", "stage", "done")),
                              hooks.seconds("pass") * 1e6])
        if found:
            (self.hooks_us, self.stage_us, self.done_us,
             self.root_us) = map(statistics.median, zip(*found))

    def count_frames(self) -> None:
        cache = transformers.DynamicCache()
        prompt = torch.arange(1, 17, device=self.device)[None]
        self.frames = frames(lambda: self.step(prompt, cache))


def under_accelerate(model: Any, half: int) -> Any:
    import accelerate
    placed = accelerate.infer_auto_device_map(
        model, max_memory={0: half, "cpu": 1 << 40},
        no_split_module_classes=["LlamaDecoderLayer"])
    return accelerate.dispatch_model(model, placed)


def without_embedding(plain: Any, device: torch.device) -> Decoder:
    """Its table stays on the host, where rows are read."""
    model = copy.deepcopy(plain)
    table_bytes = bytes_of(model.model.embed_tokens)
    groups = bytes_of(model) - table_bytes
    hoist.attach(model, groups + groups // 250 + MIB, in_place=["embed_tokens"])
    stats = hoist.stats(model)
    print(f"{stats.in_place_bytes >> 20} MiB in place, "
          f"{stats.hot_bytes >> 20} MiB of them in GPU memory")
    return Decoder("hoist, but the embedding", model, device)


def decoders(arguments: argparse.Namespace,
             device: torch.device) -> list[Decoder]:
    plain = make(arguments, device)
    half = bytes_of(plain) // 2
    found = [Decoder("plain", plain, device)]
    if arguments.embedding:
        found.append(without_embedding(plain, device))
        return found
    wanted: list[tuple[str, Any, str]] = [
        ("all, by block", None, "block"), ("all, by leaf", None, "leaf"),
        ("half, by block", half, "block"), ("half, by leaf", half, "leaf")]
    for name, budget, groups in wanted:
        model = copy.deepcopy(plain)
        hoist.attach(model, budget or bytes_of(model) * 2, groups=groups)
        found.append(Decoder(f"hoist, {name}", model, device))
    if arguments.accelerate:
        found.append(Decoder("accelerate, half", under_accelerate(
            copy.deepcopy(plain).cpu(), half), device))
    return found


def bound_ms(one: Decoder, plain: Decoder, tokens: int, rate: float) -> float:
    """A token; see the program's description. The prompt's pass is taken to be as
    short as plain's."""
    comes = one.beyond_bytes / rate * (tokens - 1) / tokens
    return (statistics.median(plain.idle_ms)
            + max(statistics.median(plain.spans_ms), comes))


def report(found: list[Decoder], tokens: int, rate: float | None) -> None:
    plain = found[0]
    rows: list[tuple[str, ...]] = [
        ("decoder", "ms/token", "x plain", "x floor", "x bound", "streamed",
         "us/streamed group", "of it Python", "stage", "done",
         "us of a pass", "frames of hoist", "equal")]
    for one in found:
        ratio = statistics.median(
            mine / other for mine, other in zip(one.token_ms, plain.token_ms))
        each = "-"
        if one.streamed and one.launch_us:
            each = f"""{(statistics.median(one.launch_us)
                         - statistics.median(plain.launch_us))
                        / one.streamed:.1f}"""
        took = statistics.median(one.token_ms)
        over = of_bound = "-"
        if rate is not None:
            floor = max(statistics.median(plain.token_ms),
                        one.streamed_bytes / rate)
            over = f"{took / floor:.3f}"
        if rate is not None and plain.spans_ms:
            bound = bound_ms(one, plain, tokens, rate)
            of_bound = f"{took / bound:.3f}"
        same = one.same and torch.equal(one.given, plain.given)
        rows.append((one.name, f"{took:.2f}", f"{ratio:.3f}", over, of_bound,
                     f"{one.streamed:.0f}", each,
                     *(f"{us:.1f}" if one.hooks_us else "-" for us in
                       (one.hooks_us, one.stage_us, one.done_us, one.root_us)),
                     str(one.frames), "yes" if same else "NO"))
    table(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--embedding", action="store_true")
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--accelerate", action="store_true")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    # Each grouping is a model of its own in hoistd.
    layer = 12 * arguments.width ** 2 * 2
    table = arguments.vocabulary * arguments.width * 2
    models = 1 if arguments.embedding else 5
    pool = models * ((arguments.layers + 2) * layer + 2 * table) + 256 * MIB
    with torch.no_grad(), hoistd(arguments.bin, TOML.format(
            device=arguments.device, pool=pool,
            in_place=table + 64 * MIB if arguments.embedding else 0)) as node:
        os.environ["HOIST_SOCKET"] = node.socket
        found = decoders(arguments, device)
        for at in range(arguments.runs + 2):
            for one in found:
                one.run(one.generate if arguments.static else one.decode,
                        arguments.tokens)
                if at < 2:  # Orders are learned, code is compiled.
                    for figures in (one.token_ms, one.launch_us, one.spans_ms,
                                    one.idle_ms):
                        figures.clear()
        # Registrations are watched for while any module has something that
        # comes and goes: each is looked at without those after it.
        for one in reversed(found):
            if not arguments.static:
                one.time_hooks()
                one.count_frames()
            if one.name.startswith("hoist"):
                hoist.detach(one.model)
        report(found, arguments.tokens, link_rate(device))
    return 0


if __name__ == "__main__":
    sys.exit(main())
