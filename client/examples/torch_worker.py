#!/usr/bin/env python3
"""Sentence embeddings in PyTorch, with weights that live in hoist.

torch_worker.py MODEL_FOLDER [--socket PATH] [--budget MIB] [--passes N]
                             [--by-hand] [--out FILE.json]

What a PyTorch user writes is `load()`, below, and then uses the model as any
other. The rest compares it, bit for bit, with the same module over weights that
torch itself holds, and tells what it took. The module is transformers' where
that is installed, else the one in minilm.py (--by-hand).
Exit status: 0 if all comparisons hold, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, Callable

import surroundings

surroundings.need("torch", "numpy")
surroundings.find_hoist()
surroundings.keep_others_quiet()

import hoist  # noqa: E402
import torch  # noqa: E402
from embed import SENTENCES, check_sense  # noqa: E402
from safetensors_file import SafetensorsFile  # noqa: E402
from wordpiece import WordPiece  # noqa: E402

MIB = 1 << 20


def load(factory: Callable[[], torch.nn.Module], folder: str,
         budget: Any, session: hoist.Session) -> torch.nn.Module:
    """The model, its weights in hoistd; this process never reads them."""
    return hoist.load(factory, folder, budget=budget, session=session).eval()


def factory_of(folder: str, by_hand: bool) -> Callable[[], torch.nn.Module]:
    if not by_hand and surroundings.has("transformers"):
        from transformers import BertConfig, BertModel
        config = BertConfig.from_pretrained(folder)
        return lambda: BertModel(config)
    from minilm import MiniLM
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        fields = json.load(file)
    return lambda: MiniLM(fields)


def resident(factory: Callable[[], torch.nn.Module], folder: str,
             device: torch.device) -> torch.nn.Module:
    """The same with weights of its own, read from the file."""
    model = factory().eval()
    file = SafetensorsFile(os.path.join(folder, "model.safetensors"))
    for name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(file.array(name)).view(
            parameter.dtype).reshape(parameter.shape)
    return model.to(device)


def batch_of(folder: str) -> dict[str, torch.Tensor]:
    words = WordPiece(os.path.join(folder, "vocab.txt"))
    rows = [words.encode(sentence) for sentence in SENTENCES]
    longest = max(map(len, rows))
    pad = [longest - len(row) for row in rows]
    return {"input_ids": torch.tensor(
                [row + [0] * more for row, more in zip(rows, pad)]),
            "attention_mask": torch.tensor(
                [[1] * len(row) + [0] * more for row, more in zip(rows, pad)])}


@torch.inference_mode()
def embed(model: torch.nn.Module, batch: dict[str, torch.Tensor],
          device: torch.device) -> torch.Tensor:
    """The mean of the tokens' states, of length one; on the CPU."""
    out = model(**{name: one.to(device) for name, one in batch.items()})
    states = getattr(out, "last_hidden_state", out).cpu()
    used = batch["attention_mask"][..., None].to(states.dtype)
    mean = (states * used).sum(1) / used.sum(1)
    return torch.nn.functional.normalize(mean)


def memory() -> dict[str, float]:
    """This process's, in MiB: RssAnon is its own, RssShmem shared."""
    with open("/proc/self/status", encoding="ascii") as file:
        rows = dict(line.split(":", 1) for line in file)
    return {name: int(rows[name].split()[0]) / 1024
            for name in ("RssAnon", "RssShmem")}


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return ours.shape == theirs.shape and (
        ours.numpy().tobytes() == theirs.numpy().tobytes())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--socket")
    parser.add_argument("--budget", type=float, metavar="MIB",
                        help="device memory (default: 70 %% of the model)")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--by-hand", action="store_true",
                        help="use minilm.py, not transformers")
    parser.add_argument("--out", help="write the embeddings here, as JSON")
    return parser.parse_args()


def main() -> int:
    args = parse()
    factory, batch = factory_of(args.folder, args.by_hand), batch_of(
        args.folder)
    budget = int(args.budget * MIB) if args.budget else 0.7
    session = hoist.connect(args.socket, name="torch_worker.py",
                            connect_deadline=10)
    device = torch.device(
        "cuda" if session.devices[0].kind == "cuda" else "cpu")
    torch.zeros(1, device=device)  # CUDA's context is not hoist's.
    before = memory()

    begin = time.perf_counter()
    model = load(factory, args.folder, budget, session)
    took = time.perf_counter() - begin
    stats = hoist.stats(model)
    print(f"{type(model).__module__}.{type(model).__name__}: "
          f"{stats.model_bytes / MIB:.1f} MiB in {stats.groups} groups, budget "
          f"{stats.budget_bytes / MIB:.1f} MiB on {session.devices[0].name}; "
          f"loaded in {took * 1e3:.1f} ms")
    for number in range(args.passes):
        begin = time.perf_counter()
        through_hoist = embed(model, batch, device)
        print(f"pass {number + 1}: "
              f"{(time.perf_counter() - begin) * 1e3:.1f} ms")
    hoist.check(model)
    grown = {name: now - before[name] for name, now in memory().items()}
    stats = hoist.stats(model)
    print(f"{stats.stages} stages: {stats.resident_stages} resident, "
          f"{stats.ready_stages} ready when asked for, {stats.unplanned} not "
          f"planned; {stats.streamed_bytes / MIB:.1f} MiB streamed in a pass")
    print(f"this process grew by {grown['RssAnon']:.1f} MiB of its own, and "
          f"maps {grown['RssShmem']:.1f} MiB of hoistd's")

    own = resident(factory, args.folder, device)
    checks = {
        "equal to weights that torch holds, bit for bit": same_bits(
            through_hoist, embed(own, batch, device)),
        "the device budget holds, and is less than the model":
            stats.budget_bytes < stats.model_bytes,
        "weights read outside forward are the file's": all(
            same_bits(one, theirs.cpu()) for one, theirs in zip(
                model.state_dict().values(), own.state_dict().values())),
        "similar sentences are near": check_sense(through_hoist)}
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump({"embeddings": through_hoist.tolist(),
                       "module": type(model).__module__}, file)
    for claim, holds in checks.items():
        print(f"{'ok  ' if holds else 'FAIL'}  {claim}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
