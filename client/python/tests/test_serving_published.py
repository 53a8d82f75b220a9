"""Those that publish: their locks, and what they find half-way."""

from __future__ import annotations

import json
import multiprocessing
import os

import pytest

pytest.importorskip("torch")

import hoist  # noqa: E402
import torch  # noqa: E402
from hoist.serving._published import (Manifest, one_at_a_time,  # noqa: E402
                                      publish)
from hoist.serving._recipes import Cut  # noqa: E402
from torch import nn  # noqa: E402


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / f"hoist-publish-{os.getuid()}"


def add(path, times):
    for _ in range(times):
        with one_at_a_time("name", 60):
            value = int(path.read_text())
            path.write_text(str(value + 1))


def test_one_is_in_the_block_and_none_leaves_a_file(tmp_path, folder):
    count = tmp_path / "count"
    count.write_text("0")
    fork = multiprocessing.get_context("fork")
    adders = [fork.Process(target=add, args=(count, 20)) for _ in range(4)]
    for one in adders:
        one.start()
    for one in adders:
        one.join()
    assert count.read_text() == "80"
    assert not list(folder.iterdir())


def test_who_died_in_the_block_keeps_nobody_out(folder):
    def die():
        with one_at_a_time("name", 60):
            os._exit(0)

    dying = multiprocessing.get_context("fork").Process(target=die)
    dying.start()
    dying.join()
    with one_at_a_time("name", 0):
        assert len(list(folder.iterdir())) == 1


def test_who_waits_too_long_is_told_for_whom(folder):
    with one_at_a_time("name", 0):
        with one_at_a_time("other", 0):
            with pytest.raises(hoist.DeadlineExceeded, match='"name"'):
                with one_at_a_time("name", 0.01):
                    pytest.fail("two are in the block")


def test_a_folder_that_another_has_made_is_not_locked_in(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    with pytest.raises(hoist.FailedPrecondition, match="not a folder of this"):
        with one_at_a_time("name", 0):
            pytest.fail("it is another's")
    assert not list(elsewhere.iterdir())


class Session:
    """As far as publishing goes: of one model, its groups."""

    def __init__(self):
        self.groups = {}

    def publish(self, model, group, tensors, deadline):
        given = {name: one.tolist() for name, one in tensors.items()}
        if self.groups.setdefault(group, given) != given:
            raise hoist.AlreadyExists(group)

    def model(self, name):
        return self.groups

    def forget(self, model):
        model.clear()


def test_what_was_left_half_way_makes_room_and_what_is_whole_does_not():
    session = Session()
    session.groups["(outside)"] = {"weight": [[7.0]], "bias": [7.0]}
    session.groups["0"] = {}
    module = nn.Linear(1, 1)
    publish(session, "name", {}, module, 1)
    whole = dict(session.groups)
    assert set(whole) == {"(outside)", "(manifest)"}
    with torch.no_grad():
        module.weight.add_(1)
    with pytest.raises(hoist.AlreadyExists):
        publish(session, "name", {}, module, 1)
    assert session.groups == whole


def test_a_tensor_that_is_cut_is_published_in_groups_of_its_pieces():
    session, module = Session(), nn.Linear(3, 2, bias=False)
    cut = Cut(piece_bytes=16, units=2)
    publish(session, "name", {}, module, 1, {"weight": cut})
    manifest = session.groups.pop("(manifest)")["manifest"]
    said = json.loads(bytes(manifest))
    held = tuple((tuple(names), kind, tuple(shape), dtype)
                 for names, kind, shape, dtype in said["held"])
    found = Manifest({}, held, {"weight": Cut(*said["cuts"]["weight"])})
    pieces = found.pieces["weight"]
    assert (pieces.shape, pieces.units, found.stored) == ((2, 3), 2, {})
    assert len(pieces.groups) == 2 and set(pieces.groups) == set(session.groups)
    assert [one for group in pieces.groups
            for one in session.groups[group][group]
            ] == module.weight.flatten().tolist()
