"""Engines over hoistd's memory: the first one, later ones, several at once."""

from __future__ import annotations

import os
import pathlib

import pytest
from conftest import make_deepseek

pytest.importorskip("vllm")

import hoist  # noqa: E402


def forget_pages(folder: pathlib.Path) -> None:
    """Of the page cache, so that whoever reads the files reads a disk."""
    for path in folder.glob("*.safetensors"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def io_of(pid: int) -> dict[str, int]:
    lines = pathlib.Path(f"/proc/{pid}/io").read_text().splitlines()
    return {name: int(value) for name, value in
            (line.split(": ") for line in lines)}


def weights_bytes(folder: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def test_the_first_engine_takes_all_from_recipes_and_says_the_same(
        start, hoistd, disk_tokens):
    engine = start()
    assert engine.ask("generate") == disk_tokens
    (facts,) = engine.facts()
    assert facts["shared"] == facts["bytes"] > 20 << 20
    assert facts["dirty"] == 0
    with hoist.connect(hoistd.socket) as session:
        assert not session.model(facts["model"]).published


def test_a_second_engine_reads_and_copies_nothing(start, hoistd, llama,
                                                  disk_tokens):
    start()
    forget_pages(llama)
    hoistd.count_anew()
    before = io_of(hoistd.process.pid)["read_bytes"]
    second = start()
    loaded = second.ask("loaded")
    assert loaded["external"] >= second.facts()[0]["bytes"]
    assert second.ask("generate") == disk_tokens
    # Both look at the files' headers: pages, and what is read ahead of them.
    assert io_of(hoistd.process.pid)["read_bytes"] - before <= 64 << 10
    counted = hoistd.counters()
    assert counted["file_read_bytes"] == 0
    assert counted["host_to_device_bytes"] == 0
    assert loaded["read_bytes"] <= 1 << 20
    print(f"loading took {loaded['load_ms']:.1f} ms")


def test_four_engines_hold_the_weights_once(start, hoistd, llama):
    engines = [start()]
    on_device = hoistd.tier("DEVICE")["used_bytes"]
    engines += [start.begin() for _ in range(3)]
    for engine in engines[1:]:
        assert engine.answer() == "ready"
    used = hoistd.tier("HOST")["used_bytes"]
    assert used <= 1.01 * weights_bytes(llama)
    assert hoistd.tier("DEVICE")["used_bytes"] == on_device
    assert {engine.facts()[0]["model"] for engine in engines} == {
        engines[0].facts()[0]["model"]}


def test_two_ranks_read_each_byte_once_and_say_the_same(start, hoistd, llama):
    # Two ranks add in another order than one, and round otherwise.
    with start(tensor_parallel_size=2, load_format="auto") as of_disk:
        tokens = of_disk.ask("generate")
    engine = start(tensor_parallel_size=2)
    assert engine.ask("generate") == tokens
    ranks = engine.facts()
    assert len(ranks) == 2
    for facts in ranks:
        assert facts["shared"] == facts["bytes"]
        assert facts["dirty"] == 0
    assert sum(facts["bytes"] for facts in ranks) > weights_bytes(llama) * 0.99
    # A page more or less at the ends of what is read.
    assert hoistd.counters()["file_read_bytes"] <= 1.01 * weights_bytes(llama)
    assert hoistd.tier("HOST")["used_bytes"] <= 1.01 * weights_bytes(llama)


def test_what_vllm_makes_of_weights_is_shared_as_they_are(start, tmp_path):
    # No more than that: vLLM's latent attention does not run on every CPU.
    (facts,) = start(model=make_deepseek(tmp_path / "deepseek")).facts()
    assert facts["shared"] == facts["bytes"] and facts["dirty"] == 0


def test_what_was_evicted_is_had_of_the_files_again(start, hoistd,
                                                    disk_tokens):
    with start() as first:
        (name,) = {facts["model"] for facts in first.facts()}
    for tier in ("device", "host"):
        hoistd.ctl("evict", name, "--tier", tier)
    assert hoistd.counters()["spill_written_bytes"] == 0
    assert start().ask("generate") == disk_tokens
    assert hoistd.counters()["spill_written_bytes"] == 0


def test_tokens_go_on_when_hoistd_is_killed(start, hoistd, disk_tokens):
    engine = start()
    assert engine.ask("generate") == disk_tokens
    engine.send("generate", tokens=96)
    hoistd.kill()
    long = engine.answer()
    assert [one[:24] for one in long] == disk_tokens
    assert engine.ask("generate", tokens=96) == long
