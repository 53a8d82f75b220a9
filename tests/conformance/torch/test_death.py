"""hoistd dies and is started again: modules go on, bit for bit, without any call
by the user. Each hoistd is killed with SIGKILL."""

from __future__ import annotations

import copy
import gc
import json
import os
import pathlib
import re
import threading
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

import hoist  # noqa: E402
from deaths import start_again  # noqa: E402
from equal import same_bytes  # noqa: E402
from hoist.nn import IdleTensor  # noqa: E402
from hoist._plan import Plan  # noqa: E402
from hoist.nn._api.attachment import attachment_of  # noqa: E402
from hoist.nn._tensors.resident import ResidentParameter  # noqa: E402
from models import Stack, WIDTH, numbers  # noqa: E402
from passes import assert_passes, least_budget, make, references  # noqa: E402
from real_daemon import until  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.real_time


class World:
    """A case's module, its weights and outputs, and a hoistd to kill."""

    def __init__(self, make_hoistd, device, folder: pathlib.Path, name: str,
                 **sizes: Any) -> None:
        self.case, self.model = make(name)
        self.device = device
        self.values = {key: value.detach().clone() for key, value in
                       self.model.state_dict().items()}
        self.expected = references(self.case, self.model, device)
        self.path = folder / "model.safetensors"
        safetensors.save_model(self.model, str(self.path))
        self.daemon = make_hoistd(**sizes)

    def load(self, budget: Any = 0.6, **options: Any) -> nn.Module:
        def factory() -> nn.Module:
            torch.manual_seed(0)
            return self.case.make().eval()

        self.model = hoist.load(factory, self.path, budget, **options)
        return self.model

    def wait(self, seconds: float) -> None:
        """For a hoistd that has ended. `stage_deadline` would bound each stage
        of a hoistd that lives, too, which may be slow here."""
        vars(self.model)["_hoist"].link.wait = seconds

    def passes(self, model: nn.Module | None = None) -> None:
        assert_passes(self.case, model or self.model, self.device,
                      self.expected)

    def again(self) -> None:
        self.daemon.kill()
        start_again(self.daemon)

    def assert_values(self, model: nn.Module | None = None) -> None:
        state = (model or self.model).state_dict()
        assert state.keys() == self.values.keys()
        for key, value in state.items():
            assert same_bytes(value, self.values[key]), key

    def assert_own(self, model: nn.Module | None = None) -> None:
        """Detached, with all that it had."""
        model = model or self.model
        self.assert_values(model)
        for value in [*model.parameters(), *model.buffers()]:
            assert not isinstance(value, IdleTensor)
        assert not any("_hoist" in vars(one) for one in model.modules())


@pytest.fixture
def world(make_hoistd, device, tmp_path):
    def build(name: str = "transformer", **sizes: Any) -> World:
        return World(make_hoistd, device, tmp_path, name, **sizes)

    return build


@pytest.fixture
def kept_world(world, hoist_keeper):
    """Under hoist-keeper, which starts hoistd again by itself."""
    def build(name: str = "transformer") -> World:
        made = world(name, keeper=hoist_keeper)
        made.again = lambda: made.daemon.kill_kept()
        return made

    return build


def kill_within(world: World, target: nn.Module) -> None:
    """At the end of the target's next call."""
    def kill(*_: Any) -> None:
        handle.remove()
        world.daemon.kill()

    handle = target.register_forward_hook(kill)


# Between passes.


@pytest.mark.only_emulated("on a GPU the first call tells what may be void")
@pytest.mark.parametrize("idle", ["cpu", "slot", "meta"])
@pytest.mark.parametrize("name", ["stack", "transformer", "image"])
def test_a_loaded_module_goes_on(world, name, idle):
    one = world(name)
    model = one.load(idle=idle)
    one.passes()
    before = hoist.stats(model)
    for _ in range(2):
        one.again()
        one.passes()
    after = hoist.stats(model)
    for what in ("model", "groups", "budget_bytes", "pinned_bytes",
                 "resident_bytes", "ring_bytes", "streamed_bytes"):
        assert getattr(after, what) == getattr(before, what), what
    assert after.bound_groups == before.bound_groups
    assert before.stages < after.stages <= 3 * before.stages
    assert after.passes == 3 * before.passes
    if idle != "meta":
        one.assert_values()
    hoist.detach(model)
    one.assert_own()


def test_a_plan_is_made_anew_as_it_was(world, device):
    """With the terms, the budget that was set and the order that was
    learned."""
    one = world("stack")
    model = one.load(0.9, weight=7, priority=3, max_bytes_per_second=10**9,
                     stage_deadline=45.0)
    least = hoist.stats(model).model_bytes // 2
    hoist.set_budget(model, least)
    one.passes()
    plans = one.daemon.ctl("plans", "--json")
    hoist.check(model)
    one.again()
    one.passes()
    kept = ("weight", "priority", "max_bytes_per_second", "budget_bytes")

    def facts(text: str) -> list[dict[str, Any]]:
        return [{key: value for key, value in plan.items() if any(
            name in key for name in kept)} for plan in
            json.loads(text)["plans"]]

    found = facts(one.daemon.ctl("plans", "--json"))
    assert found == facts(plans) and any(found[0].values()), found


def test_set_budget_after_the_death_attaches_again(world):
    one = world("stack")
    model = one.load(0.9)
    one.passes()
    one.again()
    hoist.set_budget(model, 0.5)
    half = hoist.stats(model)
    assert half.budget_bytes < 0.6 * half.model_bytes
    one.passes()


def test_weights_that_somebody_kept_have_their_values(world):
    """The same objects, read before anything was staged again."""
    one = world("transformer")
    model = one.load()
    kept = dict(model.named_parameters())
    one.again()
    for key, value in kept.items():
        assert same_bytes(value, one.values[key]), key
    one.passes()
    for key, value in model.named_parameters():
        assert value is kept[key] or isinstance(value, ResidentParameter), key
    for key, value in kept.items():
        assert same_bytes(value, one.values[key]), key


def test_blocks_and_parts_that_are_called_alone_go_on(world, device):
    one = world("stack")
    model = one.load()
    one.passes()
    x = numbers(2, WIDTH).to(device)
    with torch.no_grad():
        expected = model.layers[2](x)
        hoist.check(model)
        one.again()
        assert torch.equal(model.layers[2](x), expected)
        hoist.check(model)
        one.again()
        with hoist.stage(model.layers[2]) as layer:
            assert same_bytes(layer.up.weight,
                              one.values["layers.2.up.weight"])
    one.passes()


def test_the_next_hoistd_has_room_for_all_in_the_middle_of_a_call(world,
                                                                  device):
    """What is called, or read by a backward, is bound by the time it is there."""
    one = world("stack")
    model = one.load().requires_grad_(False)
    x = numbers(2, WIDTH).to(device).requires_grad_()

    def again() -> None:
        hoist.check(model)
        assert hoist.stats(model).bound_groups < hoist.stats(model).groups
        vars(model)["_hoist"].planning.expect_budget(1.0)
        one.again()

    for _ in range(3):
        made = model(x)
    expected, = torch.autograd.grad(made.sum(), x, retain_graph=True)
    again()
    found, = torch.autograd.grad(made.sum(), x)
    assert torch.equal(found, expected)
    assert hoist.stats(model).bound_groups == hoist.stats(model).groups

    hoist.set_budget(model, 0.6)
    with torch.no_grad():
        expected = model.layers[2](x)
        again()
        assert torch.equal(model.layers[2](x), expected)
    assert hoist.stats(model).bound_groups == hoist.stats(model).groups
    one.passes()


def test_casts_and_conversions_are_made_again(world, device):
    one = world("stack")
    wanted = one.case.make().eval()
    wanted.load_state_dict(one.values)
    half = wanted.to(torch.bfloat16)
    for options in ({"dtype": torch.bfloat16},
                    {"dtype": torch.bfloat16, "storage_dtype":
                     torch.float8_e4m3fn}):
        model = one.load(**options)
        x = numbers(3, WIDTH).to(device, torch.bfloat16)
        with torch.no_grad():
            expected = model(x)
            hoist.check(model)
            one.again()
            assert torch.equal(model(x), expected)
        hoist.check(model)
        one.daemon.kill()  # From the files, by this process.
        hoist.detach(model)
        for key, value in model.state_dict().items():
            assert same_bytes(value, half.state_dict()[key]), key
        start_again(one.daemon)


# In the midst of passes.


@pytest.mark.parametrize("name,idle", [
    ("stack", "cpu"), ("stack", "slot"), ("transformer", "cpu"),
    ("twice", "slot")])
def test_the_pass_that_is_hit_ends_with_one_error(world, name, idle):
    one = world(name)
    model = one.load(least_share(one), idle=idle)
    one.passes()
    for at in (0, 2, 3):
        kill_within(one, model.layers[at])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(hoist.Unavailable,
                               match="hoistd has ended .* attaches the module "
                               "again"):
                one.passes()
        start_again(one.daemon)
        one.passes()
    one.assert_values()
    kill_within(one, model.layers[1])
    with pytest.raises(hoist.Unavailable):
        one.passes()
    hoist.detach(model)
    one.assert_own()


def least_share(one: World) -> int:
    """The least that a loaded module may have."""
    with pytest.raises(hoist.ResourceExhausted) as refused:
        one.load(1)
    return int(re.findall(r"would be enough is (\d+) bytes",
                          str(refused.value))[-1])


def test_other_threads_end_and_go_on(world, device):
    """Passes of four threads, some under inference_mode, and reads beside
    them, over three deaths: equal or Unavailable, and none hangs."""
    one = world("stack")
    model = one.load(least_share(one))
    x = numbers(2, WIDTH).to(device)
    with torch.no_grad():
        expected = model(x)
    hoist.check(model)
    kept = model.layers[1].up.weight
    stop = threading.Event()
    wrong: list[Any] = []
    done = [0] * 4

    def run(at: int) -> None:
        while not stop.is_set():
            try:
                with torch.inference_mode(at % 2 == 0), torch.no_grad():
                    if at == 3:
                        y = kept.sum()
                        wanted = one.values["layers.1.up.weight"].sum()
                    else:
                        y, wanted = model(x), expected
                    equal = torch.equal(y.cpu(), wanted.cpu())
                    if at != 3:
                        hoist.check(model)
                if not equal:
                    wrong.append((at, y - wanted))
                done[at] += 1
            except hoist.Unavailable:
                pass
            except BaseException as error:
                wrong.append((at, error))
                return

    threads = [threading.Thread(target=run, args=(at,), daemon=True)
               for at in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        before = list(done)
        until(lambda: all(now > then for now, then in zip(done, before))
              or wrong)
        one.again()
    before = list(done)
    until(lambda: all(now > then for now, then in zip(done, before)) or wrong)
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong, wrong


# While there is no hoistd.


def test_a_pass_waits_for_a_hoistd(world):
    """That is started while it waits."""
    one = world("stack")
    one.load(stage_deadline=60.0)
    one.daemon.kill()
    tried = threading.Event()
    connect = hoist.Session.reconnect

    def reconnect(self):
        tried.set()
        return connect(self)

    def start() -> None:
        assert tried.wait(60)
        start_again(one.daemon)

    thread = threading.Thread(target=start)
    thread.start()
    hoist.Session.reconnect = reconnect
    try:
        one.passes()
    finally:
        hoist.Session.reconnect = connect
        thread.join()


def test_the_wait_ends_and_later_passes_try_once(world, monkeypatch):
    one = world("stack")
    one.load()
    one.wait(0.5)
    one.daemon.kill()
    tries = []
    connect = hoist.Session.reconnect
    monkeypatch.setattr(hoist.Session, "reconnect", lambda self: (
        tries.append(0), connect(self))[1])
    with pytest.raises(hoist.Unavailable, match="for 0.5 s once, then tries"):
        one.passes()
    assert len(tries) > 1
    for _ in range(3):
        tries.clear()
        with pytest.raises(hoist.Unavailable):
            one.passes()
        assert len(tries) == 1
    with pytest.raises(hoist.Unavailable):
        one.model.layers[0].up.weight.sum()
    start_again(one.daemon)
    one.passes()


def test_files_that_have_changed_are_refused(world):
    one = world("stack")
    kept, other = (one.path.with_name(name) for name in ("kept", "other"))
    os.rename(one.path, kept)
    other.write_bytes(kept.read_bytes())
    os.symlink(kept, one.path)
    model = one.load()
    one.passes()
    os.remove(one.path)
    os.symlink(other, one.path)
    one.again()
    for _ in range(2):
        with pytest.raises(hoist.DataLoss, match="files .* have changed"):
            one.passes()
    with pytest.raises(hoist.DataLoss):
        model.layers[0].up.weight.sum()
    os.remove(one.path)
    with pytest.raises(hoist.NotFound):
        one.passes()
    os.symlink(kept, one.path)
    one.passes()


# Weights that this process handed over.


@pytest.mark.parametrize("name", [None, "mine"])
def test_an_attached_module_goes_on_under_a_keeper(kept_world, name):
    one = kept_world()
    hoist.attach(one.model, 0.6, name=name)
    one.passes()
    for _ in range(3):
        one.again()
        one.passes()
    one.again()
    one.assert_values()
    hoist.detach(one.model)
    one.assert_own()


def test_weights_that_are_nowhere_are_said_to_be(world):
    """And another worker that has them is enough."""
    one = world("stack")
    other = copy.deepcopy(one.model)
    hoist.attach(one.model, 0.6)
    one.passes()
    one.again()
    for _ in range(2):
        with pytest.raises(hoist.NotFound, match="have one that has them"):
            one.passes()
    with pytest.raises(hoist.NotFound):
        one.model.layers[0].up.weight.sum()
    hoist.attach(other, 0.6)
    one.passes()
    hoist.detach(one.model)
    one.assert_own()
    one.passes(other)


@pytest.mark.parametrize("again", [False, True])
def test_detach_ends_what_is_lost(world, again):
    """It says what, and leaves nothing that could be taken for a weight."""
    one = world("stack")
    # Nothing stays on the device, whose bytes would be this process's.
    hoist.attach(one.model, least_budget(one.model))
    one.passes()
    one.wait(0.2)
    one.daemon.kill()
    if again:
        start_again(one.daemon)
    with pytest.raises(hoist.DataLoss, match='6 of its 6 .*"layers.0"'):
        hoist.detach(one.model)
    assert all(type(value) is nn.Parameter and value.is_meta
               and value.requires_grad for value in one.model.parameters())
    with pytest.raises(hoist.NotFound):
        hoist.detach(one.model)
    if not again:
        start_again(one.daemon)
    hoist.load(one.model, one.path, 0.6)
    one.passes()
    hoist.detach(one.model)
    one.assert_own()
    hoist.attach(one.model, 0.6)
    one.passes()


def test_what_was_read_before_is_not_lost(world):
    """One group's bytes are still in this process."""
    one = world("stack")
    hoist.attach(one.model, 0.6)
    one.wait(0.2)
    one.model.layers[3].up.weight.sum()
    one.daemon.kill()
    with pytest.raises(hoist.DataLoss, match="5 of its 6"):
        hoist.detach(one.model)
    for key, value in one.model.state_dict().items():
        if key.startswith("layers.3."):
            assert same_bytes(value, one.values[key]), key
        else:
            assert value.is_meta, key


# Detach, in whichever state.


@pytest.mark.parametrize("name", ["stack", "transformer", "image"])
@pytest.mark.parametrize("state", ["dead", "again", "unnoticed", "failed"])
def test_detach_gives_a_loaded_module_its_weights(world, name, state):
    one = world(name)
    model = one.load()
    one.passes()
    one.wait(0.2)
    one.daemon.kill()
    if state == "failed":
        with pytest.raises(hoist.Unavailable):
            one.passes()
    if state in ("again", "unnoticed"):
        start_again(one.daemon)
    if state == "again":
        one.passes()
    hoist.detach(model)
    one.assert_own()
    if state in ("dead", "failed"):
        start_again(one.daemon)
    hoist.attach(model, 0.6)
    one.passes()


def test_detach_works_after_the_session_was_closed(world):
    one = world("stack")
    with hoist.connect(one.daemon.socket) as session:
        hoist.attach(one.model, 0.6, session=session)
        one.passes()
    with pytest.raises(hoist.FailedPrecondition, match="closed"):
        one.passes()
    hoist.detach(one.model)
    one.assert_own()


# Several, and what is left behind.


def test_modules_and_sessions_go_on_side_by_side(world, device):
    """Two modules of one session, one of another; each dead session's memory
    is unmapped with its last user."""
    one = world("stack")
    models = []
    with torch.no_grad():
        for _ in range(2):
            models.append(one.load())
        session = hoist.connect(one.daemon.socket)
        models.append(one.load(session=session))
        for _ in range(2):
            for model in models:
                one.passes(model)
            one.again()
    for model in models:
        one.passes(model)
    links = [vars(model)["_hoist"].link for model in models]
    assert links[0].session is links[1].session
    assert links[2].session is not links[0].session
    with pytest.raises(hoist.Unavailable):
        session.check()
    assert hoist.stats(one.load()).groups == 6  # By the default session.
    one.daemon.kill()
    del models, model, session, links
    one.model = None
    gc.collect()
    start_again(one.daemon)
    one.load()
    one.passes()


@pytest.mark.only_emulated("it looks at this process's mappings")
def test_the_old_hoistds_memory_is_let_go_of(world):
    def mapped() -> set[str]:
        return {line.split()[4] for line in
                pathlib.Path("/proc/self/maps").read_text().splitlines()
                if "memfd:hoist-slab" in line or "memfd:hoist-device" in line}

    one = world("stack")
    others = mapped()
    one.load()
    one.passes()
    before = mapped() - others
    assert before
    one.again()
    one.passes()
    gc.collect()
    assert not before & mapped()


def test_adapters_stay(world, device):
    peft = pytest.importorskip("peft")
    one = world("stack")
    model = one.load()
    torch.manual_seed(7)
    adapted = peft.get_peft_model(model, peft.LoraConfig(
        r=2, target_modules=["up", "down"], init_lora_weights=False)).eval()
    x = numbers(2, WIDTH).to(device)
    with torch.no_grad():
        expected = adapted(x)
        hoist.check(model)
        one.again()
        assert torch.equal(adapted(x), expected)


def test_a_module_that_is_dropped_after_the_death_is_collected(world):
    one = world("stack")
    model = one.load()
    kept = model.layers[0].up.weight
    one.daemon.kill()
    del model
    one.model = None
    gc.collect()
    start_again(one.daemon)
    with pytest.raises(hoist.Unavailable, match="is gone"):
        kept.sum()


def test_a_plan_that_ended_alone_is_made_anew(hoistd, device, monkeypatch):
    """As one that the next hoistd did not get; the session goes on."""
    ended: list[Plan] = []

    def unless_ended(name: str) -> None:
        real = getattr(Plan, name)

        def call(self: Plan, *args: Any, **kwargs: Any) -> Any:
            if self in ended:
                raise hoist.Aborted("the plan has ended with the hoistd that "
                                    "made it; make it anew")
            return real(self, *args, **kwargs)

        monkeypatch.setattr(Plan, name, call)

    model = Stack(6).eval()
    x = numbers(2, WIDTH).to(device)
    with torch.no_grad():
        expected = copy.deepcopy(model).to(device)(x)
        hoist.attach(model, 0.4)
        model(x), model(x)
        for name in ("check", "stage"):
            unless_ended(name)
        part, = attachment_of(model).parts
        session, plan = part.session, part.plan
        hoist.check(model)  # Or a GPU's results since the last one are void.
        ended.append(plan)
        assert same_bytes(model(x), expected)
        assert part.plan is not plan and part.session is session
        # A call from outside of passes is the first to see it.
        hoist.check(model)
        ended.append(part.plan)
        model.layers[1](x)
        assert same_bytes(model(x), expected)
        hoist.check(model)
    hoist.detach(model)
