"""Pairs of saved-tensor hooks: nested in any order, each does what it does
alone."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hoist import _saved_tensors as saved  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


class Doubles:
    """Keeps twice the bytes' value, so that each tensor shows who had it."""

    def __init__(self, passes: Any = lambda tensor: False) -> None:
        self.passes = passes
        self.packed = self.unpacked = 0

    def pack(self, tensor: torch.Tensor) -> Any:
        assert not torch.is_grad_enabled()
        if self.passes(tensor):
            return saved.PASS
        self.packed += 1
        return tensor.detach() * 2

    def unpack(self, packed: Any) -> torch.Tensor:
        self.unpacked += 1
        return packed / 2


class Theirs(torch.autograd.graph.saved_tensors_hooks):
    """A pair of somebody who knows nothing of ours."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []
        self.asked = 0
        super().__init__(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> Any:
        self.seen.append(tensor.detach().clone())
        return len(self.seen) - 1

    def _unpack(self, packed: Any) -> torch.Tensor:
        self.asked += 1
        return self.seen[packed]


def depth() -> int:
    """Pairs on this thread's stack."""
    found = []
    while (top := saved._top()) is not None:
        found.append(top)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    for one in reversed(found):
        torch._C._autograd._push_saved_tensors_default_hooks(*one)
    return len(found)


@pytest.fixture(autouse=True)
def nothing_is_left():
    claimers = saved._claimers  # hoist.nn's, where it was imported.
    yield
    assert depth() == 0 and saved._claimers == claimers


def a_leaf(count: int = 3) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(count, requires_grad=True)


def grad_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(y.sum(), x)[0]


def test_what_nobody_takes_is_kept_and_computes_the_same():
    x = a_leaf()
    with saved.pushed():
        y = (x * x).exp()
    assert torch.equal(grad_of(x, y), grad_of(x, (x * x).exp()))


def test_the_innermost_comes_first_and_passes_on():
    x = a_leaf()
    outer, inner = Doubles(), Doubles(lambda one: one.shape == (3,))
    with saved.pushed(outer), saved.pushed(inner):
        y = x.exp()
        z = torch.randn(4, requires_grad=True).exp()
    assert (outer.packed, inner.packed) == (1, 1)
    assert torch.equal(grad_of(x, y), y)
    assert (outer.unpacked, inner.unpacked) == (1, 0)
    del z


def test_it_hands_on_to_a_pair_that_is_not_ours():
    x = a_leaf()
    theirs, inner = Theirs(), Doubles(lambda one: one.shape == (3,))
    with theirs, saved.pushed(), saved.pushed(inner):
        y = x.exp()
    assert len(theirs.seen) == 1 and inner.packed == 0
    assert torch.equal(grad_of(x, y), y) and theirs.asked == 1


def test_one_that_is_not_ours_within_has_all_of_it():
    x = a_leaf()
    theirs, outer = Theirs(), Doubles()
    with saved.pushed(outer):
        with theirs:
            y = x.exp()
        z = x.exp()
    assert (len(theirs.seen), outer.packed) == (1, 1)
    assert torch.equal(grad_of(x, y + z), 2 * y)


@pytest.fixture
def claimed():
    """A weight that is overwritten, and brought again; and how often."""
    weight, bytes_of_it, brought = torch.ones(3) * 3, torch.ones(3) * 3, []

    def claim(tensor: torch.Tensor) -> Any:
        if tensor.data_ptr() != weight.data_ptr():
            return None
        return lambda: brought.append(1) or bytes_of_it.clone()

    saved.add_claimer(claim)
    yield weight, brought
    saved.remove_claimer(claim)
    assert claim not in saved._claimers


@pytest.mark.parametrize("around", ["ours", "theirs", "both"])
def test_claimers_come_before_any_pair(claimed, around):
    weight, brought = claimed
    x, ours, theirs = a_leaf(), Doubles(), Theirs()
    contexts = {"ours": [saved.pushed(ours)],
                "theirs": [theirs, saved.pushed()],
                "both": [theirs, saved.pushed(ours)]}[around]
    with contexts[0]:
        if len(contexts) > 1:
            with contexts[1]:
                y = x * weight
        else:
            y = x * weight
    weight.zero_()  # Another's bytes; no change to what was saved.
    assert torch.equal(grad_of(x, y), torch.ones(3) * 3)
    assert brought == [1] and not ours.packed and not theirs.seen


def saved_output(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


def test_a_tensor_that_was_changed_is_found_as_torch_finds_it():
    said = []
    for ours in (None, lambda: saved.pushed(), lambda: saved.pushed(Doubles())):
        x = a_leaf()
        if ours is None:
            y = saved_output(x)
        else:
            with ours():
                y = saved_output(x)
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace") as at:
            y.sum().backward()
        # As torch 2.13 names nodes; older ones say Backward0, too.
        said.append(re.sub(r"Backward[0-9]*,", ",", str(at.value)))
    assert said[1:] == said[:1] * 2


def test_a_view_of_it_that_was_changed_counts():
    x = a_leaf()
    with saved.pushed(Doubles()):
        y = x.exp()
    with torch.no_grad():
        y.view(-1)[0] = 0
    with pytest.raises(RuntimeError, match="is at version 1; expected version 0"):
        y.sum().backward()


class WritesToWhatItSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        x.mul_(gradient)
        return x * 2


class Lends(Doubles):
    """Gives the same memory each time, as one does who has one copy of it."""

    def pack(self, tensor: torch.Tensor) -> Any:
        return tensor.detach().clone()

    def unpack(self, packed: Any) -> torch.Tensor:
        return packed.view_as(packed)


@pytest.mark.parametrize("packer", [None, Lends()], ids=["kept", "packed"])
def test_what_a_backward_writes_to_is_found_by_the_next(packer):
    for pushed in (torch.enable_grad, lambda: saved.pushed(packer)):
        x = a_leaf() * 3
        with pushed():
            y = WritesToWhatItSaved.apply(x)
        y.sum().backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            y.sum().backward()
        x = a_leaf() * 3
        with pushed():
            y = x * x + WritesToWhatItSaved.apply(x)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            y.sum().backward()


def test_the_check_keeps_no_memory():
    x = a_leaf(1000)

    class Drops:
        def pack(self, tensor: torch.Tensor) -> Any:
            return "nothing"

        def unpack(self, packed: Any) -> torch.Tensor:
            raise AssertionError

    with saved.pushed(Drops()):
        y = x.exp()
    memory = weakref.ref(y.untyped_storage())
    z = y.sum()
    del y
    gc.collect()
    assert memory() is None and z.grad_fn is not None


def test_no_graph_keeps_itself():
    """As it would where an output were kept with its graph."""
    x = a_leaf()
    leaf = weakref.ref(x)  # Which its graph keeps.
    with saved.pushed():
        y = x.exp()
    gc.disable()
    try:
        del x
        assert leaf() is not None
        del y
        assert leaf() is None
    finally:
        gc.enable()


def test_a_second_derivative_goes_through_it():
    def second(x: torch.Tensor) -> torch.Tensor:
        first, = torch.autograd.grad((x ** 3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    x = a_leaf()
    expected = second(x)
    with saved.pushed(Doubles()):
        assert torch.equal(second(x), expected)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("claims", ["always", "first", "again"])
def test_a_checkpoint_works_in_and_around_it(claimed, reentrant, inside,
                                             claims):
    """Also where a weight is claimed in one of its two runs only, as one that
    stays where it is from then on."""
    weight, brought = claimed
    turns = []
    doubles = Doubles()
    claim = saved._claimers[-1]

    def sometimes(tensor: torch.Tensor) -> Any:
        if claims == ("again" if len(turns) == 1 else "first"):
            return None
        return claim(tensor)

    def block(x: torch.Tensor) -> torch.Tensor:
        turns.append(1)
        if inside:
            with saved.pushed(doubles):
                return ((x * weight).exp() * weight).sin()
        return ((x * weight).exp() * weight).sin()

    x = a_leaf()
    block(x).sum().backward()
    expected, x.grad = x.grad, None
    turns.clear()
    before = doubles.packed
    saved.remove_claimer(claim)
    saved.add_claimer(sometimes)
    try:
        if inside:
            y = checkpoint(block, x, use_reentrant=reentrant)
        else:
            with saved.pushed(doubles):
                y = checkpoint(block, x, use_reentrant=reentrant)
        y.sum().backward()
    finally:
        saved.remove_claimer(sometimes)
        saved.add_claimer(claim)
    assert torch.equal(x.grad, expected)
    assert len(turns) == 2
    if not reentrant and inside:  # What is dropped needs no other place.
        assert doubles.packed == before


@pytest.mark.parametrize("how", ["within", "crossed"])
def test_it_is_removed_wherever_it_stands(how):
    theirs = Theirs()
    ours = saved.push(Doubles())
    assert ours is not None
    theirs.__enter__()
    if how == "within":
        theirs.__exit__()
        ours.remove()
    else:
        ours.remove()
        assert saved._top()[0] == theirs.pack_hook
        theirs.__exit__()
    assert depth() == 0
    ours.remove()


def test_removing_what_is_not_there_leaves_the_rest():
    gone = saved.push()
    assert gone is not None
    gone.remove()
    with saved.pushed():
        gone.remove()
        assert depth() == 1


def test_a_pair_is_its_threads_own():
    seen = []
    with saved.pushed(Doubles()):
        thread = threading.Thread(target=lambda: seen.append(depth()))
        thread.start()
        thread.join()
    assert seen == [0]


def test_where_hooks_are_forbidden_none_is_pushed():
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        assert saved.push() is None
        with saved.pushed():
            assert depth() == 0


def test_an_error_of_a_packer_comes_to_the_caller():
    class Fails:
        def pack(self, tensor: torch.Tensor) -> Any:
            raise MemoryError("no room")

        def unpack(self, packed: Any) -> torch.Tensor:
            raise AssertionError

    x = a_leaf()
    with saved.pushed(Fails()):
        with pytest.raises(MemoryError, match="no room"):
            x.exp()
    assert depth() == 0


@pytest.mark.parametrize("kind", ["zero-size", "not contiguous", "scalar"])
def test_odd_tensors_are_kept_as_they_are(kind):
    x = {"zero-size": torch.empty(0, 3),
         "not contiguous": torch.randn(4, 6).t()[::2],
         "scalar": torch.tensor(2.0)}[kind].requires_grad_()
    seen = []

    class Looks:
        def pack(self, tensor: torch.Tensor) -> Any:
            seen.append((tensor.shape, tensor.stride()))
            return saved.PASS

        def unpack(self, packed: Any) -> torch.Tensor:
            raise AssertionError

    with saved.pushed(Looks()):
        y = x.exp()
    assert seen == [(y.shape, y.stride())]
    assert torch.equal(grad_of(x, y), y)
