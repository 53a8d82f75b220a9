"""What is published to be read in place takes the host once where a disk has it:
the host's pool is smaller than the model. Whatever happens on the way: the
weights are as they were, or an error says what would be enough."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import resource
import subprocess
from typing import Any, Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import same_bytes  # noqa: E402
from failing import Belongings, Calls, drain, watched  # noqa: E402
from models import Words  # noqa: E402
from real_daemon import MIB, RealDaemon, Refused  # noqa: E402

ROWS = 7 * 1024  # 14 MiB of pieces; the pool has 6.
NO_QUOTA = '\n[quota]\nhost_bytes = "auto"\n'


class Node:
    """A hoistd, and what may happen to it and its disk."""

    def __init__(self, make_hoistd: Any, disk: pathlib.Path) -> None:
        self.disk = disk
        self.daemon: RealDaemon = make_hoistd(
            pool=16 * MIB, host=6 * MIB, in_place=24 * MIB,
            extra=f'[disk]\nspill_dir = "{disk}/spill"\n{NO_QUOTA}')

    def drain(self) -> None:
        drain(self.daemon)

    def resume(self) -> None:
        self.daemon.ctl("drain", "--resume")

    def _models(self) -> list[str]:
        return [one["name"] for one in
                json.loads(self.daemon.ctl("models", "--json"))["models"]]

    def forget(self) -> None:
        for name in self._models():
            with contextlib.suppress(Refused):  # It is in use.
                self.daemon.ctl("evict", name, "--forget")

    def be_done_with(self) -> None:
        """In another session, which has only looked at it."""
        with hoist.connect(self.daemon.socket) as session:
            for name in self._models():
                with contextlib.suppress(hoist.NotFound, hoist.DataLoss):
                    session.done_with(session.model(name), forget=True)

    def small_quota(self) -> None:
        self._reload('\n[quota]\nhost_bytes = "2MiB"\ndevice_bytes = "2MiB"\n')

    def no_quota(self) -> None:
        self._reload(NO_QUOTA)

    def _reload(self, quota: str) -> None:
        config = self.daemon.path / "hoistd.toml"
        config.write_text(
            config.read_text().partition("\n[quota]")[0] + quota)
        self.daemon.ctl("reload")

    def fill(self) -> None:
        with contextlib.suppress(OSError), \
                open(self.disk / "filler", "wb", buffering=0) as file:
            while True:
                file.write(bytes(64 << 10))

    def empty(self) -> None:
        (self.disk / "filler").unlink()

    def fail_writes(self) -> None:
        """In the middle of a piece."""
        self._limit(MIB)

    def write_again(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        resource.prlimit(self.daemon.process.pid, resource.RLIMIT_FSIZE,
                         (size, resource.RLIM_INFINITY))

    def cut(self) -> None:
        """What the disk has can be read no more, behind the middle."""
        for name in self._models():
            with contextlib.suppress(Refused):
                self.daemon.ctl("evict", name)
        for image in (self.disk / "spill" / "images").iterdir():
            if image.is_file():
                os.truncate(image, image.stat().st_size // 2)

    def nothing(self) -> None:
        pass


# What happens, and what ends it.
ACTS: dict[str, tuple[Callable[[Node], None], Callable[[Node], None]]] = {
    "drain": (Node.drain, Node.resume),
    "done with": (Node.be_done_with, Node.nothing),
    "forget": (Node.forget, Node.nothing),
    "quota": (Node.small_quota, Node.no_quota),
    "full": (Node.fill, Node.empty),
    "writes fail": (Node.fail_writes, Node.write_again),
    "reads fail": (Node.cut, Node.nothing),
}


@pytest.fixture
def node(make_hoistd: Any, tmp_path: pathlib.Path) -> Iterator[Node]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=32m", "none", disk],
            capture_output=True, check=False).returncode != 0:
        pytest.skip("needs a small disk: root, and to mount a tmpfs")
    try:
        yield Node(make_hoistd, disk)
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


def attach(model: Words, deadline: float = 3) -> None:
    hoist.attach(model, budget="8MiB", in_place="embed", stage_deadline=3,
                 deadline=deadline)


def passes(model: Words, device: torch.device, expected: torch.Tensor) -> None:
    """Of pieces that are cold, and become hot."""
    for budget in "8MiB", "14MiB":
        hoist.set_budget(model, budget)
        assert same_bytes(model.read(device).cpu(), expected)
        hoist.advance(model, wait=True)
    assert same_bytes(model.read(device).cpu(), expected)


def assert_as_it_was(model: Words, device: torch.device,
                     expected: torch.Tensor) -> None:
    plain = Words.on(device, ROWS, 2).state_dict()
    for name, value in model.state_dict().items():
        assert same_bytes(value.cpu(), plain[name].cpu()), name
    assert same_bytes(model.read(device).cpu(), expected)


def refused_as(act: str) -> tuple[type[Exception], str]:
    """What it may be refused with, and what would be enough."""
    return {
        "drain": (hoist.Unavailable, "hoistctl drain --resume"),
        "done with": (NothingRefused, ""),
        "forget": (hoist.Aborted, "attach again"),
        "quota": (hoist.ResourceExhausted, "raise quota.device_bytes"),
        "full": (hoist.ResourceExhausted,
                 "are free: No space left on device"),
        "writes fail": (hoist.ResourceExhausted, "raise RLIMIT_FSIZE"),
        "reads fail": (hoist.DataLoss, "publish it again")}[act]


class NothingRefused(Exception):
    pass


def go_through(node: Node, device: torch.device, calls: Calls, step: Any,
               act: str) -> None:
    """`act` before that call of a life."""
    happens, ends = ACTS[act]
    model = Words.on(device, ROWS, 2)
    expected = model.read(device).cpu().clone()
    own = Belongings(model)
    happened = []

    def happen() -> None:
        happened.append(act)
        happens(node)

    calls.act_at(step, happen)
    was_attached = False
    kind, remedy = refused_as(act)
    try:
        attach(model)
        was_attached = True
        passes(model, device, expected)
        hoist.detach(model)
    except kind as error:
        assert remedy in str(error)
        if "in place" in str(error):  # What one piece lacks is not enough.
            assert "all pieces together take 14.0 MiB in place" in str(error)
    assert happened
    calls.act_no_more()
    if not was_attached:
        own.assert_all_there()
    elif hasattr(model, "_hoist"):
        assert same_bytes(model.read(device).cpu(), expected)
    ends(node)
    if hasattr(model, "_hoist"):
        hoist.detach(model)
    assert_as_it_was(model, device, expected)


STEPS = {
    "first piece": ("hoist_publish_group", 2),
    "piece amid others": ("hoist_publish_group", 4),
    "last piece": ("hoist_publish_group", 7),
    "group": ("hoist_publish_group", 8),
    "in place": "hoist_in_place_create",
    "plan": "hoist_set_plan",
    "budget": "hoist_plan_set_budget",
    "hot": "hoist_in_place_advance",
    "back": ("hoist_host_image_load", 2),
    "done": "hoist_done_with_model"}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("act", ACTS)
def test_the_weights_are_as_they_were(node, device, monkeypatch, act, step):
    with watched(monkeypatch) as calls:
        go_through(node, device, calls, STEPS[step], act)
        # And hoistd takes it, or has it.
        model = Words.on(device, ROWS, 2)
        expected = model.read(device).cpu().clone()
        attach(model, deadline=60)  # It tries the disk again after 10 s.
        passes(model, device, expected)
        hoist.detach(model)
    assert_as_it_was(model, device, expected)
