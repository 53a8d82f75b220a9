"""Tensors that are made of pieces of files' tensors, end to end.

Pieces can express stacking, concatenating, splitting and reshaping, along any
dimension. They cannot express changes of elements, or moves of single ones.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Iterator, Sequence

from .._errors import InvalidArgument, Unimplemented
from ._safetensors import FileTensor

MAX_PIECES = 1_000_000  # Of one tensor.


@dataclasses.dataclass(frozen=True)
class Piece:
    """`count` elements of a file's tensor from its element `start` on, in
    row-major order."""

    tensor: str
    start: int
    count: int


@dataclasses.dataclass(frozen=True)
class Source:
    """A tensor from the files: pieces of their tensors, end to end, row-major.
    dtype as in safetensors.

    No piece is empty, no two neighbours can be merged, and their counts add up
    to the shape's elements. `file_tensor` is the name if it is one of the
    files' tensors, whole and in its own shape.
    """

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    file_tensor: str | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def whole(name: str, tensor: FileTensor) -> Source:
    """The files' tensor of that name."""
    count = math.prod(tensor.shape)
    return Source(tensor.dtype, tensor.shape,
                  (Piece(name, 0, count),) if count else (), name)


def reshape(source: Source, shape: Sequence[int]) -> Source:
    """The same elements; InvalidArgument: the shape has more or fewer."""
    shape = tuple(shape)
    if shape == source.shape:
        return source
    if math.prod(shape) != source.elements:
        raise InvalidArgument(f"{source.shape} does not reshape to {shape}")
    return Source(source.dtype, shape, source.pieces)


def stack(sources: Sequence[Source], dim: int = 0) -> Source:
    """As torch.stack; errors are concatenate's."""
    if not sources:
        raise InvalidArgument("no tensors to stack")
    shape = sources[0].shape
    if any(source.shape != shape for source in sources):
        raise InvalidArgument(_differ("stack", sources))
    dim = _dimension(dim, len(shape) + 1)
    apart = shape[:dim] + (1,) + shape[dim:]
    return concatenate([reshape(source, apart) for source in sources], dim)


def concatenate(sources: Sequence[Source], dim: int) -> Source:
    """As torch.cat of tensors of one type.

    InvalidArgument: types differ, or shapes, except along `dim`. Unimplemented:
    the result has more than MAX_PIECES.
    """
    if not sources:
        raise InvalidArgument("no tensors to concatenate")
    first = sources[0]
    dim = _dimension(dim, len(first.shape))
    rest = first.shape[:dim] + first.shape[dim + 1:]
    if any(len(source.shape) != len(first.shape)
           or source.shape[:dim] + source.shape[dim + 1:] != rest
           for source in sources):
        raise InvalidArgument(_differ("concatenate", sources))
    types = sorted({source.dtype for source in sources})
    if len(types) > 1:
        raise InvalidArgument(f"tensors of different types, {', '.join(types)},"
                              " cannot be one")
    length = sum(source.shape[dim] for source in sources)
    shape = first.shape[:dim] + (length,) + first.shape[dim + 1:]
    filled = [source for source in sources if source.elements]
    if len(filled) < 2:
        return reshape((filled or sources)[0], shape)
    made = _Pieces()
    readers = [(_Reader(source), math.prod(source.shape[dim:]))
               for source in filled]
    for _ in range(math.prod(shape[:dim])):
        for reader, run in readers:
            made.add_all(reader.take(run))
    return Source(first.dtype, shape, made.done())


def split(source: Source, sizes: Sequence[int], dim: int) -> list[Source]:
    """As torch.split with a list of sizes.

    InvalidArgument: they do not add up to the dimension's. Unimplemented: a
    part has more than MAX_PIECES.
    """
    dim = _dimension(dim, len(source.shape))
    if any(size < 0 for size in sizes) or sum(sizes) != source.shape[dim]:
        raise InvalidArgument(f"dimension {dim} of {source.shape} does not "
                              f"split into {list(sizes)}")
    if source.shape[dim] in sizes:  # All of it is in one part.
        made = [source.pieces if size else () for size in sizes]
    else:
        inner = math.prod(source.shape[dim + 1:])
        reader, parts = _Reader(source), [_Pieces() for _ in sizes]
        for _ in range(math.prod(source.shape[:dim]) if inner else 0):
            for part, size in zip(parts, sizes):
                part.add_all(reader.take(size * inner))
        made = [part.done() for part in parts]
    shapes = [source.shape[:dim] + (size,) + source.shape[dim + 1:]
              for size in sizes]
    return [source if shape == source.shape
            else Source(source.dtype, shape, pieces)
            for shape, pieces in zip(shapes, made)]


def _dimension(dim: int, dimensions: int) -> int:
    if not -dimensions <= dim < dimensions:
        raise InvalidArgument(f"there is no dimension {dim} among {dimensions}")
    return dim % dimensions


def _differ(verb: str, sources: Sequence[Source]) -> str:
    shapes = list(dict.fromkeys(source.shape for source in sources))
    said = ", ".join(str(shape) for shape in shapes[:5])
    return f"tensors of these shapes do not {verb}: {said}"


class _Reader:
    """Reads a source's pieces, from its first element on."""

    def __init__(self, source: Source) -> None:
        self._pieces = iter(source.pieces)
        self._piece = Piece("", 0, 0)
        self._used = 0

    def take(self, count: int) -> Iterator[Piece]:
        """The next `count` elements, which must exist."""
        while count:
            if self._used == self._piece.count:
                self._piece, self._used = next(self._pieces), 0
            took = min(count, self._piece.count - self._used)
            yield Piece(self._piece.tensor, self._piece.start + self._used,
                        took)
            self._used += took
            count -= took


class _Pieces:
    """Appends pieces, and merges neighbours."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def add_all(self, pieces: Iterator[Piece]) -> None:
        for piece in pieces:
            last = self._pieces[-1] if self._pieces else None
            if last is not None and last.tensor == piece.tensor and (
                    last.start + last.count == piece.start):
                self._pieces[-1] = Piece(last.tensor, last.start,
                                         last.count + piece.count)
            elif len(self._pieces) == MAX_PIECES:
                raise Unimplemented(
                    f"more than {MAX_PIECES} pieces of the files' tensors make "
                    "one of the module's; hoist.attach takes the module once "
                    "it is loaded")
            else:
                self._pieces.append(piece)

    def done(self) -> tuple[Piece, ...]:
        return tuple(self._pieces)
