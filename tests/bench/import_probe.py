#!/usr/bin/env python3
"""What each call of the driver costs a process that reads another's pieces of host
memory in place (VMM), and which of them may run beside each other.

import_probe.py [--pieces N] [--piece-mb MB]    (needs a GPU, and nothing of hoist)

A first process makes the pieces; a second one imports, maps, opens and unmaps them,
as libhoist does. Prints microseconds a piece, by the pieces of one cuMemSetAccess;
of imports by several threads; of all three calls by one thread, with the imports in a
thread of their own, and by two threads with half of the pieces each. Then which calls
over parts and over runs of mappings a driver takes: 0 is yes, else it is the error.
"""

from __future__ import annotations

import argparse
import ctypes as c
import json
import os
import queue
import resource
import subprocess
import sys
import threading
import time
from typing import Callable, Sequence

from cuda_driver import Access, Location, Properties, ask, cuda

PAGE = 2 << 20
DEVICE, HOST_NUMA, HOST_NUMA_ID = 1, 3, 134  # As cuda.h numbers them.

context = c.c_void_p()


def open_gpu() -> None:
    ask("cuInit", 0)
    ask("cuDevicePrimaryCtxRetain", c.byref(context), 0)
    enter()


def enter() -> None:
    """For each thread."""
    ask("cuCtxPushCurrent_v2", context)


def create(nbytes: int) -> c.c_uint64:
    node = c.c_int()
    ask("cuDeviceGetAttribute", c.byref(node), HOST_NUMA_ID, 0)
    wanted = Properties(type=1, handles=1,
                        location=Location(HOST_NUMA, max(node.value, 0)))
    handle = c.c_uint64()
    ask("cuMemCreate", c.byref(handle), c.c_size_t(nbytes), c.byref(wanted),
        c.c_uint64(0))
    return handle


def export(handle: c.c_uint64) -> int:
    fd = c.c_int()
    ask("cuMemExportToShareableHandle", c.byref(fd), handle, 1, c.c_uint64(0))
    return fd.value


def reserve(nbytes: int) -> int:
    at = c.c_uint64()
    ask("cuMemAddressReserve", c.byref(at), c.c_size_t(nbytes),
        c.c_size_t(PAGE), c.c_uint64(0), c.c_uint64(0))
    return at.value


def imported(fd: int) -> c.c_uint64:
    handle = c.c_uint64()
    ask("cuMemImportFromShareableHandle", c.byref(handle), c.c_void_p(fd), 1)
    return handle


def map_at(at: int, nbytes: int, handle: c.c_uint64, offset: int = 0) -> int:
    code: int = cuda.cuMemMap(c.c_uint64(at), c.c_size_t(nbytes),
                              c.c_size_t(offset), handle, c.c_uint64(0))
    return code


def open_at(at: int, nbytes: int) -> int:
    reads = Access(Location(DEVICE, 0), 1)
    code: int = cuda.cuMemSetAccess(c.c_uint64(at), c.c_size_t(nbytes),
                                    c.byref(reads), c.c_size_t(1))
    return code


def unmap_at(at: int, nbytes: int) -> int:
    code: int = cuda.cuMemUnmap(c.c_uint64(at), c.c_size_t(nbytes))
    return code


def need(code: int) -> None:
    if code:
        raise RuntimeError(f"CUDA error {code}")


def in_threads(works: Sequence[Callable[[], None]]) -> None:
    def entered(work: Callable[[], None]) -> None:
        enter()
        work()

    threads = [threading.Thread(target=entered, args=(work,))
               for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Pieces:
    """Of the first process, in a range of this one."""

    def __init__(self, fds: list[int], nbytes: int) -> None:
        self.fds, self.nbytes = fds, nbytes
        self.handles: list[c.c_uint64] = [c.c_uint64()] * len(fds)
        self.base = reserve(len(fds) * nbytes)

    def at(self, piece: int) -> int:
        return self.base + piece * self.nbytes

    def take(self, begin: int, end: int) -> None:
        for i in range(begin, end):
            self.handles[i] = imported(self.fds[i])

    def map(self, begin: int, end: int) -> None:
        for i in range(begin, end):
            need(map_at(self.at(i), self.nbytes, self.handles[i]))

    def open(self, begin: int, end: int) -> None:
        need(open_at(self.at(begin), (end - begin) * self.nbytes))

    def open_by(self, count: int) -> None:
        for begin in range(0, len(self.fds), count):
            self.open(begin, min(begin + count, len(self.fds)))

    def unmap(self) -> None:
        for i in range(len(self.fds)):
            need(unmap_at(self.at(i), self.nbytes))

    def release(self) -> None:
        for handle in self.handles:
            ask("cuMemRelease", handle)

    def attach(self, begin: int, end: int) -> None:
        """Three calls in turn, by 32 pieces."""
        for first in range(begin, end, 32):
            last = min(first + 32, end)
            self.take(first, last)
            self.map(first, last)
            self.open(first, last)


def say(what: str, pieces: Pieces, work: Callable[[], None]) -> None:
    begin = time.perf_counter()
    work()
    took = time.perf_counter() - begin
    print(f"{what:52} {1e6 * took / len(pieces.fds):8.1f} us a piece",
          flush=True)


def calls_apart(pieces: Pieces) -> None:
    every = len(pieces.fds)
    for count in (1, 8, 32, 256, every):
        say("import", pieces, lambda: pieces.take(0, every))
        say("map", pieces, lambda: pieces.map(0, every))
        say(f"open, {count} a call", pieces, lambda: pieces.open_by(count))
        say("unmap", pieces, pieces.unmap)
        say("release", pieces, pieces.release)


def imports_by_threads(pieces: Pieces) -> None:
    every = len(pieces.fds)
    for threads in (1, 2, 4):
        edges = [every * i // threads for i in range(threads + 1)]
        say(f"import, {threads} threads", pieces, lambda: in_threads(
            [lambda a=a, b=b: pieces.take(a, b)  # type: ignore[misc]
             for a, b in zip(edges, edges[1:])]))
        pieces.release()


def all_calls(pieces: Pieces) -> None:
    every = len(pieces.fds)
    arrived: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    runs = [(i, min(i + 32, every)) for i in range(0, every, 32)]

    def take_all() -> None:
        for begin, end in runs:
            pieces.take(begin, end)
            arrived.put((begin, end))

    def lay_all() -> None:
        for _ in runs:
            begin, end = arrived.get()
            pieces.map(begin, end)
            pieces.open(begin, end)

    for what, works in [
            ("all, 1 thread", [lambda: pieces.attach(0, every)]),
            ("all, imports in a thread of their own", [take_all, lay_all]),
            ("all, 2 threads", [lambda: pieces.attach(0, every // 2),
                                lambda: pieces.attach(every // 2, every)])]:
        say(what, pieces, lambda: in_threads(works))
        pieces.unmap()
        pieces.release()


def parts() -> None:
    whole = create(4 * PAGE)
    at = reserve(4 * PAGE)
    print("map the second of four pages:", map_at(at, PAGE, whole, PAGE))
    code = map_at(at, PAGE, whole)
    print("map the first of four pages:", code)
    if code == 0:
        need(unmap_at(at, PAGE))
    need(map_at(at, 4 * PAGE, whole))
    need(open_at(at, 4 * PAGE))
    code = unmap_at(at, PAGE)
    print("unmap the first page of a mapping of four:", code)
    need(unmap_at(at, 4 * PAGE) if code else 0)
    at = reserve(2 * PAGE)
    for i in range(2):
        need(map_at(at + i * PAGE, PAGE, create(PAGE)))
    print("unmap two mappings by one call:", unmap_at(at, 2 * PAGE))


def second(nbytes: int) -> None:
    fds = json.load(sys.stdin)
    open_gpu()
    pieces = Pieces(fds, nbytes)
    calls_apart(pieces)
    imports_by_threads(pieces)
    all_calls(pieces)
    parts()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pieces", type=int, default=2048)
    parser.add_argument("--piece-mb", type=int, default=2)
    parser.add_argument("--second", action="store_true",
                        help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    nbytes = arguments.piece_mb << 20
    if arguments.second:
        second(nbytes)
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    open_gpu()
    fds = [export(create(nbytes)) for _ in range(arguments.pieces)]
    for fd in fds:
        os.set_inheritable(fd, True)
    subprocess.run(
        [sys.executable, __file__, "--second", "--piece-mb",
         str(arguments.piece_mb)],
        input=json.dumps(fds), text=True, close_fds=False, check=True)


if __name__ == "__main__":
    main()
