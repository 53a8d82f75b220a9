"""Quantised experts: published as vLLM processes them, and read in place."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from conftest import EngineProcess, Refused
from real_daemon import MIB, until

pytest.importorskip("vllm")

import hoist  # noqa: E402
from hoist.serving._published import find  # noqa: E402

MAKE = pathlib.Path(__file__).with_name("gpu") / "model.py"
ENGINE = {"script": "quantised.py"}
# Of each kind the options, without which rounding or a kernel would differ.
KINDS = {"mixture_int4": {"dtype": "float32"},
         "mixture_int4, Marlin": {"dtype": "float32", "moe_backend": "marlin"},
         "gpt_oss": {"moe_backend": "marlin"}}

pytestmark = pytest.mark.hoistd(pool=160 * MIB, host=256 * MIB)


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tmp_path_factory):
    """A model of 2 layers with 32 experts, an engine's options, and what one
    says that has loaded the files itself and shares kernels with hoist's."""
    folder = tmp_path_factory.mktemp("models")
    name = request.param.partition(",")[0]
    subprocess.run([sys.executable, str(MAKE), str(folder / "model"), "8",
                    "1024", "1024", name], check=True)
    model, options = folder / f"model-{name}", {**ENGINE, **KINDS[request.param]}
    with EngineProcess(folder / "log", "/nonexistent", model=str(model),
                       load_format="auto", **options) as engine:
        assert engine.answer() == "ready"
        return model, options, engine.ask("generate")


def in_place(budget, **more):
    return {"model_loader_extra_config": {
        "in_place": "auto", "budget": budget, **more}}


def test_engines_with_experts_in_place_share_them_and_say_what_plain_ones_do(
        start, hoistd, kind):
    model, options, tokens = kind
    with start(model, **options, **in_place(0.75)) as engine:
        assert engine.ask("generate") == tokens
        engine.ask("ask", what="hoist_advance")
        (after,) = engine.ask("ask", what="hoist_in_place")
        assert after["touched_hot_bytes"] and after["touched_cold_bytes"]
        assert engine.ask("generate") == tokens
        (facts,) = engine.facts()
        assert facts["shared"] == facts["bytes"] and facts["dirty"] == 0
    with hoist.connect(hoistd.socket) as session:
        cuts = find(session, facts["model"])[1].cuts
    # Of each layer both weights; scales have less bytes than a piece.
    assert len(cuts) == 4 and {one.units for one in cuts.values()} == {32}
    with start(model, **options, **in_place(1.0)) as engine:
        assert engine.ask("generate") == tokens
        assert engine.facts()[0]["model"] == facts["model"]
        # It loads weights as vLLM does only to publish them.
        assert "Loading safetensors" not in engine.text()


def test_without_in_place_quantised_experts_are_shared_whole(start, kind):
    model, options, tokens = kind
    with start(model, **options) as engine:
        assert engine.ask("generate") == tokens
        (facts,) = engine.facts()
        assert facts["shared"] == facts["bytes"]


@pytest.mark.hoistd(pool=160 * MIB, host=24 * MIB, in_place=64 * MIB,
                    spills=True)
@pytest.mark.parametrize("kind", ["mixture_int4"], indirect=True)
def test_where_a_disk_has_the_experts_the_host_has_them_in_place_alone(
        start, hoistd, kind):
    model, options, tokens = kind
    with start(model, **options, **in_place(0.75)) as engine:
        (facts,) = engine.facts()
        assert facts["bytes"] > 2 * 24 * MIB  # More than the pool holds.
        until(lambda: hoistd.tier("HOST")["unsaved_bytes"] == 0)
        hoistd.ctl("evict", facts["model"])
        assert hoistd.tier("HOST")["used_bytes"] == 0
        assert hoistd.tier("DEVICE", 1)["used_bytes"]
        assert engine.ask("generate") == tokens


@pytest.mark.parametrize("kind", ["mixture_int4"], indirect=True)
def test_a_name_is_for_engines_with_experts_in_place_or_for_those_without(
        start, kind):
    model, options, _ = kind
    start(model, **options, **in_place(1.0, name="prod"))
    engine = start.begin(model, model_loader_extra_config={"name": "prod"},
                         **options)
    with pytest.raises(Refused, match="in place is no here and experts there"):
        engine.answer()
