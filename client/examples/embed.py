#!/usr/bin/env python3
"""Sentence embeddings with all-MiniLM-L6-v2, its weights staged by hoist.

embed.py MODEL_FOLDER [--socket PATH] [--budget MIB] [--ops torch|numpy]
                      [--deadline S] [--passes N] [--out FILE.json]

The device budget is smaller than the model: one group after the other is
staged, used and released, while the next is prefetched. The result is compared,
bit for bit, with the same code over weights that lie in this process, and, where
transformers is installed, with its model within float tolerance.
Exit status: 0 if all comparisons hold, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from typing import Any, Iterator, Mapping

import surroundings

surroundings.need("numpy")
surroundings.find_hoist()
surroundings.keep_others_quiet()

import bert  # noqa: E402
import hoist  # noqa: E402
from safetensors_file import SafetensorsFile  # noqa: E402
from wordpiece import WordPiece  # noqa: E402

SENTENCES = [
    "The cat sits on the warm windowsill.",
    "A kitten is resting by the sunny window.",
    "Interest rates rose again this quarter.",
    "The central bank raised its key rate.",
    "He tuned the guitar before the concert.",
    "The musician prepared his instrument for the show.",
]
MIB = 1 << 20


class Staged:
    """Weights by group, from hoist: one lease at a time, the next prefetched."""

    def __init__(self, session: hoist.Session, model: hoist.Model,
                 names: list[str], ops: Any, deadline: float) -> None:
        self.session, self.ops, self.deadline = session, ops, deadline
        self.groups = [model[name] for name in names]
        self.next = {a.name: b for a, b in zip(
            self.groups, self.groups[1:] + self.groups[:1])}
        self.stages = self.resident = 0
        self.waited = 0.0
        session.set_order(self.groups)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[Mapping[str, Any]]:
        group = next(g for g in self.groups if g.name == name)
        begin = time.perf_counter()
        with self.session.stage(group, deadline=self.deadline) as lease:
            self.waited += time.perf_counter() - begin
            self.stages += 1
            self.resident += lease.was_resident
            self.session.prefetch(self.next[name])
            yield {key: self.ops.view(lease[key]) for key in lease}


class Resident:
    """The same weights, read by this process and kept."""

    def __init__(self, path: str, ops: Any) -> None:
        file = SafetensorsFile(path)
        self.tensors = {}
        for name in file:
            dtype = {"F32": "float32", "I64": "int64"}[
                file.header[name]["dtype"]]
            array = file.array(name).view(dtype).reshape(
                file.header[name]["shape"])
            if isinstance(ops, bert.TorchOps):
                array = ops.torch.from_numpy(array).to(ops.device)
            self.tensors[name] = array

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[Mapping[str, Any]]:
        yield self.tensors


def as_numpy(x: Any) -> Any:
    return x if type(x).__module__ == "numpy" else x.cpu().numpy()


def same_bits(a: Any, b: Any) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def published_difference(folder: str, ids: list[list[int]], mine: Any) -> Any:
    """The largest difference from transformers' own model; None: not there."""
    if not surroundings.has("torch", "transformers"):
        return None
    import torch
    import transformers
    model = transformers.AutoModel.from_pretrained(folder).eval()
    worst = 0.0
    for row, vector in zip(ids, mine):
        with torch.no_grad():
            states = model(torch.tensor([row])).last_hidden_state
        mean = torch.nn.functional.normalize(states.mean(1)[0], dim=0)
        worst = max(worst, float(abs(mean.numpy() - vector).max()))
    return worst


def pick_ops(wanted: str | None, device: hoist.Device) -> Any:
    there = "torch" if surroundings.has("torch") else "numpy"
    if (wanted or there) == "torch":
        return bert.TorchOps("cuda" if device.kind == "cuda" else "cpu")
    return bert.NumpyOps()


def check_sense(vectors: Any) -> bool:
    """Each sentence is nearest to the other half of its pair."""
    likeness = vectors @ vectors.T
    ok = True
    for i, sentence in enumerate(SENTENCES):
        near = max((j for j in range(len(SENTENCES)) if j != i),
                   key=lambda j: likeness[i][j])
        ok = ok and near == i ^ 1
        print(f"  {likeness[i][near]:.3f}  {sentence!r} ~ {SENTENCES[near]!r}")
    return ok


def check_budget(session: hoist.Session, model: hoist.Model) -> bool:
    """Leasing every group at once must be refused: the budget is smaller."""
    print("asking for all groups at once, which the budget must refuse:")
    with contextlib.ExitStack() as held:
        try:
            for group in model:
                held.enter_context(session.stage(group, deadline=0))
        except hoist.ResourceExhausted as refusal:
            print(f"  refused, as it should be: {refusal}")
            return True
    return False


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--socket")
    parser.add_argument("--budget", type=float, metavar="MIB",
                        help="device budget (default: 60 %% of the model)")
    parser.add_argument("--ops", choices=["torch", "numpy"])
    parser.add_argument("--deadline", type=float, default=60.0)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--out", help="write the embeddings here, as JSON")
    return parser.parse_args()


def main() -> int:
    args = parse()
    path = os.path.join(args.folder, "model.safetensors")
    with open(os.path.join(args.folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    budget = int(args.budget * MIB) if args.budget else \
        int(os.path.getsize(path) * 0.6)
    words = WordPiece(os.path.join(args.folder, "vocab.txt"))
    ids = [words.encode(sentence) for sentence in SENTENCES]

    begin = time.perf_counter()
    session = hoist.connect(args.socket, name="embed.py",
                            device_budget=budget, connect_deadline=10)
    model = session.register(args.folder, "minilm")
    attached = time.perf_counter() - begin
    ops = pick_ops(args.ops, session.devices[0])
    print(f"{model.image_bytes / MIB:.1f} MiB in {len(model)} groups, budget "
          f"{budget / MIB:.1f} MiB on {session.devices[0].name}, "
          f"{type(ops).__name__}; attached in {attached * 1e3:.1f} ms")

    staged = Staged(session, model, bert.group_names(config), ops,
                    args.deadline)
    for number in range(args.passes):
        staged.stages = staged.resident = 0
        staged.waited = 0.0
        begin = time.perf_counter()
        through_hoist = as_numpy(bert.forward(ops, config, staged, ids))
        took = time.perf_counter() - begin
        print(f"pass {number + 1}: {took * 1e3:.1f} ms, "
              f"{staged.waited * 1e3:.1f} of them staging; {staged.resident} of "
              f"{staged.stages} stages were resident")

    resident = as_numpy(bert.forward(ops, config, Resident(path, ops), ids))
    checks = {"equal to resident weights, bit for bit":
              same_bits(through_hoist, resident)}
    difference = published_difference(args.folder, ids, through_hoist)
    if difference is None:
        print("transformers is not installed: not compared with its model")
    else:
        checks[f"transformers' model within 1e-5 ({difference:.1e})"] = \
            difference < 1e-5
    checks["similar sentences are near"] = check_sense(through_hoist)
    checks["the device budget holds"] = budget >= model.image_bytes or \
        check_budget(session, model)
    session.close()
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump({"embeddings": through_hoist.tolist(), "ids": ids,
                       "stages": staged.stages,
                       "resident": int(staged.resident)}, file)
    for claim, holds in checks.items():
        print(f"{'ok  ' if holds else 'FAIL'}  {claim}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
