#!/usr/bin/env python3
"""Whether a piece of an address range can change places while a stream waits for
that, whatever other threads ask of the driver meanwhile; and how fast host memory
that devices map (VMM) is made.

remap_probe.py [hold | create] ...    (needs a GPU; torch, and nothing of hoist)

hold: a stream waits for a word, a thread calls the driver, and another one
unmaps a piece and maps another in its place, then writes the word. "held up"
means that it could not until the stream was let go.
create: allocations of host memory, by several threads, and how long another
call of the driver takes meanwhile.
"""

from __future__ import annotations

import ctypes as c
import sys
import threading
import time
from typing import Any, Callable

import torch

from cuda_driver import Access, Location, Properties, ask

PAGE = 2 << 20
HELD_UP = 2.0  # Seconds.


def size(value: int) -> c.c_size_t:
    return c.c_size_t(value)


def address(value: int) -> c.c_uint64:
    return c.c_uint64(value)


def create(nbytes: int, host: bool) -> c.c_uint64:
    wanted = Properties(type=1, handles=1,
                        location=Location(3, 0) if host else Location(1, 0))
    handle = c.c_uint64()
    ask("cuMemCreate", c.byref(handle), size(nbytes), c.byref(wanted),
        address(0))
    return handle


def reserve(nbytes: int) -> int:
    at = c.c_uint64()
    ask("cuMemAddressReserve", c.byref(at), size(nbytes), size(PAGE),
        address(0), address(0))
    return at.value


def place(at: int, handle: c.c_uint64, nbytes: int, again: bool) -> None:
    if again:
        ask("cuMemUnmap", address(at), size(nbytes))
    ask("cuMemMap", address(at), size(nbytes), size(0), handle, address(0))
    for_reading = Access(Location(1, 0), 1)
    ask("cuMemSetAccess", address(at), size(nbytes), c.byref(for_reading),
        size(1))


KERNEL = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry nothing_%d() { ret; }
"""


class Held:
    """A stream that waits for a word of pinned memory."""

    def __init__(self) -> None:
        self.word = torch.zeros(1, dtype=torch.int32).pin_memory()
        self.stream = torch.cuda.Stream()
        self.other = torch.cuda.Stream()
        self.turn = 0
        self.pieces = [create(4 * PAGE, host) for host in (False, True)]
        self.at = reserve(4 * PAGE)
        place(self.at, self.pieces[0], 4 * PAGE, again=False)

    def hold(self) -> None:
        self.turn += 1
        ask("cuStreamWaitValue32_v2", c.c_void_p(self.stream.cuda_stream),
            address(self.word.data_ptr()), c.c_uint32(self.turn), c.c_uint(0))

    def release(self) -> None:
        self.word[0] = self.turn


def try_beside(held: Held, name: str, work: Callable[[], Any],
               prepare: Callable[[], Any] = lambda: None) -> None:
    prepared = prepare()
    torch.cuda.synchronize()
    held.hold()
    took: list[float] = []
    failed: list[BaseException] = []

    def change_places() -> None:
        begin = time.perf_counter()
        try:
            place(held.at, held.pieces[held.turn % 2], 4 * PAGE, again=True)
        except BaseException as error:
            failed.append(error)
        took.append(time.perf_counter() - begin)
        held.release()

    def call() -> None:
        torch.ones(1, device="cuda")  # The thread has a context from here on.
        try:
            work() if prepared is None else work(prepared)  # type: ignore[call-arg]
        except BaseException as error:
            failed.append(error)

    calls = threading.Thread(target=call)
    calls.start()
    time.sleep(0.05)
    changes = threading.Thread(target=change_places)
    changes.start()
    changes.join(HELD_UP)
    verdict = "ok"
    if changes.is_alive():
        verdict = "HELD UP"
        held.release()
        changes.join()
    calls.join()
    torch.cuda.synchronize()
    print(f"{name:44} {1e3 * took[0]:9.3f} ms  {verdict} "
          f"{failed[0] if failed else ''}", flush=True)


def hold() -> None:
    held = Held()
    device = torch.ones(1, device="cuda")
    on_stream = torch.cuda.stream(held.stream)
    modules = iter(range(100))
    pointer = c.c_uint64()
    host_pointer = c.c_void_p()

    def many(count: int) -> None:
        with torch.cuda.stream(held.stream):
            for _ in range(count):
                device.add_(1)

    def copy_back() -> None:
        with torch.cuda.stream(held.stream):
            device.item()

    def load_module() -> None:
        module = c.c_void_p()
        ask("cuModuleLoadData", c.byref(module),
            (KERNEL % next(modules)).encode())

    def graph() -> None:
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made, stream=held.other):
            device.add(1)

    def event() -> None:
        marked = torch.cuda.Event()
        marked.record(held.stream)
        marked.synchronize()

    with on_stream:
        device.add_(1)
        device.item()
    pageable = torch.ones(1 << 20)
    for name, work in [
            ("nothing", lambda: None),
            ("cudaDeviceSynchronize", torch.cuda.synchronize),
            ("cudaStreamSynchronize", held.stream.synchronize),
            ("cudaEventSynchronize", event),
            ("a copy to the host, waited for", copy_back),
            ("a copy from pageable memory, other stream",
             lambda: pageable.to("cuda")),
            ("500 kernels behind it", lambda: many(500)),
            ("5000 kernels behind it", lambda: many(5000)),
            ("cuMemAlloc", lambda: ask("cuMemAlloc_v2", c.byref(pointer),
                                       size(64 << 20))),
            ("cuMemFree", lambda: ask("cuMemFree_v2", pointer)),
            ("cuMemAllocHost", lambda: ask("cuMemAllocHost_v2",
                                           c.byref(host_pointer),
                                           size(64 << 20))),
            ("cuMemFreeHost", lambda: ask("cuMemFreeHost", host_pointer)),
            ("cuModuleLoadData", load_module),
            ("a graph is captured and made", graph),
            ("empty_cache", torch.cuda.empty_cache)]:
        try_beside(held, name, work)


def longest_call(until: threading.Event) -> list[float]:
    found = [0.0]
    pointer = c.c_uint64()
    torch.cuda.current_stream()
    one = torch.ones(1, device="cuda")
    while not until.is_set():
        begin = time.perf_counter()
        ask("cuMemAlloc_v2", c.byref(pointer), size(4 << 20))
        ask("cuMemFree_v2", pointer)
        one.add_(1)
        torch.cuda.synchronize()
        found[0] = max(found[0], time.perf_counter() - begin)
        time.sleep(0.001)
    return found


def make(total: int, each: int, threads: int) -> None:
    made: list[c.c_uint64] = []
    left = iter(range(total // each))
    lock = threading.Lock()
    over = threading.Event()
    longest: list[float] = []

    def work() -> None:
        torch.cuda.current_stream()
        torch.cuda.set_device(0)
        torch.ones(1, device="cuda")
        while True:
            with lock:
                if next(left, None) is None:
                    return
            handle = create(each, host=True)
            with lock:
                made.append(handle)

    beside = threading.Thread(target=lambda: longest.extend(
        longest_call(over)))
    beside.start()
    begin = time.perf_counter()
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took = time.perf_counter() - begin
    over.set()
    beside.join()
    begin = time.perf_counter()
    for handle in made:
        ask("cuMemRelease", handle)
    freed = time.perf_counter() - begin
    print(f"{total >> 30:3} GiB in pieces of {each >> 20:5} MiB by "
          f"{threads:2} threads: {took:6.2f} s, {total / took / 1e9:5.1f} GB/s; "
          f"another call took up to {1e3 * longest[0]:6.0f} ms; freed in "
          f"{freed:.2f} s", flush=True)


def main() -> None:
    torch.ones(1, device="cuda")
    wanted = sys.argv[1:] or ["hold", "create"]
    if "hold" in wanted:
        hold()
    if "create" in wanted:
        for each, threads in [(64, 1), (64, 16), (2, 16), (16, 16), (512, 16),
                              (512, 1)]:
            make(8 << 30, each << 20, threads)
        make(64 << 30, 64 << 20, 16)


if __name__ == "__main__":
    main()
