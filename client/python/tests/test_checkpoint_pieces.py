"""Tensors that are made of pieces of files' tensors."""

from __future__ import annotations

import math
import random
import sys

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from hoist.checkpoint import _pieces  # noqa: E402
from hoist.checkpoint._pieces import (Piece, Source, concatenate, reshape,  # noqa: E402
                              split, stack, whole)
from hoist.checkpoint._safetensors import FileTensor  # noqa: E402


class Files:
    """Tensors as if in files: `made` pairs what torch makes of them with what
    the pieces say."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.tensors: dict[str, torch.Tensor] = {}

    def one(self, shape: list[int]) -> tuple[torch.Tensor, Source]:
        name = f"t{len(self.tensors)}"
        start = 1000 * len(self.tensors)
        tensor = torch.arange(start, start + math.prod(shape)).reshape(shape)
        self.tensors[name] = tensor
        return tensor, whole(name, FileTensor("I64", tuple(shape)))

    def check(self, expected: torch.Tensor, source: Source) -> None:
        """The pieces are the tensor, and keep what a Source promises."""
        parts = [self.tensors[piece.tensor].flatten()[
            piece.start:piece.start + piece.count] for piece in source.pieces]
        assert source.shape == tuple(expected.shape)
        assert torch.equal(torch.cat([torch.empty(0, dtype=torch.int64),
                                      *parts]), expected.flatten())
        for piece, part in zip(source.pieces, parts):
            assert 0 < piece.count == part.numel()
        for last, piece in zip(source.pieces, source.pieces[1:]):
            assert (last.tensor, last.start + last.count) != (piece.tensor,
                                                              piece.start)
        if source.file_tensor is not None:
            assert torch.equal(self.tensors[source.file_tensor], expected)

    def shape(self, least: int = 0) -> list[int]:
        return [self._chance.randint(least, 4)
                for _ in range(self._chance.randint(1, 4))]


@pytest.fixture
def files(chance: random.Random) -> Files:
    return Files(chance)


def sizes_of(chance: random.Random, length: int) -> list[int]:
    """Random ones that add up to it, some of them 0."""
    cuts = sorted(chance.randint(0, length)
                  for _ in range(chance.randint(0, 3)))
    return [end - start for start, end in zip([0, *cuts], [*cuts, length])]


def test_stacking_is_torchs(files):
    for _ in range(50):
        shape = files.shape()
        made = [files.one(shape) for _ in range(3)]
        for dim in range(-len(shape) - 1, len(shape) + 1):
            files.check(torch.stack([one for one, _ in made], dim),
                        stack([source for _, source in made], dim))


def test_concatenating_is_torchs(files, chance):
    for _ in range(50):
        shape = files.shape()
        for dim in range(-len(shape), len(shape)):
            made = []
            for _ in range(chance.randint(1, 3)):
                shape[dim] = chance.randint(0, 4)
                made.append(files.one(shape))
            files.check(torch.cat([one for one, _ in made], dim),
                        concatenate([source for _, source in made], dim))


def test_splitting_is_torchs(files, chance):
    for _ in range(50):
        shape = files.shape()
        tensor, source = files.one(shape)
        for dim in range(-len(shape), len(shape)):
            sizes = sizes_of(chance, shape[dim])
            parts = split(source, sizes, dim)
            for expected, part in zip(torch.split(tensor, sizes, dim), parts,
                                      strict=True):
                files.check(expected, part)


def test_any_of_them_after_one_another_is_torchs(files, chance):
    for _ in range(50):
        pool = [files.one(files.shape(1)) for _ in range(2)]
        for _ in range(6):
            tensor, source = chance.choice(pool)
            dim = chance.randrange(tensor.ndim)
            what = chance.choice(["split", "cat", "stack", "reshape"])
            if what == "split":
                sizes = sizes_of(chance, tensor.shape[dim])
                pool += zip(torch.split(tensor, sizes, dim),
                            split(source, sizes, dim))
            elif what == "reshape":
                shape = [math.prod(tensor.shape[:dim]),
                         math.prod(tensor.shape[dim:])]
                pool.append((tensor.reshape(shape), reshape(source, shape)))
            else:
                alike = [one for one in pool if one[0].shape == tensor.shape]
                ours = {"cat": concatenate, "stack": stack}[what]
                theirs = getattr(torch, what)
                pool.append((theirs([one for one, _ in alike[:3]], dim),
                             ours([one for _, one in alike[:3]], dim)))
            files.check(*pool[-1])


def test_what_was_split_is_one_piece_again_when_it_is_joined(files):
    tensor, source = files.one([6, 4])
    for dim in (0, 1):
        again = concatenate(split(source, [1, 2, tensor.shape[dim] - 3], dim),
                            dim)
        assert again.pieces == source.pieces == (Piece("t0", 0, 24),)


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)], ids=str)
def test_a_whole_tensor_is_known_by_its_name(shape):
    source = whole("a.weight", FileTensor("BF16", shape))
    assert (source.dtype, source.shape) == ("BF16", shape)
    assert source.file_tensor == "a.weight"
    assert reshape(source, shape).file_tensor == "a.weight"
    assert stack([source]).file_tensor is None
    assert reshape(source, (1, *shape)).file_tensor is None
    if shape:
        assert concatenate([source], 0) == source
        assert split(source, [shape[0]], 0) == [source]
        beside = whole("empty", FileTensor("BF16", (0, *shape[1:])))
        if source.elements:
            assert concatenate([beside, source], 0) == source
            assert split(source, [0, shape[0]], 0)[1] == source


def test_a_dimension_that_is_not_there_is_refused(files):
    _, source = files.one([2, 3])
    for call in (lambda: concatenate([source], 2), lambda: stack([source], 3),
                 lambda: split(source, [2], -3)):
        with pytest.raises(hoist.InvalidArgument, match="no dimension"):
            call()


def test_what_does_not_fit_is_refused(files):
    _, one = files.one([2, 3])
    _, other = files.one([2, 4])
    _, flat = files.one([6])
    with pytest.raises(hoist.InvalidArgument,
                       match=r"\(2, 3\), \(2, 4\)"):
        concatenate([one, other], 0)
    with pytest.raises(hoist.InvalidArgument, match="concatenate"):
        concatenate([one, flat], 0)
    with pytest.raises(hoist.InvalidArgument, match="stack"):
        stack([one, other])
    for sizes in ([1, 1], [4, -1], []):
        with pytest.raises(hoist.InvalidArgument, match="does not split"):
            split(one, sizes, 1)
    with pytest.raises(hoist.InvalidArgument, match="reshape"):
        reshape(one, [5])
    for call in (lambda: stack([]), lambda: concatenate([], 0)):
        with pytest.raises(hoist.InvalidArgument, match="no tensors"):
            call()


def test_tensors_of_two_types_are_not_joined():
    made = [whole(dtype, FileTensor(dtype, (2,))) for dtype in ("F32", "BF16")]
    for join in (stack, concatenate):
        with pytest.raises(hoist.InvalidArgument, match="BF16, F32"):
            join(made, 0)


def test_too_many_pieces_are_refused_and_say_what_would_do(monkeypatch):
    monkeypatch.setattr(_pieces, "MAX_PIECES", 100)
    fit = [whole(name, FileTensor("F32", (50, 2))) for name in "ab"]
    tall = [whole(name, FileTensor("F32", (51, 2))) for name in "ab"]
    assert len(concatenate(fit, 1).pieces) == 100
    with pytest.raises(hoist.Unimplemented, match="100 pieces.*hoist.attach"):
        concatenate(tall, 1)
    with pytest.raises(hoist.Unimplemented, match="hoist.attach"):
        split(whole("tall", FileTensor("F32", (101, 2))), [1, 1], 1)


def test_a_tall_matrix_is_refused_before_it_is_taken_apart():
    tall = [whole(name, FileTensor("U8", (sys.maxsize, 1))) for name in "ab"]
    with pytest.raises(hoist.Unimplemented):
        concatenate(tall, 1)
