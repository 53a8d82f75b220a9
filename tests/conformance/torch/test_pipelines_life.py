"""Whole pipelines while they live: errors, ends, other processes, compilers and
deaths."""

from __future__ import annotations

import gc
import json
import os
import pathlib
import subprocess
import sys
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")
numpy = pytest.importorskip("numpy")

import hoist  # noqa: E402
from real_daemon import until  # noqa: E402
from sampled import sampled  # noqa: E402
from test_pipelines import (  # noqa: E402
    FLUX, MIB, assert_same_image, granted, resident)


def test_an_exception_in_the_middle_leaves_the_next_call_right(hoistd,
                                                               device):
    expected = FLUX.run(resident("flux", device))
    pipe = FLUX.make()
    hoist.attach_pipeline(pipe, 4 * MIB)

    def stop(pipe: Any, step: int, *_: Any) -> dict[str, Any]:
        if step == 1:
            raise KeyboardInterrupt
        return {}

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            FLUX.run(pipe, callback_on_step_end=stop)
        assert_same_image(FLUX.run(pipe), expected)


def test_a_component_can_be_detached_by_itself(hoistd, device):
    expected = FLUX.run(resident("flux", device))
    pipe = FLUX.make()
    hoist.attach_pipeline(pipe, 4 * MIB)
    FLUX.run(pipe)
    hoist.detach(pipe.vae)
    pipe.vae.to(device)
    assert_same_image(FLUX.run(pipe), expected)
    assert "vae" not in hoist.stats(pipe).components
    hoist.detach(pipe)


def test_a_pipeline_that_is_let_go_of_gives_all_back(hoistd, device):
    pipe = FLUX.make()
    hoist.attach_pipeline(pipe, 4 * MIB)
    FLUX.run(pipe)
    gone = weakref.ref(pipe.transformer)
    del pipe
    gc.collect()
    assert gone() is None
    assert hoistd.tier("DEVICE")["leased_bytes"] == 0


@pytest.mark.hoistd(host=64 * MIB)
def test_two_pipelines_share_what_is_pinned(hoistd, device):
    one, other = FLUX.make(), FLUX.make()
    hoist.attach_pipeline(one, 4 * MIB)
    pinned = hoistd.tier("HOST")["used_bytes"]
    hoist.attach_pipeline(other, 4 * MIB)
    assert hoistd.tier("HOST")["used_bytes"] <= 1.01 * pinned
    assert_same_image(FLUX.run(one), FLUX.run(other))


OTHER = """
import sys
import hoist
from pipelines import KINDS
pipe = KINDS["flux"].make()
hoist.attach_pipeline(pipe, int(sys.argv[1]))
print("attached", flush=True)
for _ in sys.stdin:
    print(KINDS["flux"].run(pipe).tobytes().hex(), flush=True)
"""


@pytest.mark.hoistd(host=64 * MIB)
def test_another_process_shares_what_is_pinned(hoistd, device):
    pipe = FLUX.make()
    hoist.attach_pipeline(pipe, 4 * MIB)
    pinned = hoistd.tier("HOST")["used_bytes"]
    paths = [str(pathlib.Path(hoist.__file__).parents[1]),
             str(pathlib.Path(__file__).parent),
             os.environ.get("PYTHONPATH", "")]
    with subprocess.Popen(
            [sys.executable, "-c", OTHER, str(4 * MIB)], text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == "attached\n"
        assert hoistd.tier("HOST")["used_bytes"] <= 1.01 * pinned
        for _ in range(2):  # Both at once.
            other.stdin.write("run\n")
            other.stdin.flush()
            image = FLUX.run(pipe)
            assert other.stdout.readline().strip() == image.tobytes().hex()
        assert hoistd.tier("HOST")["used_bytes"] <= 1.01 * pinned
        other.stdin.close()
        assert other.wait(timeout=60) == 0


@pytest.mark.parametrize("how", sampled(["module", "wrapper", "blocks"],
                                        "blocks"))
def test_a_compiled_denoiser_is_right(hoistd, device, how):
    expected = FLUX.run(resident("flux", device))
    pipe = FLUX.make()
    if how == "wrapper":
        pipe.transformer = torch.compile(pipe.transformer, backend="eager")
    hoist.attach_pipeline(pipe, 4 * MIB)
    if how == "module":
        pipe.transformer.compile(backend="eager")
    elif how == "blocks":
        for block in pipe.transformer.transformer_blocks:
            block.compile(backend="eager")
    for _ in range(2):
        assert_same_image(FLUX.run(pipe), expected)
    assert sum(granted(pipe).values()) <= 4 * MIB
    hoist.detach(pipe)
    assert_same_image(FLUX.run(pipe.to(device)), expected)


def test_a_death_of_hoistd_under_a_keeper_is_not_noticed(
        make_hoistd, hoist_keeper, device):
    hoistd = make_hoistd(keeper=hoist_keeper)
    expected = FLUX.run(resident("flux", device))
    pipe = FLUX.make()
    hoist.attach_pipeline(pipe, 4 * MIB)
    killed: list[int] = []

    def kill(pipe: Any, step: int, *_: Any) -> dict[str, Any]:
        if step == 1:
            hoistd.kill_kept()
            killed.append(step)
        return {}

    for _ in range(2):
        assert_same_image(FLUX.run(pipe, callback_on_step_end=kill), expected)
    assert len(killed) == 2
    hoist.check(pipe)
    assert sum(granted(pipe).values()) <= 4 * MIB


def plans(hoistd) -> list[dict[str, Any]]:
    return json.loads(hoistd.ctl("--json", "plans")).get("plans", [])


def session_of(hoistd) -> str:
    """This process's, by a plan."""
    return plans(hoistd)[0]["session_id"]


def is_asleep(pipe: Any) -> bool:
    return not any(granted(pipe).values())


def await_sleep(hoistd, pipe: Any) -> None:
    """Asks hoistd: to ask the pipeline without a pause would keep it busy."""
    until(lambda: not plans(hoistd))
    until(lambda: is_asleep(pipe))


@pytest.mark.usefixtures("nothing_is_compiled")
@pytest.mark.parametrize("budget", [4 * MIB, 1.0])
def test_all_its_modules_sleep_and_wake_when_the_session_is_asked(
        hoistd, device, budget):
    """With all of its bytes each module has a plan; else those that fit."""
    expected = FLUX.run(resident("flux", device))
    pipe = FLUX.make()
    hoist.attach_pipeline(pipe, budget)
    assert_same_image(FLUX.run(pipe), expected)
    session = session_of(hoistd)
    for _ in range(2):
        assert not is_asleep(pipe)
        hoistd.ctl("sleep", session)
        await_sleep(hoistd, pipe)
        hoistd.ctl("wake", session)
        until(lambda: not is_asleep(pipe))
        assert_same_image(FLUX.run(pipe), expected)
    hoist.detach(pipe)


@pytest.mark.usefixtures("nothing_is_compiled")
def test_its_next_call_wakes_a_pipeline_that_was_asked_to_sleep(hoistd,
                                                                device):
    expected = FLUX.run(resident("flux", device))
    pipe = FLUX.make()
    hoist.attach_pipeline(pipe, 4 * MIB)
    FLUX.run(pipe)
    hoistd.ctl("sleep", session_of(hoistd))
    await_sleep(hoistd, pipe)
    assert_same_image(FLUX.run(pipe), expected)
    hoist.detach(pipe)


@pytest.mark.usefixtures("nothing_is_compiled")
def test_a_pipeline_that_runs_sleeps_after_its_call(hoistd, device):
    expected = FLUX.run(resident("flux", device))
    pipe = FLUX.make()
    hoist.attach_pipeline(pipe, 4 * MIB)

    def ask(pipe: Any, step: int, *_: Any) -> dict[str, Any]:
        if step == 0:
            hoistd.ctl("sleep", session_of(hoistd))
        return {}

    assert_same_image(FLUX.run(pipe, callback_on_step_end=ask), expected)
    hoistd.ctl("sleep", session_of(hoistd))
    await_sleep(hoistd, pipe)
    assert_same_image(FLUX.run(pipe), expected)
    hoist.detach(pipe)
