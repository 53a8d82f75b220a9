"""Whole pipelines under one budget: right, within it, and usable as ever."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Iterator

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")
numpy = pytest.importorskip("numpy")

import hoist  # noqa: E402
from equal import same_bytes  # noqa: E402
from hoist.nn import IdleTensor  # noqa: E402
from hoist.nn._tree import layout  # noqa: E402
from pipelines import KINDS  # noqa: E402
from sampled import sampled  # noqa: E402
from torch import nn  # noqa: E402

KIND = os.environ.get("HOIST_TEST_DEVICE", "cpu")
MIB = 1 << 20
FLUX = KINDS["flux"]


def modules_of(pipe: Any) -> dict[str, nn.Module]:
    return {name: one for name, one in pipe.components.items()
            if isinstance(one, nn.Module)}


def resident(kind: str, device: torch.device) -> Any:
    return KINDS[kind].make().to(device)


def assert_same_image(ours: Any, theirs: Any) -> None:
    assert len(set(theirs.tobytes())) > 100  # A picture, not one colour.
    assert ours.tobytes() == theirs.tobytes()


@contextlib.contextmanager
def leased(hoistd: Any, pipe: Any) -> Iterator[list[tuple[str, int]]]:
    """(component, bytes that hoistd has leased on the device) at each call of
    a component's modules with weights."""
    seen: list[tuple[str, int]] = []
    handles = []
    for name, component in modules_of(pipe).items():
        def look(module: nn.Module, args: Any, name: str = name) -> None:
            seen.append((name, hoistd.tier("DEVICE")["leased_bytes"]))
        blocks = [one for one in component.modules()
                  if isinstance(one, nn.ModuleList) and len(one)]
        for one in {component, *(block[0] for block in blocks)}:
            handles.append(one.register_forward_pre_hook(look))
    yield seen
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("kind", sampled(KINDS, "flux", "wan"))
@pytest.mark.parametrize("budget", [0.6, 1.0])
def test_images_are_those_of_the_resident_pipeline(hoistd, device, kind,
                                                   budget):
    expected = KINDS[kind].run(resident(kind, device))
    pipe = KINDS[kind].make()
    assert hoist.attach_pipeline(pipe, budget, device=device) is pipe
    for _ in range(3):
        assert_same_image(KINDS[kind].run(pipe), expected)
    hoist.check(pipe)
    stats = hoist.stats(pipe)
    assert set(stats.components) == set(modules_of(pipe))
    assert sum(one.budget_bytes for one in stats.components.values()) <= (
        stats.budget_bytes)
    assert (stats.stages > stats.resident_stages) == any(
        one.model_bytes > stats.budget_bytes
        for one in stats.components.values())
    assert hoist.detach(pipe) is pipe
    assert not any(isinstance(one, IdleTensor)
                   for module in modules_of(pipe).values()
                   for one in module.parameters())
    assert_same_image(KINDS[kind].run(pipe.to(device)), expected)


# One budget.


def granted(pipe: Any) -> dict[str, int]:
    return {name: one.budget_bytes
            for name, one in hoist.stats(pipe).components.items()}


@contextlib.contextmanager
def at_calls(module: nn.Module, look: Any) -> Iterator[list[Any]]:
    """What look() gives at each call of the module."""
    seen: list[Any] = []
    handle = module.register_forward_pre_hook(
        lambda *_: seen.append(look()))
    yield seen
    handle.remove()


@pytest.mark.only_emulated("pools of a few MiB, a hoistd for each test")
@pytest.mark.parametrize("kind, budget", sampled([
    ("flux", 4 * MIB), ("sd3", 4 * MIB), ("sdxl", 4 * MIB), ("wan", 2 * MIB),
    ("ltx", 2 * MIB)], ("flux", 4 * MIB), ("ltx", 2 * MIB)))
def test_no_more_than_the_budget_is_held_at_any_call(make_hoistd, device, kind,
                                                     budget):
    """Nor does the pool have much more: for what lies between extents."""
    hoistd = make_hoistd(pool=budget + 2 * MIB)
    steps = {"num_inference_steps": 2}
    expected = KINDS[kind].run(resident(kind, device), **steps)
    pipe = KINDS[kind].make()
    hoist.attach_pipeline(pipe, budget, deadline=10)
    with leased(hoistd, pipe) as seen:
        for _ in range(2):
            assert_same_image(KINDS[kind].run(pipe, **steps), expected)
    assert {name for name, _ in seen} >= {KINDS[kind].denoiser,
                                          "text_encoder"}
    assert 0 < max(nbytes for _, nbytes in seen) <= budget


def test_who_runs_has_the_whole_budget(hoistd, device):
    pipe = FLUX.make()
    hoist.attach_pipeline(pipe, 4 * MIB)
    budget = hoist.stats(pipe).budget_bytes
    assert budget == 4 * MIB and not any(granted(pipe).values())
    with at_calls(pipe.transformer, lambda: granted(pipe)) as loops, at_calls(
            pipe.text_encoder_2, lambda: granted(pipe)) as encodes:
        FLUX.run(pipe)
        FLUX.run(pipe)
    assert len(loops) == 8 and len(encodes) == 2
    for seen in loops:  # The encoders gave way, and the decoder.
        assert seen["transformer"] == budget == sum(seen.values())
    whole = hoist.stats(pipe).components["text_encoder_2"].model_bytes
    for seen in encodes:
        assert seen["text_encoder_2"] == whole and sum(
            seen.values()) <= budget


def test_guidance_that_calls_the_denoiser_twice_a_step_changes_no_plan(
        hoistd, device):
    pipe = KINDS["wan"].make()
    hoist.attach_pipeline(pipe, 0.5)
    KINDS["wan"].run(pipe)
    with at_calls(pipe.transformer, lambda: pipe.transformer.blocks[
            0].attn1.to_q.weight.data_ptr()) as seen:
        KINDS["wan"].run(pipe, num_inference_steps=3)
    assert len(seen) == 6
    stats = hoist.stats(pipe).components["transformer"]
    assert stats.passes == 8 + 6
    assert stats.unplanned <= stats.groups


def test_what_fits_stays_and_is_called_as_ever(hoistd, device):
    pipe = FLUX.make()
    hoist.attach_pipeline(pipe, 1.0)
    FLUX.run(pipe)
    before = granted(pipe)
    moved = hoistd.counters()["host_to_device_bytes"]
    FLUX.run(pipe)
    assert granted(pipe) == before == {
        name: one.model_bytes
        for name, one in hoist.stats(pipe).components.items()}
    assert hoistd.counters()["host_to_device_bytes"] == moved
    for module in modules_of(pipe).values():
        assert not any("_compiled_call_impl" in vars(one)
                       for one in module.modules())


def test_the_decoder_has_its_memory_before_the_last_step(hoistd, device):
    pipe = FLUX.make()
    hoist.attach_pipeline(pipe, 1.0)
    sizes = {name: one.model_bytes
             for name, one in hoist.stats(pipe).components.items()}
    hoist.set_budget(pipe, sum(sizes.values()) - sizes["text_encoder_2"])
    with at_calls(pipe.transformer, lambda: granted(pipe)["vae"]) as seen:
        FLUX.run(pipe)
    assert seen[:2] == [0, 0] and seen[3] == sizes["vae"]


def test_the_decoder_is_asked_for_on_the_host_before_the_last_step(
        hoistd, device, monkeypatch):
    asked: list[tuple[int, set[str], str]] = []
    prefetch = hoist.Session.prefetch

    def note(self: Any, groups: Any, *, tier: str = "device",
             **options: Any) -> None:
        asked.append((len(seen), {one.model.name for one in groups}, tier))
        prefetch(self, groups, tier=tier, **options)

    pipe = FLUX.make()
    hoist.attach_pipeline(pipe, 4 * MIB)
    vae = hoist.stats(pipe).components["vae"].model
    monkeypatch.setattr(hoist.Session, "prefetch", note)
    with at_calls(pipe.transformer, lambda: None) as seen:
        FLUX.run(pipe)
        # Within the third of four steps.
        assert (2, {vae}, "host") in asked
        assert sum(vae in names for _, names, _ in asked) == 1
        FLUX.run(pipe)
    assert sum(vae in names for _, names, _ in asked) == 2


@pytest.mark.parametrize("parts", [False, True])
def test_a_budget_below_a_component_is_refused_with_what_would_do(
        hoistd, device, monkeypatch, parts):
    if parts:  # A block's are needed at once.
        monkeypatch.setattr(layout, "_LARGE", 8 << 10)
    pipe = FLUX.make()
    before = {name: one.state_dict() for name, one in modules_of(pipe).items()}
    with pytest.raises(hoist.ResourceExhausted, match='component "tr'):
        hoist.attach_pipeline(pipe, 1 * MIB)
    for name, one in modules_of(pipe).items():
        assert not any(isinstance(weight, IdleTensor)
                       for weight in one.parameters())
        for key, weight in one.state_dict().items():
            assert same_bytes(weight, before[name][key]), key
    hoist.attach_pipeline(pipe, 4 * MIB)
    with pytest.raises(hoist.ResourceExhausted, match="needs"):
        hoist.set_budget(pipe, 1 * MIB)
    assert hoist.stats(pipe).budget_bytes == 4 * MIB


def test_the_budget_can_be_changed_between_calls(hoistd, device):
    expected = FLUX.run(resident("flux", device))
    pipe = FLUX.make()
    hoist.attach_pipeline(pipe)  # What hoistd can promise.
    for budget in (0.6, "4MiB", 1.0):
        assert_same_image(FLUX.run(pipe), expected)
        hoist.set_budget(pipe, budget)
        assert not any(granted(pipe).values())
    assert_same_image(FLUX.run(pipe), expected)


@pytest.mark.parametrize("name", ["text_encoder_2", "transformer"])
def test_the_budget_may_change_as_a_component_is_called(hoistd, device, name):
    """As another thread does: after it has its memory, before its pass."""
    expected = FLUX.run(resident("flux", device))
    pipe = FLUX.make()
    hoist.attach_pipeline(pipe, 4 * MIB)
    module = getattr(pipe, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        del vars(module)["_call_impl"]
        hoist.set_budget(pipe, 5 * MIB)
        return module._call_impl(*args, **kwargs)

    vars(module)["_call_impl"] = call
    assert_same_image(FLUX.run(pipe), expected)
    with at_calls(module, lambda: granted(pipe)[name]) as seen:
        assert_same_image(FLUX.run(pipe), expected)
    # Of a small one all.
    assert seen[0] >= min(5 * MIB, hoist.stats(pipe).components[name].model_bytes)
    hoist.detach(pipe)
    assert_same_image(FLUX.run(pipe.to(device)), expected)


def test_components_and_options_can_be_said(hoistd, device):
    expected = FLUX.run(resident("flux", device))
    pipe = FLUX.make()
    with pytest.raises(hoist.InvalidArgument, match="text_encoder_2"):
        hoist.attach_pipeline(pipe, components=["nothing"])
    with pytest.raises(hoist.InvalidArgument, match="name="):
        hoist.attach_pipeline(pipe, name="mine")
    with pytest.raises(hoist.InvalidArgument, match="each="):
        hoist.attach_pipeline(pipe, components=["transformer"],
                              each={"vae": {"groups": "leaf"}})
    with pytest.raises(hoist.InvalidArgument, match="no pipeline"):
        hoist.attach_pipeline(nn.Linear(2, 2))
    hoist.attach_pipeline(
        pipe, 4 * MIB, components=["transformer", "text_encoder_2"],
        each={"transformer": {"groups": "leaf"}}, device=device)
    assert not any(isinstance(one, IdleTensor)
                   for one in pipe.vae.parameters())
    pipe.to(device)
    assert_same_image(FLUX.run(pipe), expected)
    stats = hoist.stats(pipe).components
    assert stats["transformer"].groups > stats["text_encoder_2"].groups * 3
    with pytest.raises(hoist.FailedPrecondition, match="attached already"):
        hoist.attach_pipeline(pipe)


class Pipe:
    """No order is said; the calls show it."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.components = {name: nn.Sequential(*(
            nn.Linear(128, 128) for _ in range(4)))
            for name in ("last", "first", "middle")}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for name, times in (("first", 2), ("middle", 5), ("last", 1)):
            for _ in range(times):
                x = torch.tanh(self.components[name](x))
        return x


def test_the_order_is_learned_where_nobody_says_it(hoistd, device):
    x = torch.randn(2, 128, device=device)
    with torch.no_grad():
        plain = Pipe()
        for module in plain.components.values():
            module.to(device)
        expected = plain(x)
        pipe = hoist.attach_pipeline(Pipe(), 300 * 1024, device=device)
        for _ in range(3):
            assert same_bytes(pipe(x), expected)
    vars(pipe)["_hoist"].check()
    assert sum(granted(pipe).values()) <= 300 * 1024
    hoist.detach(pipe)
    with pytest.raises(hoist.InvalidArgument):
        hoist.stats(pipe)
