#!/usr/bin/env python3
"""Stages every group of a model on a device and compares every byte.

verify.py PATH [--socket PATH] [--groups block|module|whole] [--device N]
               [--name NAME] [--deadline S] [--quiet]

PATH is a safetensors file, or a folder of them. On a GPU the bytes are copied
back by the CUDA driver. Exit status: 0 if all are equal, else 1.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from typing import Any

import surroundings

surroundings.need("numpy")
surroundings.find_hoist()

import hoist  # noqa: E402
from safetensors_file import SafetensorsFile, shards_of  # noqa: E402


class CudaReader:
    """Copies device memory back, in the primary context that libhoist uses."""

    def __init__(self, uuid: bytes) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self._check(self.cuda.cuInit(0))
        count = ctypes.c_int()
        self._check(self.cuda.cuDeviceGetCount(ctypes.byref(count)))
        for ordinal in range(count.value):
            device, found = ctypes.c_int(), (ctypes.c_uint8 * 16)()
            self._check(self.cuda.cuDeviceGet(ctypes.byref(device), ordinal))
            self._check(self.cuda.cuDeviceGetUuid_v2(found, device))
            if bytes(found) == uuid:
                context = ctypes.c_void_p()
                self._check(self.cuda.cuDevicePrimaryCtxRetain(
                    ctypes.byref(context), device))
                self._check(self.cuda.cuCtxSetCurrent(context))
                return
        raise SystemExit("the lease's GPU is not visible to this process")

    def _check(self, error: int) -> None:
        if error:
            raise SystemExit(f"the CUDA driver says error {error}")

    def read(self, address: int, size: int) -> Any:
        import numpy as np
        out = np.empty(size, np.uint8)
        self._check(self.cuda.cuMemcpyDtoH_v2(
            ctypes.c_void_p(out.ctypes.data), ctypes.c_uint64(address),
            ctypes.c_size_t(size)))
        return out


def bytes_of(tensor: hoist.Tensor, reader: CudaReader | None) -> Any:
    import numpy as np
    if tensor.nbytes == 0:
        return np.empty(0, np.uint8)
    if reader is not None:
        return reader.read(tensor.address, tensor.nbytes)
    memory = (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.address)
    return np.frombuffer(memory, np.uint8)


def check(tensor: hoist.Tensor, file: SafetensorsFile,
          reader: CudaReader | None) -> str | None:
    """What is wrong with the tensor, or None."""
    entry = file.header[tensor.name]
    if tensor.dtype != entry["dtype"]:
        return f"dtype {tensor.dtype}, the file has {entry['dtype']}"
    if list(tensor.shape) != entry["shape"]:
        return f"shape {tensor.shape}, the file has {entry['shape']}"
    want, have = file.array(tensor.name), bytes_of(tensor, reader)
    if len(want) != len(have):
        return f"{len(have)} bytes, the file has {len(want)}"
    wrong = int((want != have).sum())
    return f"{wrong} of {len(want)} bytes differ" if wrong else None


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--socket")
    parser.add_argument("--groups", default="block",
                        choices=["block", "module", "whole"])
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--name")
    parser.add_argument("--deadline", type=float, default=60.0)
    parser.add_argument("--quiet", action="store_true", help="no table")
    return parser.parse_args()


def main() -> int:
    args = parse()
    files = {}
    for shard in shards_of(args.path):
        file = SafetensorsFile(shard)
        files.update({name: file for name in file})
    session = hoist.connect(args.socket, name="verify.py", connect_deadline=10)
    model = session.register(args.path, args.name, groups=args.groups)
    device = next(d for d in session.devices if d.index == args.device)
    reader = CudaReader(device.uuid) if device.kind == "cuda" else None
    if not args.quiet:
        print(f"{'group':<40} {'tensors':>7} {'MiB':>9} {'ms':>8}  result")
    problems: list[str] = []
    seen: set[str] = set()
    staging = 0.0
    for group in model:
        begin = time.perf_counter()
        with session.stage(group, device=args.device,
                           deadline=args.deadline) as lease:
            took = time.perf_counter() - begin
            wrong = []
            for name in lease:
                seen.add(name)
                problem = "not in the file" if name not in files else check(
                    lease[name], files[name], reader)
                if problem:
                    wrong.append(f"{name}: {problem}")
            what = "resident" if lease.was_resident else "copied"
        staging += took
        problems += wrong
        if not args.quiet:
            print(f"{group.name:<40} {group.tensor_count:>7} "
                  f"{group.image_bytes / 2**20:>9.2f} {took * 1e3:>8.1f}  "
                  f"{f'{len(wrong)} WRONG' if wrong else 'equal'}, {what}")
    problems += [f"{name}: in no group" for name in files if name not in seen]
    session.close()
    for problem in problems:
        print(f"WRONG  {problem}")
    print(f"{model.name}: {len(model)} groups, {len(seen)} tensors, "
          f"{model.image_bytes / 2**20:.1f} MiB on {device.name}, "
          f"{staging:.3f} s staging: "
          f"{'all bytes equal' if not problems else 'NOT EQUAL'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
