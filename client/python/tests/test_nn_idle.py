"""Idle weights over an image that spoils its bytes while it is not loaded."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import mmap
import pickle
import threading

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

import hoist  # noqa: E402
from torch import nn  # noqa: E402
from hoist.nn._tensors.idle import IdleGroup, IdleTensor, Shelf  # noqa: E402

SHAPE = (4, 6)
COUNT = 24
DETACH = r"hoist\.detach\(module\)"


class FakeImage:
    """As HostImage: an address that holds, bytes that come and go."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.address = ctypes.addressof(
            ctypes.c_char.from_buffer(self._memory))
        self.loads = self.drops = 0
        self.loaded = False
        self.fails = False
        self._spoil()

    def _spoil(self) -> None:
        ctypes.memset(self.address, 0xEE, mmap.PAGESIZE)

    def load(self, deadline: float) -> None:
        if self.fails:
            raise hoist.ResourceExhausted("no space")
        if not self.loaded:
            self.loads += 1
            self.loaded = True
            ctypes.memmove(self.address, self.value.data_ptr(),
                           self.value.nbytes)

    def drop(self) -> None:
        if self.loaded:
            self.drops += 1
            self.loaded = False
            self._spoil()


class World:
    """Some groups of one weight each, on one shelf."""

    def __init__(self, count: int = 3) -> None:
        self.shelf = Shelf()
        self.values = [torch.arange(COUNT, dtype=torch.float32).view(SHAPE)
                       + 100 * at for at in range(count)]
        self.images = [FakeImage(value) for value in self.values]
        self.groups = [IdleGroup(image, self.shelf, 1.0)
                       for image in self.images]

    def weight(self, at: int = 0, parameter: bool = True) -> IdleTensor:
        group = self.groups[at]
        memory = group.memory(self.images[at].address, COUNT * 4)
        plain = torch.frombuffer(memory, dtype=torch.float32).view(SHAPE)
        return IdleTensor.make(plain, group, parameter)

    def loaded(self) -> list[int]:
        return [at for at, image in enumerate(self.images) if image.loaded]


@pytest.fixture
def world() -> World:
    return World()


def test_facts_are_known_without_a_load(world):
    weight = world.weight()
    assert weight.shape == SHAPE and weight.dtype == torch.float32
    assert weight.stride() == (6, 1) and weight.device.type == "cpu"
    assert weight.is_contiguous() and not weight.requires_grad
    assert weight.numel() == COUNT and weight.nbytes == COUNT * 4
    assert isinstance(weight, nn.Parameter) and len(weight) == 4
    assert not isinstance(world.weight(parameter=False), nn.Parameter)
    assert world.images[0].loads == 0


READS = {
    "sum": lambda w: w.sum(), "matmul": lambda w: w @ w.t(),
    "half": lambda w: w.half(), "clone": torch.clone, "cat":
    lambda w: torch.cat([w, w]), "item": lambda w: w[1, 2].item(),
    "tolist": lambda w: w.tolist(), "numpy": lambda w: w.numpy().copy(),
    "array": lambda w: numpy.asarray(w).copy(), "to": lambda w: w.to(
        torch.float64), "slice": lambda w: w[1:3, ::2] * 1, "view":
    lambda w: w.view(-1).flip(0), "split": lambda w: torch.stack(
        w.split(2)), "where": lambda w: torch.where(w > 3, w, 0),
    "linear": lambda w: nn.functional.linear(torch.ones(2, 6), w),
    "dlpack": lambda w: torch.from_dlpack(w).clone(),
    "equal": lambda w: torch.equal(w, w), "repr": repr,
    "bool": lambda w: bool((w == w).all()), "str": lambda w: f"{w[0, 1]}",
    "iter": lambda w: [row.sum() for row in w], "max": lambda w: w.max(1),
    "storage": lambda w: bytes(w.untyped_storage()),
    "einsum": lambda w: torch.einsum("ab,cb->ac", w, w),
    "bfloat": lambda w: w.bfloat16(), "copy_ to another": lambda w:
    torch.zeros(SHAPE).copy_(w), "out": lambda w: torch.mul(
        w, 2, out=torch.empty(SHAPE)), "deepcopy": copy.deepcopy,
    "contiguous": lambda w: w.t().contiguous()}


@pytest.mark.parametrize("name", READS)
def test_reading_gives_the_true_value(world, name):
    read = READS[name]
    kind = nn.Parameter if name in ("repr", "deepcopy") else torch.clone
    expected = read(kind(world.values[0], requires_grad=False)
                    if kind is nn.Parameter else world.values[0])
    got = read(world.weight())
    if name == "repr":
        assert "6., 7., 8." in " ".join(got.split())
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(got, expected)
        assert got.stride() == expected.stride()
    elif isinstance(expected, numpy.ndarray):
        assert (got == expected).all()
    elif isinstance(expected, (list, tuple)) and isinstance(
            expected[0], torch.Tensor):
        assert all(map(torch.equal, got, expected))
    else:
        assert got == expected
    assert world.images[0].loads == 1


@pytest.mark.parametrize("write", [
    lambda w: w.add_(1), lambda w: w.zero_(), lambda w: w.t().mul_(2),
    lambda w: w[0].fill_(1), lambda w: w.__setitem__((0, 0), 5.0),
    lambda w: torch.add(w, 1, out=w), lambda w: torch.mul(w, 2, out=w[0:4]),
    lambda w: setattr(w, "data", torch.zeros(SHAPE)),
    lambda w: w.data.copy_(torch.zeros(SHAPE)), lambda w: w.detach().neg_(),
    lambda w: w.set_(torch.zeros(SHAPE)), lambda w: w.resize_(2, 2),
    lambda w: torch._foreach_add_([w], 1.0), lambda w: w.index_copy_(
        0, torch.tensor([1]), torch.zeros(1, 6)),
    lambda w: w.unsqueeze_(0), lambda w: w.view(-1).scatter_(
        0, torch.tensor([0]), 9.0), lambda w: nn.init.xavier_uniform_(w),
    lambda w: w.numpy().__setitem__(0, 1.0), lambda w: w.exponential_(),
    lambda w: w.masked_fill_(w > 0, 0.0)],
    ids=["add_", "zero_", "t.mul_", "row.fill_", "setitem", "out=", "out=view",
         ".data=", ".data.copy_", "detach.neg_", "set_", "resize_", "_foreach",
         "index_copy_", "unsqueeze_", "scatter_", "init", "numpy",
         "exponential_", "masked_fill_"])
def test_no_write_reaches_a_weight(world, write):
    weight = world.weight()
    with torch.no_grad(), pytest.raises((hoist.FailedPrecondition,
                                         ValueError)) as refused:
        write(weight)
    if refused.type is not ValueError:  # NumPy's own, of read-only arrays.
        refused.match(DETACH)
    assert weight.shape == SHAPE
    assert torch.equal(weight.clone(), world.values[0])


def test_views_stay_idle_and_are_true_when_they_are_looked_at(world):
    weight = world.weight()
    views = [weight[1], weight.t(), weight.view(-1)[3:9], weight[:, ::2],
             weight.unsqueeze(0).expand(3, 4, 6), *weight.unbind(1)]
    assert all(isinstance(view, IdleTensor) for view in views)
    assert not any(isinstance(view, nn.Parameter) for view in views)
    assert world.images[0].loads == 0
    world.weight(1).sum()
    world.weight(2).sum()
    value = world.values[0]
    for view, expected in zip(views, [
            value[1], value.t(), value.view(-1)[3:9], value[:, ::2],
            value.expand(3, 4, 6), *value.unbind(1)]):
        assert torch.equal(view.clone(), expected)


def test_what_is_computed_is_no_idle_tensor(world):
    weight = world.weight()
    for made in (weight + 1, weight.clone(), weight.half(), weight.sum(),
                 weight.reshape(3, 8).contiguous().view(2, 12) * 1,
                 torch.zeros_like(weight), torch.empty_like(weight)):
        assert type(made) is torch.Tensor
    # The bytes of what was computed are its own.
    kept = weight * 1
    world.weight(1).sum()
    assert torch.equal(kept, world.values[0])


def test_detached_is_no_parameter_and_one_object(world):
    weight = world.weight()
    assert weight.detach() is weight.detach() is weight.data
    assert not isinstance(weight.detach(), nn.Parameter)
    assert torch.equal(weight.data.clone(), world.values[0])


def test_reads_in_a_row_load_once(world):
    weight = world.weight()
    for _ in range(5):
        weight.sum()
    assert world.images[0].loads == 1 and world.shelf.reads == 5


def test_the_shelf_keeps_the_last_that_was_read(world):
    for at in (0, 1, 2, 1):
        world.weight(at).sum()
        assert world.loaded() == [at]
    assert [image.loads for image in world.images] == [1, 2, 1]


def test_an_operator_may_look_at_several_groups(world):
    made = world.weight(0) + world.weight(1) + world.weight(2)
    assert torch.equal(made, sum(world.values[1:], world.values[0]))
    joined = torch.cat([world.weight(at) for at in (2, 0, 1)])
    assert torch.equal(joined, torch.cat(
        [world.values[at] for at in (2, 0, 1)]))
    assert len(world.loaded()) == 1


def test_clearing_the_shelf_drops_what_nobody_reads(world):
    array = world.weight(0).numpy()
    world.weight(1).sum()
    world.shelf.clear()
    assert world.loaded() == [0]
    assert (array == world.values[0].numpy()).all()


def test_an_array_keeps_its_bytes_and_lets_go_of_them(world):
    array = world.weight(0).numpy()
    part = array[1:]
    for at in (1, 2):
        world.weight(at).sum()
    assert (array == world.values[0].numpy()).all()
    del array
    gc.collect()
    world.weight(1).sum()
    assert (part == world.values[0][1:].numpy()).all()
    assert 0 in world.loaded()
    del part
    gc.collect()
    world.weight(1).sum()
    world.weight(2).sum()
    assert world.loaded() == [2]


def test_an_address_holds_until_the_group_is_staged(world):
    weight = world.weight()
    address = weight.data_ptr()
    assert address == world.images[0].address
    for at in (1, 2):
        world.weight(at).sum()
    read = (ctypes.c_float * COUNT).from_address(address)
    assert list(read) == world.values[0].flatten().tolist()
    world.groups[0].end_pointers()
    world.weight(1).sum()
    world.weight(2).sum()
    assert world.loaded() == [2]
    assert weight[2].data_ptr() == address + 2 * 24


def test_a_pickle_holds_the_bytes_and_comes_back_plain(world):
    made = pickle.loads(pickle.dumps(world.weight()))
    assert type(made) is nn.Parameter and torch.equal(made, world.values[0])
    assert not made.requires_grad
    made = pickle.loads(pickle.dumps(world.weight(1)[1:3]))
    assert type(made) is torch.Tensor
    assert torch.equal(made, world.values[1][1:3])


def test_a_saved_state_dict_holds_the_bytes(world):
    file = io.BytesIO()
    torch.save({"a": world.weight(), "b": world.weight(1).data}, file)
    file.seek(0)
    found = torch.load(file, weights_only=True)
    assert torch.equal(found["a"], world.values[0])
    assert torch.equal(found["b"], world.values[1])


def test_a_copy_is_the_callers_own(world):
    made = copy.deepcopy(world.weight())
    assert type(made) is nn.Parameter
    with torch.no_grad():
        made.zero_()
    assert torch.equal(world.weight().clone(), world.values[0])


def test_a_load_that_fails_says_so_and_leaves_nothing_held(world):
    weight = world.weight()
    world.images[0].fails = True
    for read in (torch.sum, torch.Tensor.numpy, torch.Tensor.data_ptr,
                 copy.deepcopy, lambda w: pickle.dumps(w)):
        with pytest.raises(hoist.ResourceExhausted, match="no space"):
            read(weight)
    assert not world.groups[0].held
    world.images[0].fails = False
    assert torch.equal(weight.clone(), world.values[0])
    world.weight(1).sum()
    assert world.loaded() == [1]


def test_an_operator_that_fails_does_not_keep_the_image(world):
    with pytest.raises(RuntimeError):
        world.weight(0) @ torch.ones(5, 5)
    for at in (1, 2):
        world.weight(at).sum()
    assert world.loaded() == [2]


def test_one_object_stays_one_in_a_deep_copy_of_its_holder(world):
    weight = world.weight()
    one, other = copy.deepcopy([weight, weight])
    assert one is other


def test_what_is_collected_during_a_read_does_not_drop_what_is_read(world):
    """A collection may run in the middle of anything, the reading of another
    group's weight, too."""
    weight = world.weight(0)
    weight.sum()  # It is on the shelf, and nobody holds it.
    array = world.weight(1).numpy()
    with world.shelf.reading([world.groups[0]]):
        del array
        gc.collect()
        assert 0 in world.loaded()
        assert torch.equal(weight._plain, world.values[0])
    assert not any(group.held for group in world.groups)
    assert len(world.loaded()) == 1


def test_what_another_thread_lets_go_during_a_read_is_let_go_after_it(world):
    array = world.weight(1).numpy()
    done = threading.Event()

    def release() -> None:
        nonlocal array
        del array
        gc.collect()
        done.set()

    with world.shelf.reading([world.groups[0]]):
        thread = threading.Thread(target=release)
        thread.start()
        assert done.wait(60), "it waits for the reader"
    thread.join()
    assert not any(group.held for group in world.groups)
    assert world.loaded() == [1]


def test_several_threads_read_true_values(world):
    wrong: list[object] = []
    start = threading.Barrier(4)

    def read(first: int) -> None:
        start.wait()
        for turn in range(60):
            at = (first + turn) % 3
            weight, value = world.weight(at), world.values[at]
            try:
                if not torch.equal(weight * 2, value * 2):
                    wrong.append((at, "computed"))
                array = weight.numpy()
                if not (array == value.numpy()).all():
                    wrong.append((at, "array"))
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=read, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    gc.collect()
    world.weight(0).sum()
    assert world.loaded() == [0]
    assert not any(group.held for group in world.groups)


def test_the_first_of_several_failures_keeps_the_others_usable(world):
    world.images[1].fails = True
    with pytest.raises(hoist.ResourceExhausted):
        world.weight(0) + world.weight(1)
    world.weight(2).sum()
    assert world.loaded() == [2]
