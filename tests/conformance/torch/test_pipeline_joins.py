"""Components that were attached or loaded before their pipeline."""

from __future__ import annotations

import gc
import os
import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")
numpy = pytest.importorskip("numpy")

import hoist  # noqa: E402
from pipelines import KINDS  # noqa: E402

KIND = os.environ.get("HOIST_TEST_DEVICE", "cpu")
MIB = 1 << 20
FLUX = KINDS["flux"]


@pytest.fixture(name="expected", scope="module")
def expected_image() -> bytes:
    image: bytes = FLUX.run(FLUX.make().to(KIND)).tobytes()
    return image


@pytest.fixture(name="folder", scope="module")
def saved_flux(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("flux")
    FLUX.make().save_pretrained(path)
    return path


def load(pipe: Any, folder: pathlib.Path, budget: Any,
         **options: Any) -> Any:
    """The pipeline's transformer, of files, in the place of its own."""
    config = pipe.transformer.config
    pipe.transformer = hoist.load(
        lambda: diffusers.FluxTransformer2DModel.from_config(config),
        folder / "transformer", budget, **options)
    return pipe


def granted(pipe: Any) -> int:
    return sum(one.budget_bytes
               for one in hoist.stats(pipe).components.values())


@pytest.mark.parametrize("budget", [4 * MIB, 0.6, None])
def test_a_loaded_component_shares_the_budget(hoistd, device, folder, expected,
                                              budget):
    pipe = load(FLUX.make(), folder, 3 * MIB, groups="leaf")
    groups = hoist.stats(pipe.transformer).groups
    hoist.attach_pipeline(pipe, budget, device=device)
    stats = hoist.stats(pipe)
    assert stats.components["transformer"].groups == groups
    whole = sum(one.model_bytes for one in stats.components.values())
    if budget == 4 * MIB:
        assert stats.budget_bytes == budget
    elif budget is not None:
        assert stats.budget_bytes == pytest.approx(budget * whole, rel=0.01)
    assert granted(pipe) == 0
    for _ in range(2):
        assert FLUX.run(pipe).tobytes() == expected
        assert 0 < granted(pipe) <= stats.budget_bytes
    hoist.detach(pipe)
    assert FLUX.run(pipe.to(device)).tobytes() == expected


def test_all_of_them_can_be_attached_before(hoistd, device, expected):
    pipe = FLUX.make()
    for name in ("transformer", "text_encoder", "text_encoder_2", "vae"):
        hoist.attach(getattr(pipe, name), device=device)
    alone = hoist.stats(pipe.transformer).model_bytes
    hoist.attach_pipeline(pipe)  # What hoistd can promise.
    assert hoist.stats(pipe).budget_bytes >= alone
    assert FLUX.run(pipe).tobytes() == expected
    hoist.set_budget(pipe, 4 * MIB)
    assert FLUX.run(pipe).tobytes() == expected
    assert granted(pipe) <= 4 * MIB


def test_what_joins_has_the_options_that_it_has(hoistd, device, folder):
    pipe = load(FLUX.make(), folder, 3 * MIB)
    with pytest.raises(hoist.InvalidArgument, match="joins as it is"):
        hoist.attach_pipeline(pipe, 4 * MIB,
                              each={"transformer": {"groups": "leaf"}})
    assert hoist.stats(pipe.transformer).budget_bytes == 3 * MIB


def test_a_failure_leaves_it_what_it_had(hoistd, device, folder, expected):
    pipe = load(FLUX.make(), folder, 3 * MIB)
    before = hoist.stats(pipe.transformer)
    with pytest.raises(hoist.ResourceExhausted, match='component "'):
        hoist.attach_pipeline(pipe, 256 << 10)
    assert hoist.stats(pipe.transformer).budget_bytes == before.budget_bytes
    with pytest.raises(hoist.NotFound):
        hoist.stats(pipe.vae)
    hoist.attach_pipeline(pipe, 4 * MIB)
    assert FLUX.run(pipe).tobytes() == expected


def test_one_that_is_too_large_for_the_budget_is_refused(hoistd, device,
                                                         folder):
    pipe = load(FLUX.make(), folder, None,
                groups=lambda name, module: "all" if not name else None)
    with pytest.raises(hoist.ResourceExhausted, match='"transformer" needs'):
        hoist.attach_pipeline(pipe, 4 * MIB, components=["transformer"])


def test_a_component_is_one_pipelines(hoistd, device, expected):
    pipe = FLUX.make()
    hoist.attach_pipeline(pipe, 4 * MIB, device=device)
    other = diffusers.FluxPipeline(**pipe.components)
    other.set_progress_bar_config(disable=True)
    with pytest.raises(hoist.FailedPrecondition, match="another pipeline's"):
        hoist.attach_pipeline(other, 5 * MIB)
    # Its calls are under the first one's budget.
    assert FLUX.run(other).tobytes() == expected
    assert granted(pipe) <= 4 * MIB
    del pipe
    gc.collect()  # What it is of diffusers' may refer to itself.
    hoist.attach_pipeline(other, 5 * MIB)
    assert hoist.stats(other).budget_bytes == 5 * MIB
    assert FLUX.run(other).tobytes() == expected
    hoist.detach(other)
    assert FLUX.run(other.to(device)).tobytes() == expected


def test_after_detaching_the_first_another_can_have_it(hoistd, device,
                                                       expected):
    pipe = FLUX.make()
    hoist.attach_pipeline(pipe, 4 * MIB, device=device)
    hoist.detach(pipe)
    hoist.attach(pipe.transformer, 3 * MIB, device=device)
    other = diffusers.FluxPipeline(**pipe.components)
    other.set_progress_bar_config(disable=True)
    hoist.attach_pipeline(other, 4 * MIB, device=device)
    assert FLUX.run(other).tobytes() == expected
