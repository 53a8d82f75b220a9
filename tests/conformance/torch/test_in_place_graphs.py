"""Weights that are read where they lie, by compiled code and captured graphs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from real_daemon import until  # noqa: E402
from hoist.nn._api.attachment import attachment_of  # noqa: E402
from real_daemon import MIB  # noqa: E402
from sampled import sampled  # noqa: E402
from test_in_place import (  # noqa: E402
    AUTO, EXPERTS, INNER, WIDTH, in_all_ways, make, same, until_all_is_hot)
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.usefixtures("hoistd"),
              pytest.mark.hoistd(pool=96 * MIB, host=192 * MIB)]


class Routed(nn.Module):
    """What a compiler has in one graph: the experts that are chosen, looked up
    by row."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Embedding(EXPERTS, INNER * WIDTH)
                                     for _ in range(2))
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH)
                                     for _ in range(2))
        with torch.no_grad():  # Sums are the same in whatever order.
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-1, 2, parameter.shape))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        for experts, linear in zip(self.experts, self.linears):
            up = experts(chosen).view(-1, INNER, WIDTH)
            x = linear(x) + torch.einsum("eiw,bw->bi", up, x)[:, :WIDTH]
        return x


@pytest.mark.real_time
@pytest.mark.parametrize("budget", sampled(["20MiB", "11MiB", "1100KiB"],
                                           "20MiB", "1100KiB"))
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["compile()", "torch"])
def test_pieces_move_between_passes_of_one_graph(device, budget, mode,
                                                 wrapped):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Routed().eval().to(device).requires_grad_(False)
    x = torch.randint(-1, 2, (4, WIDTH), device=device).float()

    def chosen(*experts: int) -> torch.Tensor:
        return torch.tensor(experts, device=device)

    def whole(*experts: int) -> torch.Tensor:
        with torch.no_grad():
            out: torch.Tensor = called(x, chosen(*experts))
        return out.clone()

    called: Any = model
    if wrapped:
        called = torch.compile(model, fullgraph=True, mode=mode)
    else:
        model.compile(fullgraph=True, mode=mode)
    expected = {experts: whole(*experts) for experts in [(0, 1), (6, 7)]}
    # 1100 KiB: the linears are streamed, and half of them stays.
    hoist.attach(model, budget=budget, in_place="experts", groups="leaf")
    for _ in range(6):  # Until it is one graph.
        assert torch.equal(whole(0, 1), expected[0, 1])
    for experts, want in expected.items():
        def make_pass(experts: Any = experts, want: Any = want) -> None:
            assert torch.equal(whole(*experts), want)

        if budget != "1100KiB":
            until_all_is_hot(model, make_pass)
    for experts, want in expected.items():
        assert torch.equal(whole(*experts), want)
    hoist.detach(model)


@pytest.mark.real_time
def test_nothing_keeps_cuda_graphs_from_being_made(device, monkeypatch):
    """inductor makes none of code that writes to an input which may lie
    elsewhere the next time."""
    import torch._inductor.compile_fx as compile_fx
    compiled = compile_fx.compile_fx_inner
    written: list[set[int]] = []

    def look(module: Any, inputs: Any, **options: Any) -> Any:
        given = [node for node in module.graph.nodes
                 if node.op == "placeholder"]
        to = {given.index(node.args[0]) for node in module.graph.nodes
              if node.target is torch.ops.aten.copy_.default
              and node.args[0] in given}
        written.append(to)
        assert to <= set(options["static_input_idxs"])
        return compiled(module, inputs, **options)

    monkeypatch.setattr(compile_fx.compile_fx, "__defaults__", tuple(
        look if value is compiled else value
        for value in compile_fx.compile_fx.__defaults__))
    torch._dynamo.reset()
    model = Routed().eval().to(device).requires_grad_(False)
    hoist.attach(model, budget="20MiB", in_place="experts")
    model.compile(fullgraph=True)
    with torch.no_grad(), torch._inductor.config.patch(
            force_disable_caches=True):
        for _ in range(4):
            model(torch.zeros(4, WIDTH, device=device),
                  torch.tensor([0, 1], device=device))
    assert any(written)  # The counts.
    hoist.detach(model)


@pytest.mark.real_time
def test_pieces_move_between_replays_of_a_captured_graph(device):
    if device.type != "cuda":
        pytest.skip("needs CUDA graphs")
    torch.manual_seed(0)
    model = Routed().eval().to(device).requires_grad_(False)
    x = torch.randint(-1, 2, (4, WIDTH), device=device).float()
    chosen = torch.tensor([0, 1], device=device)
    with torch.no_grad():
        expected = {experts: model(x, torch.tensor(experts, device=device))
                    for experts in [(0, 1), (6, 7)]}
        hoist.attach(model, budget="20MiB", in_place="experts")
        for _ in range(3):
            model(x, chosen)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(x, chosen)
    for experts, want in expected.items():
        chosen.copy_(torch.tensor(experts))

        def make_pass(want: Any = want) -> None:
            graph.replay()
            assert torch.equal(out, want)

        until_all_is_hot(model, make_pass)
    del graph
    hoist.detach(model)


@pytest.mark.real_time
def test_pieces_that_become_due_in_a_capture_do_not_end_it(device):
    """libhoist's thread finds them, and asks whether earlier passes have run:
    of streams that may be under capture by then."""
    if device.type != "cuda":
        pytest.skip("needs CUDA graphs")
    model = Routed().eval().to(device).requires_grad_(False)
    x = torch.randint(-1, 2, (4, WIDTH), device=device).float()
    chosen = torch.tensor([0, 1], device=device)
    with torch.no_grad():
        expected = model(x, chosen)
        hoist.attach(model, budget="20MiB", in_place="experts")
        tensors = attachment_of(model)._in_place._tensors
        stream = torch.cuda.Stream()
        for other in range(2, EXPERTS):
            for _ in range(10):
                model(x, chosen)
            hoist.advance(model, wait=True)
            model(x, chosen)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                model(x, chosen)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                if other > 2:  # That thread moves pieces of captured passes.
                    for name in tensors:
                        tensors.touch(name, {other: 10**6})
                    until(lambda: tensors.pending)
                out = model(x, chosen)
            graph.replay()
            assert torch.equal(out, expected)
            del graph, out
    hoist.detach(model)


def test_passes_on_other_streams_wait_for_each_other(device):
    if device.type != "cuda":
        pytest.skip("needs streams")
    model = make(device)
    expected = in_all_ways(model, device)
    hoist.attach(model, budget="12MiB", in_place=AUTO)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for at in range(60):
        stream = streams[at % 3]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outs = in_all_ways(model, device)
        torch.cuda.current_stream().wait_stream(stream)
        if at % 10 == 9:
            assert same(outs, expected)
    hoist.detach(model)


def test_with_gradients_compiled_code_is_right(device):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Routed().eval().to(device)
    x = torch.randint(-1, 2, (4, WIDTH), device=device).float()
    chosen = torch.tensor([2, 5], device=device)
    expected = model(x, chosen).detach()
    hoist.attach(model, budget="20MiB", in_place="experts")
    called = torch.compile(model)
    for _ in range(3):
        assert torch.equal(called(x, chosen).detach(), expected)
        hoist.advance(model, wait=True)
    hoist.detach(model)
