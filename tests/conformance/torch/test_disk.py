"""Weights that come from files: never others', and from disk in every pass."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import same_bytes  # noqa: E402
from models import WIDTH, Stack, numbers  # noqa: E402
from real_daemon import MIB, write_safetensors  # noqa: E402

pytestmark = pytest.mark.real_time


def save(path, seed: int, blocks: int = 4, width: int = WIDTH) -> Stack:
    """A model, and its file."""
    torch.manual_seed(seed)
    model = Stack(blocks, width).requires_grad_(False).eval()
    write_safetensors(path, {
        name: ("F32", list(value.shape), value.numpy().tobytes())
        for name, value in model.state_dict().items()})
    return model


def loaded(path, **options):
    return hoist.load(lambda: Stack(4), path, **options).eval()


def test_a_replaced_file_is_another_model(hoistd, device, tmp_path):
    """Item 17: same path, same names, same sizes, other weights."""
    path = tmp_path / "model.safetensors"
    x = numbers(2, WIDTH).to(device)
    with torch.no_grad():
        first = save(path, 1).to(device)
        one = loaded(path)
        assert same_bytes(one(x), first(x))
        other = tmp_path / "new"
        second = save(other, 2).to(device)
        os.replace(other, path)
        two = loaded(path)
        assert same_bytes(two(x), second(x))
        assert same_bytes(one(x), first(x))  # Its file is open still.
        assert hoist.stats(one).model != hoist.stats(two).model


def test_a_name_is_not_served_with_other_weights(hoistd, tmp_path):
    """Item 17."""
    path = tmp_path / "model.safetensors"
    save(path, 1)
    loaded(path, name="shared")
    other = tmp_path / "new"
    save(other, 2)
    os.replace(other, path)
    with pytest.raises(hoist.AlreadyExists):
        loaded(path, name="shared")


def test_two_models_of_one_shape_in_one_folder(hoistd, device, tmp_path):
    """Item 17."""
    x = numbers(2, WIDTH).to(device)
    with torch.no_grad():
        models = {}
        for seed in (1, 2):
            path = tmp_path / f"{seed}.safetensors"
            models[path] = save(path, seed).to(device)
        modules = {path: loaded(path) for path in models}
        for _ in range(2):
            for path, module in modules.items():
                assert same_bytes(module(x), models[path](x))


@pytest.mark.parametrize("cut", [0, 4, 60, -1], ids=str)
def test_a_truncated_file_is_refused(hoistd, tmp_path, cut):
    """Item 17: at its start, in its header, in its last tensor."""
    path = tmp_path / "model.safetensors"
    save(path, 1)
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    with pytest.raises((hoist.DataLoss, hoist.InvalidArgument)):
        loaded(path)


def test_a_file_that_is_cut_under_a_module_is_never_made_up(hoistd, device,
                                                            tmp_path):
    """Item 17: what was read stays right; what was not is a typed error."""
    path = tmp_path / "model.safetensors"
    x = numbers(2, WIDTH).to(device)
    with torch.no_grad():
        resident = save(path, 1).to(device)
        module = loaded(path)
        wanted = resident(x)
        os.truncate(path, path.stat().st_size // 2)
        try:
            assert same_bytes(module(x), wanted)
            hoist.check(module)
        except hoist.HoistError as error:
            assert str(error)


@pytest.mark.hoistd(pool=8 * MIB, host=8 * MIB)
def test_a_model_larger_than_the_host_tier_streams_from_its_file(
        hoistd, device, tmp_path):
    """Item 18: read ahead of each pass's turn, again and again."""
    path = tmp_path / "model.safetensors"
    with torch.no_grad():
        resident = save(path, 1, blocks=10, width=256).to(device)
        size = path.stat().st_size
        assert size > 16 * MIB
        x = numbers(2, 256).to(device)
        wanted = resident(x)
        module = hoist.load(lambda: Stack(10, 256), path,
                            budget="6MiB").eval()
        before = hoistd.counters()
        passes = 3
        for _ in range(passes):
            assert same_bytes(module(x), wanted)
        hoist.check(module)
        read = hoistd.counters()["file_read_bytes"] - before["file_read_bytes"]
        assert read > (passes - 1) * size  # The host tier cannot hold it.
        assert hoist.stats(module).unplanned == 0


def test_a_model_in_memory_larger_than_the_host_tier_is_spilled(
        make_hoistd, device, tmp_path):
    """Item 18: and comes back from disk in each pass, bit for bit."""
    hoistd = make_hoistd(
        pool=8 * MIB, host=12 * MIB,
        extra=f'[disk]\nspill_dir = "{tmp_path / "spill"}"\n')
    torch.manual_seed(1)
    model = Stack(10, 256).requires_grad_(False).eval().to(device)
    x = numbers(2, 256).to(device)
    with torch.no_grad():
        wanted = model(x)
        own = [value.clone() for value in model.parameters()]
        hoist.attach(model, "6MiB")
        for _ in range(3):
            assert same_bytes(model(x), wanted)
        assert hoistd.tier("DISK")["used_bytes"] > 8 * MIB
        hoist.detach(model)
        for value, before in zip(model.parameters(), own):
            assert same_bytes(value, before)
