"""torch.compile of models whose activations are offloaded."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch import nn  # noqa: E402

from activations import Blocks, batch, same, train  # noqa: E402
from sampled import sampled  # noqa: E402

pytestmark = [pytest.mark.hoistd(pool=32 << 20, host=32 << 20,
                                in_place=96 << 20),
              pytest.mark.filterwarnings("ignore::UserWarning")]
BLOCKS = 4


@pytest.fixture(autouse=True)
def _anew():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def blocks(device, count=BLOCKS):
    torch.manual_seed(3)
    model = Blocks(count).to(device)
    model.eval()                # Compiled dropout draws from its own generator.
    return model


def compiled(model, how, backend):
    """What to call."""
    if how == "whole":
        return torch.compile(model, backend=backend)
    if how == "module":
        model.compile(backend=backend)
    elif how == "by block":
        for layer in model.layers:
            layer.compile(backend=backend)
    else:
        assert how == "wrapped"
        model.layers = nn.ModuleList(torch.compile(layer, backend=backend)
                                     for layer in model.layers)
    return model


def alike(found, wanted, backend, device):
    """Bit for bit, but for what Triton computes: it chooses by the clock how a
    sum is made, each time that code is compiled."""
    if backend == "inductor" and device.type == "cuda":
        return len(found) == len(wanted) and all(
            torch.allclose(mine, other, rtol=1e-4, atol=1e-6)
            for mine, other in zip(found, wanted))
    return same(found, wanted)


def uncompiled_bytes(device):
    """What two steps move out without torch.compile, and a tenth of it."""
    model = blocks(device)
    with hoist.offload_activations(model, min_bytes=0) as offload:
        train(model, device, 2)
        return 1.1 * offload.stats().moved_out_bytes


@pytest.mark.parametrize("backend, how, first", sampled([
    ("aot_eager", "whole", "compile"), ("aot_eager", "module", "offload"),
    ("aot_eager", "by block", "compile"), ("aot_eager", "wrapped", "offload"),
    ("aot_eager", "wrapped", "compile"),
    ("inductor", "whole", "offload"), ("inductor", "by block", "offload")],
    ("aot_eager", "module", "offload"), ("aot_eager", "by block", "compile")))
def test_compiled_training_is_bit_equal(hoistd, device, how, first, backend):
    # By block, as hooks break the graph there.
    plain = blocks(device)
    wanted = train(plain, device, 2,
                   compiled(plain, "by block", backend))
    torch.compiler.reset()
    model = blocks(device)
    if first == "compile":
        run = compiled(model, how, backend)
        run(batch(device)).sum().backward()  # Compiled without any hooks.
        model.zero_grad()
    with hoist.offload_activations(model, min_bytes=0) as offload:
        if first == "offload":
            run = compiled(model, how, backend)
        assert alike(train(model, device, 2, run), wanted, backend, device)
        stats = offload.stats()
        assert stats.layers == BLOCKS
        assert stats.offloaded_layers == 2 * (BLOCKS - 2)
        assert stats.moved_in_bytes == stats.moved_out_bytes
    # Weights are no activations, whatever compiled code makes of them.
    assert stats.kept_bytes["weight"] > 0
    assert 0 < stats.moved_out_bytes <= uncompiled_bytes(device)
    again = train(model, device, 1, run)     # And without hooks again.
    assert all(one.isfinite().all() for one in again)
    assert offload.stats().passes == 2


def test_blocks_share_their_code(hoistd, device):
    made, graphs = [], []

    def backend(graph, inputs):
        made.append(graph)
        return graph

    for count in (4, 9):
        torch.compiler.reset()
        model = blocks(device, count)
        with hoist.offload_activations(model, min_bytes=0):
            made.clear()
            train(model, device, 2, torch.compile(model, backend=backend))
            graphs.append(len(made))
    assert graphs[0] == graphs[1] > 1


def test_a_whole_graph_is_refused_by_torch(hoistd, device):
    model = blocks(device, 2)
    with hoist.offload_activations(model, min_bytes=0):
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(model, fullgraph=True, backend="aot_eager")(
                batch(device))


def test_keep_within_compiled_code(hoistd, device):
    weight = torch.randn(32, 32, device=device, requires_grad=True)

    def run(x):
        y = (x @ weight).sin()
        with hoist.keep():
            z = (y @ weight).exp()
        return z.cos()

    x = batch(device)
    run(x).sum().backward()
    wanted, weight.grad = weight.grad, None
    with hoist.offload_activations(min_bytes=0, keep_last=0) as offload:
        code = torch.compile(run, backend="aot_eager")
        with offload.layer():
            y = code(x)
        stats = offload.stats()
        assert stats.moved_out_bytes > 0
        assert stats.kept_bytes["keep"] >= 2 * x.nbytes
        y.sum().backward()
    assert torch.equal(weight.grad, wanted)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(run, backend="aot_eager", fullgraph=True)(x)


@pytest.mark.only_cuda("captures CUDA graphs")
def test_cuda_graphs(hoistd, device):
    model = blocks(device, 4)
    plain = blocks(device, 4)
    wanted = train(plain, device, 3, compiled(plain, "by block", "inductor"))
    torch.compiler.reset()
    with hoist.offload_activations(model, min_bytes=0) as offload:
        for layer in model.layers:
            layer.compile(mode="reduce-overhead")
        assert alike(train(model, device, 3), wanted, "inductor", device)
        assert offload.stats().moved_in_bytes > 0
        graph = torch.cuda.CUDAGraph()
        x = batch(device)
        with pytest.raises(hoist.FailedPrecondition, match="CUDA graph"):
            with torch.cuda.graph(graph):
                model(x)
