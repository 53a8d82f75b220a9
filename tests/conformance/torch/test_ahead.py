"""Cold experts that are copied ahead of their reads: transformers' mixtures,
whatever the guesses."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import hoist  # noqa: E402
from deaths import start_again  # noqa: E402
from equal import same_bytes  # noqa: E402
from failing import Belongings, drain  # noqa: E402
from hoist.nn._plan import ahead, in_place, places  # noqa: E402
from hoist.nn._plan.places import PLACES  # noqa: E402
from real_daemon import MIB  # noqa: E402
from test_in_place import in_two_threads  # noqa: E402
from torch import nn  # noqa: E402
from transformers.models.qwen3_moe import (  # noqa: E402
    modeling_qwen3_moe)

EXPERTS, LAYERS, CHOSEN = 8, 3, 2

pytestmark = [pytest.mark.usefixtures("hoistd"),
              pytest.mark.hoistd(pool=96 * MIB, host=192 * MIB)]

SIZES = dict(vocab_size=64, hidden_size=256, num_hidden_layers=LAYERS,
             num_attention_heads=4, num_key_value_heads=2, head_dim=64,
             num_experts_per_tok=CHOSEN)
# Of 1 MiB and half of it; whose experts end within a page; with biases.
KINDS: dict[str, Any] = {
    "qwen3": lambda: transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**SIZES, num_experts=EXPERTS,
                                    intermediate_size=256,
                                    moe_intermediate_size=512)),
    "mixtral": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**SIZES, num_local_experts=EXPERTS,
                                   intermediate_size=320)),
    "gpt_oss": lambda: transformers.GptOssForCausalLM(
        transformers.GptOssConfig(**SIZES, num_local_experts=EXPERTS,
                                  intermediate_size=512)),
}


def make(device: torch.device, kind: str = "qwen3",
         function: str = "grouped_mm") -> Any:
    torch.manual_seed(0)
    model = KINDS[kind]().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # Biases and norms, too.
            parameter.add_(torch.randn_like(parameter) * 0.02)
        model.model.embed_tokens.weight.mul_(100)  # Layers change it little.
    model.set_experts_implementation(function)
    return model.to(device).requires_grad_(False)


def decode(model: Any, device: torch.device, length: int = 6) -> Any:
    """Logits of a prompt and of each token after it."""
    ids = torch.arange(5, device=device)[None]
    outs = []
    with torch.no_grad():
        out = model(ids, use_cache=True)
        for _ in range(length):
            outs.append(out.logits[:, -1].clone())
            out = model(outs[-1].argmax(-1)[:, None], use_cache=True,
                        past_key_values=out.past_key_values)
    return outs


def same(ours: Any, theirs: Any) -> bool:
    return all(same_bytes(a.cpu(), b.cpu()) for a, b in zip(ours, theirs))


class Truth:
    """Of a run of the model: what its routers chose."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self.seen: list[torch.Tensor] = []
        hooks = [layer.mlp.experts.register_forward_pre_hook(
                     lambda _, args: self.seen.append(args[1].clone()))
                 for layer in model.model.layers]
        self.outs = decode(model, device)
        for hook in hooks:
            hook.remove()


def guesses(name: str, truth: Truth, device: torch.device) -> Any:
    """Of an attached run in the same order."""
    random = torch.Generator().manual_seed(3)
    passes = [1] * LAYERS  # Of each layer; the prompt has no guesses.
    every = torch.arange(EXPERTS, device=device)

    def right(number: int) -> torch.Tensor:
        at = passes[number]
        passes[number] += 1
        return truth.seen[at * LAYERS + number].reshape(-1)

    def guess(number: int, hidden: torch.Tensor) -> Any:
        wanted = right(number)
        if name == "right":
            return wanted
        if name == "wrong":
            return every[~torch.isin(every, wanted)]
        if name == "random":
            return torch.randint(0, EXPERTS, (3,), generator=random).to(device)
        if name == "none":
            return None
        return torch.tensor([-1, 7, EXPERTS, 7, 2**40, -2**40, 0, 99],
                            device=device)

    return guess


@pytest.mark.parametrize("function", ["grouped_mm", "batched_mm"])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_the_resident_models(device, kind, function):
    model = make(device, kind, function)
    expected = decode(model, device)
    hoist.attach(model, budget="40MiB", in_place="auto", ahead="auto")
    hoist.set_budget(model, "26MiB")
    for _ in range(3):
        assert same(decode(model, device), expected)
        hoist.advance(model, wait=True)
    stats = hoist.stats(model)
    assert 0 < stats.fetched_read_bytes <= stats.fetched_bytes
    assert stats.guessed > 0
    hoist.detach(model)
    assert same(decode(model, device), expected)


@pytest.mark.parametrize("name", ["right", "wrong", "random", "none",
                                  "adversarial"])
def test_outputs_do_not_depend_on_the_guess(device, name):
    model = make(device)
    truth = Truth(model, device)
    hoist.attach(model, budget="40MiB", in_place="auto",
                 ahead=guesses(name, truth, device))
    hoist.set_budget(model, "26MiB")
    assert same(decode(model, device), truth.outs)
    stats = hoist.stats(model)
    if name == "right":
        assert stats.fetched_read_bytes == stats.fetched_bytes > 0
        # Each token's, in each layer, of which some may be hot.
        assert stats.guessed == 6 * LAYERS * CHOSEN
    if name == "wrong":
        assert stats.fetched_bytes > stats.fetched_read_bytes == 0
    if name == "none":
        assert stats.fetched_bytes == stats.guessed == 0
    hoist.detach(model)


class Layer(nn.Module):
    """Its experts and their router, whose calls a CUDA graph can capture."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.mlp = modeling_qwen3_moe.Qwen3MoeSparseMoeBlock(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(x)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = transformers.Qwen3MoeConfig(**SIZES, num_experts=EXPERTS,
                                             moe_intermediate_size=512)
        config._experts_implementation = "batched_mm"
        self.layers = nn.ModuleList(Layer(config) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def make_layers(device: torch.device) -> tuple[Layers, Any, Any]:
    """And inputs whose tokens go to many experts, with their outputs."""
    torch.manual_seed(0)
    model = Layers().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.05)
    model.to(device).requires_grad_(False)
    inputs = torch.randn(8, 1, 1, 256).to(device)
    with torch.no_grad():
        return model, inputs, [model(x) for x in inputs]


@pytest.mark.only_cuda("needs CUDA graphs")
def test_two_graphs_and_eager_passes_between_them_are_right(device):
    model, inputs, expected = make_layers(device)
    hoist.attach(model, budget="31MiB", in_place="experts", ahead="auto")

    def pass_eagerly() -> None:
        for given, want in zip(inputs, expected):
            assert torch.equal(model(given), want)

    x = inputs[0].clone()
    with torch.no_grad():
        for _ in range(2):
            pass_eagerly()
            hoist.advance(model, wait=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = model(x)
            for _ in range(20):  # Pieces move meanwhile.
                for given, want in zip(inputs, expected):
                    x.copy_(given)
                    graph.replay()
                    assert torch.equal(out, want)
            pass_eagerly()
            del graph
        pass_eagerly()
    stats = hoist.stats(model)
    assert stats.hot_moves > 0
    assert 0 < stats.fetched_read_bytes <= stats.fetched_bytes
    hoist.detach(model)


def fetched(model: Any) -> int:
    return int(hoist.stats(model).fetched_bytes)


def test_two_threads_are_right_while_pieces_move(device):
    model, inputs, expected = make_layers(device)
    hoist.attach(model, budget="31MiB", in_place="experts", ahead="auto")
    wrong: list[Any] = []

    @torch.no_grad()
    def work() -> None:
        for _ in range(20):
            for given, want in zip(inputs, expected):
                if not same_bytes(model(given).cpu(), want.cpu()):
                    wrong.append(given)

    in_two_threads(work)
    assert not wrong
    assert fetched(model) > 0
    hoist.detach(model)


@torch.no_grad()
def test_after_hoistds_end_copies_go_on_from_what_is_mapped(make_hoistd,
                                                            device):
    daemon = make_hoistd(pool=96 * MIB, host=192 * MIB)
    model, inputs, expected = make_layers(device)
    hoist.attach(model, budget="31MiB", in_place="experts", ahead="auto")
    for x in inputs:
        model(x)
    daemon.kill()
    start_again(daemon)
    other, *_ = make_layers(device)  # Who brings the same bytes again.
    hoist.attach(other, budget="31MiB", in_place="experts")
    with contextlib.suppress(hoist.Unavailable):  # Of a GPU, once.
        model(inputs[0])
    before = fetched(model)
    assert same([model(x) for x in inputs], expected)
    assert fetched(model) > before
    hoist.detach(other)
    hoist.detach(model)
    assert same([model(x) for x in inputs], expected)


@torch.no_grad()
def test_while_hoistd_drains_copies_go_on_and_who_comes_is_refused(
        make_hoistd, device):
    daemon = make_hoistd(pool=96 * MIB, host=192 * MIB)
    model, inputs, expected = make_layers(device)
    hoist.attach(model, budget="31MiB", in_place="experts", ahead="auto")
    model(inputs[0])
    drain(daemon)
    for budget in "31MiB", "4MiB", "31MiB":
        hoist.set_budget(model, budget)
        before = fetched(model)
        assert same([model(x) for x in inputs], expected)
        assert (fetched(model) > before) == (budget == "31MiB")
    late, *_ = make_layers(device)
    next(late.parameters()).add_(1)  # hoistd has none of its bytes.
    own = Belongings(late)
    with pytest.raises(hoist.Unavailable, match="draining"):
        hoist.attach(late, budget="31MiB", in_place="experts", ahead="auto")
    own.assert_all_there()
    hoist.detach(model)
    assert same([model(x) for x in inputs], expected)
    daemon.ctl("drain", "--deadline", "60")


@torch.no_grad()
def test_a_budget_without_room_is_told_how_much_would_be_enough(device):
    model, inputs, expected = make_layers(device)

    def attach(mebibytes: int) -> None:
        hoist.attach(model, budget=mebibytes * MIB, in_place="experts",
                     ahead="auto")

    with pytest.raises(hoist.ResourceExhausted) as refused:
        attach(2)
    found = re.search("([0-9]+) MiB more would be enough", str(refused.value))
    enough = 2 + int(found[1])
    with pytest.raises(hoist.ResourceExhausted, match="1 MiB more"):
        attach(enough - 1)
    attach(enough)
    for _ in range(2):
        assert same([model(x) for x in inputs], expected)
    assert fetched(model) > 0
    hoist.detach(model)


@torch.no_grad()
def test_a_full_device_is_refused_until_there_is_room(make_hoistd, device):
    make_hoistd(pool=32 * MIB, host=192 * MIB)
    other = nn.Linear(2048, 4096, bias=False).to(device)
    hoist.attach(other, budget=1.0)
    model, inputs, expected = make_layers(device)
    own = Belongings(model)
    options = dict(budget="31MiB", in_place="experts", ahead="auto")
    with pytest.raises(hoist.ResourceExhausted, match="the plan needs"):
        hoist.attach(model, **options)
    own.assert_all_there()
    assert same([model(x) for x in inputs], expected)
    hoist.detach(other)
    hoist.attach(model, **options)
    for _ in range(2):
        assert same([model(x) for x in inputs], expected)
    assert fetched(model) > 0
    hoist.detach(model)


@pytest.mark.parametrize("where, name, at", [
    (ahead, "find_stacks", 1), (ahead.Ahead, "check", 1),
    (in_place, "Views", 1), (places.Places, "__init__", LAYERS),
    (ahead, "_AtLayer", LAYERS), (ahead, "Renaming", LAYERS),
    (ahead, "Routers", 1), (in_place, "operands_of", 1)])
def test_a_step_that_fails_leaves_the_module_as_it_was(device, monkeypatch,
                                                       where, name, at):
    model, inputs, expected = make_layers(device)
    own = Belongings(model)
    made, calls = getattr(where, name), itertools.count(1)

    def fails_once(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at:
            raise MemoryError("planted")
        return made(*args, **kwargs)

    monkeypatch.setattr(where, name, fails_once)
    options = dict(budget="31MiB", in_place="experts", ahead="auto")
    with pytest.raises(MemoryError, match="planted"):
        hoist.attach(model, **options)
    own.assert_all_there()
    with torch.no_grad():
        assert same([model(x) for x in inputs], expected)
        hoist.attach(model, **options)
        for _ in range(2):
            assert same([model(x) for x in inputs], expected)
    assert fetched(model) > 0
    hoist.detach(model)


@torch.no_grad()
def test_a_guess_that_fails_ends_its_pass_alone(device):
    model, inputs, expected = make_layers(device)
    every, calls = torch.arange(EXPERTS, device=device), itertools.count(1)

    def guess(number: int, hidden: torch.Tensor) -> torch.Tensor:
        if next(calls) == LAYERS:  # Of a pass whose first layers have run.
            raise ZeroDivisionError("no guess")
        return every

    hoist.attach(model, budget="31MiB", in_place="experts", ahead=guess)
    with pytest.raises(ZeroDivisionError, match="no guess"):
        model(inputs[0])
    assert same([model(x) for x in inputs], expected)
    assert fetched(model) > 0
    assert hoist.stats(model).guessed == EXPERTS * (LAYERS - 1
                                                    + LAYERS * len(inputs))
    hoist.detach(model)


@torch.no_grad()
def test_the_module_shows_its_own_experts_alone(device):
    model, inputs, expected = make_layers(device)
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    called = [vars(layer.mlp.experts).get("forward") for layer in model.layers]
    hoist.attach(model, budget="31MiB", in_place="experts", ahead="auto")
    model(inputs[0])

    def shows() -> bool:
        shown = model.state_dict()
        return shown.keys() == plain.keys() and all(
            same_bytes(shown[name].cpu(), plain[name].cpu()) for name in plain)

    assert shows()
    assert all(layer.mlp.experts.num_experts == EXPERTS
               for layer in model.layers)
    hoist.detach(model)
    assert shows()
    assert [vars(layer.mlp.experts).get("forward")
            for layer in model.layers] == called
    assert same([model(x) for x in inputs], expected)


@pytest.mark.parametrize("options, error, what", [
    (dict(ahead="auto"), hoist.InvalidArgument, "in_place="),
    (dict(ahead="router", in_place="experts"), hoist.InvalidArgument,
     "neither \"auto\""),
    (dict(ahead="auto", in_place="experts", budget="2MiB"),
     hoist.ResourceExhausted, "ahead=None"),
    (dict(ahead="auto", in_place="gate"), hoist.InvalidArgument,
     "stacked experts")], ids=["alone", "unknown", "no room", "no experts"])
def test_what_cannot_be_is_refused_and_leaves_the_module_as_it_was(
        device, options, error, what):
    model, inputs, expected = make_layers(device)
    with pytest.raises(error, match=what):
        hoist.attach(model, **{"budget": "31MiB", **options})
    with torch.no_grad():
        assert same([model(x) for x in inputs], expected)
    assert all("forward" not in vars(layer.mlp.experts)
               for layer in model.layers)


def test_functions_that_follow_numbers_read_in_place(device):
    model, inputs, _ = make_layers(device)
    with pytest.raises(hoist.InvalidArgument,
                       match="set_experts_implementation"):
        for layer in model.layers:
            layer.mlp.experts.config._experts_implementation = "eager"
        hoist.attach(model, budget="31MiB", in_place="experts", ahead="auto")
    model, inputs, _ = make_layers(device)
    hoist.attach(model, budget="31MiB", in_place="experts", ahead="auto")
    for layer in model.layers:
        layer.mlp.experts.config._experts_implementation = "eager"
    with torch.no_grad():
        outs = [model(x) for x in inputs]
    assert fetched(model) == 0
    hoist.detach(model)
    with torch.no_grad():
        assert same([model(x) for x in inputs], outs)


@torch.no_grad()
def test_wrong_guesses_end_the_copies_until_they_are_right(device):
    model, inputs, expected = make_layers(device)
    read = [layer.mlp.gate.register_forward_hook(
                lambda *call, at=at: chosen.__setitem__(at, call[2][2][0]))
            for at, layer in enumerate(model.layers)]
    chosen: dict[int, torch.Tensor] = {}
    model(inputs[0])
    for hook in read:
        hook.remove()
    every = torch.arange(EXPERTS, device=device)
    right = False

    def guess(number: int, hidden: torch.Tensor) -> torch.Tensor:
        return (chosen[number] if right else
                every[~torch.isin(every, chosen[number])])

    # Nothing is hot beside the places.
    hoist.attach(model, budget="21MiB", in_place="experts", ahead=guess)

    def of_passes(count: int) -> int:
        """Copied experts."""
        before = fetched(model)
        for _ in range(count):
            assert torch.equal(model(inputs[0]), expected[0])
        return (fetched(model) - before) // (MIB * 3 // 2)

    assert 0 < of_passes(50)  # Until 20 that were chosen are too few.
    assert of_passes(20) == 0
    right = True
    of_passes(50)
    assert of_passes(20) == 20 * LAYERS * CHOSEN
    hoist.detach(model)


@torch.no_grad()
def test_places_come_and_go_with_the_budget(device):
    model, inputs, expected = make_layers(device)
    hoist.attach(model, budget="31MiB", in_place="experts", ahead="auto")

    def copies() -> bool:
        before = fetched(model)
        for _ in range(2):
            assert same([model(x) for x in inputs], expected)
        return fetched(model) > before

    assert copies()
    for _ in range(2):
        hoist.set_budget(model, "4MiB")
        assert not copies()
        hoist.set_budget(model, "31MiB")
        assert copies()
        hoist.sleep(model)
        hoist.wake(model)
        assert copies()
    hoist.detach(model)
