"""Recipes of what loading code copies: rebuilt of the files' elements, they are
what the code itself makes."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import hoist  # noqa: E402
from hoist.checkpoint import FileTensor  # noqa: E402
from hoist.serving._binding import bind, settle_the_rest  # noqa: E402
from hoist.serving._meta import build_on_meta  # noqa: E402
from hoist.serving._published import Manifest, shape_like  # noqa: E402
from hoist.serving._ranges import MAX_RANGES  # noqa: E402
from hoist.serving._recipes import (UNUSED, Cut, held_by,  # noqa: E402
                                    write_recipes)
from hoist.serving._trace import Trace, Untraceable  # noqa: E402

FILES = {
    "q": (8, 4), "k": (4, 4), "v": (4, 4), "down": (4, 6), "norm": (4,),
    "e.0": (2, 4), "e.1": (2, 4), "unused": (3,),
}


def values():
    at, found = 0, {}
    for name, shape in FILES.items():
        count = math.prod(shape)
        found[name] = torch.arange(at, at + count, dtype=torch.float32
                                   ).reshape(shape)
        at += count
    return found


HEADERS = {name: FileTensor("F32", shape) for name, shape in FILES.items()}


class Two(nn.Module):

    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.empty(4, 4), requires_grad=False)
        self.two = nn.Parameter(torch.empty(4, 4), requires_grad=False)


class Fused(nn.Module):
    """As engines have it: fused, sharded, stacked; buffers of its own."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Parameter(torch.empty(16, 4))
        self.down = nn.Parameter(torch.empty(4, 3))
        self.norm = nn.Parameter(torch.ones(4))
        self.experts = nn.Parameter(torch.empty(2, 2, 4))
        self.head = self.norm
        self.register_buffer("table", torch.arange(3.0))
        self.register_buffer("scratch", torch.empty(2))

    def load(self, files):
        for at, name in ((0, "q"), (8, "k"), (12, "v")):
            part = self.qkv.data.narrow(0, at, files[name].shape[0])
            part.copy_(files[name])
        self.down.data.copy_(files["down"].narrow(1, 3, 3))
        self.norm.data.copy_(files["norm"])
        for at in range(2):
            self.experts.data[at] = files[f"e.{at}"]


def traced(load, make=Fused):
    trace = Trace()
    model, lost = build_on_meta(make)
    with trace:
        load(model, {name: trace.file_tensor(name, tensor)
                     for name, tensor in HEADERS.items()})
    return model, trace, lost


def rebuilt(joined):
    """What hoistd would make: parts end to end."""
    files = {name: one.reshape(-1) for name, one in values().items()}
    made = []
    for part in joined.parts:
        tensor, offset, size = part
        many = isinstance(part, hoist.Runs)
        for at in range(part.times if many else 1):
            first = (offset + at * (part.stride if many else 0)) // 4
            made.append(files[tensor][first:first + size // 4])
    return torch.cat(made).reshape(joined.shape)


def test_what_is_rebuilt_of_recipes_is_what_the_code_makes():
    model, trace, lost = traced(Fused.load)
    recipes = write_recipes(model, trace, HEADERS)
    assert recipes.refused == {}
    plain = Fused()
    plain.load(values())
    made = {name: rebuilt(recipes.joined[stored])
            for name, (_, stored) in recipes.stored.items()}
    assert set(made) == {"qkv", "down", "norm", "experts"}
    for name, tensor in made.items():
        assert torch.equal(tensor, getattr(plain, name)), name
    assert recipes.groups[UNUSED] == ["unused"]
    # A worker's columns are one part, however many rows there are.
    assert len(recipes.joined[recipes.stored["down"][1]].parts) == 1
    bind(model, made)
    settle_the_rest(model, torch.device("cpu"), lost)
    assert model.head is model.norm and torch.equal(model.table, plain.table)


def test_the_names_in_hoistd_are_none_of_the_files():
    model, trace, _ = traced(Fused.load)
    recipes = write_recipes(model, trace, HEADERS)
    assert recipes.stored["norm"] == ("(outside)", "norm'")


@pytest.mark.parametrize("name, piece_bytes, count", [
    ("experts", 32, 2),  # An expert each.
    ("qkv", 96, 3),      # Across files; the last one is smaller.
    ("down", 16, 3),     # Within the rows of a worker's columns.
])
def test_pieces_end_to_end_are_what_the_code_makes(name, piece_bytes, count):
    model, trace, _ = traced(Fused.load)
    recipes = write_recipes(model, trace, HEADERS, {name: Cut(piece_bytes, 2)})
    plain = Fused()
    plain.load(values())
    made = recipes.pieces[name]
    assert (made.dtype, made.units, len(made.groups)) == ("F32", 2, count)
    assert all(recipes.groups[one] == [one] for one in made.groups)
    assert name not in recipes.stored and name not in recipes.joined
    assert torch.equal(
        torch.cat([rebuilt(recipes.joined[one]) for one in made.groups])
        .reshape(made.shape), getattr(plain, name))
    assert recipes.groups[UNUSED] == ["unused"]


def test_nothing_has_memory_before_it_is_bound():
    model, _, _ = traced(Fused.load)
    assert model.qkv.is_meta and model.experts.is_meta
    assert not model.table.is_meta


@pytest.mark.parametrize("what, why", [
    (lambda m, f: m.norm.data.copy_(f["norm"] * 2), "aten.mul"),
    (lambda m, f: m.norm.data.copy_(f["norm"].double()), "float64"),
    (lambda m, f: m.norm.data[:3].copy_(f["norm"][:3]), "1 of its 4"),
    (lambda m, f: (m.norm.data.copy_(f["norm"]), m.norm.data[3:].fill_(0)),
     "filled with a number"),
    (lambda m, f: (m.norm.data.copy_(f["norm"]), m.norm.data.add_(1)),
     "aten.add_"),
    (lambda m, f: None, "4 of its 4"),
])
def test_what_is_no_copy_of_the_files_is_refused_and_says_why(what, why):
    model, trace, _ = traced(lambda model, files: what(model, files))
    recipes = write_recipes(model, trace, HEADERS)
    assert why in recipes.refused["norm"]


def test_padded_rows_are_told_without_a_list_of_their_ranges():
    rows = MAX_RANGES + 1  # More than a list may have.
    with Trace() as trace:
        padded = torch.empty(rows, 2, dtype=torch.uint8, device="meta")
        padded[:, :1].copy_(trace.file_tensor("w", FileTensor("U8", (rows, 1))))
    with pytest.raises(Untraceable, match=f"{rows} of its {2 * rows} elements"):
        trace.ranges_of(padded)


def test_clones_and_concatenations_are_copies_still():
    def load(model, files):
        whole = torch.cat([files["k"].clone(), files["v"].contiguous()])
        model.qkv.data[:8].copy_(files["q"])
        model.qkv.data[8:].copy_(whole.to(torch.float32))
        model.experts.data.copy_(torch.stack([files["e.0"], files["e.1"]]))

    model, trace, _ = traced(load)
    recipes = write_recipes(model, trace, HEADERS)
    plain = Fused()
    load(plain, values())
    for name in ("qkv", "experts"):
        assert torch.equal(rebuilt(recipes.joined[name]),
                           getattr(plain, name)), name


def test_memory_that_is_used_again_is_taken_as_it_was_when_it_was_read():
    def load(model, files):
        scratch = torch.empty_like(files["k"])
        for name, to in (("k", model.one), ("v", model.two)):
            scratch.copy_(files[name])
            to.data.copy_(scratch)

    model, trace, _ = traced(load, Two)
    recipes = write_recipes(model, trace, HEADERS)
    for name, source in (("one", "k"), ("two", "v")):
        assert torch.equal(rebuilt(recipes.joined[name]), values()[source])


def swap_in_place(tensor):
    first = tensor[:2].clone()
    tensor[:2] = tensor[2:]
    tensor[2:] = first


@pytest.mark.parametrize("what, why", [
    (lambda m, f: (swap_in_place(f["k"]), m.one.data.copy_(f["k"])),
     "writes to the files' tensors"),
    (lambda m, f: (m.one.data.copy_(f["k"]), swap_in_place(m.one.data)),
     "more than once"),
    (lambda m, f: (m.one.data.copy_(f["k"]),
                   torch.cat([f["v"][2:], f["v"][:2]], out=m.one.data)),
     "aten.cat.out"),
    (lambda m, f: (m.one.data.copy_(f["k"]), torch._foreach_copy_(
        [m.two.data, m.one.data], [f["v"], f["v"]])), "aten._foreach_copy_"),
    (lambda m, f: setattr(m.one, "data", f["k"].view(torch.int32)),
     "bytes of torch.float32 as torch.int32"),
    (lambda m, f: setattr(m, "one", nn.Parameter(
        torch.empty(4, 8, dtype=torch.int16, device="meta").copy_(
            f["k"].view(torch.int16)), requires_grad=False)),
     "files have torch.float32"),
])
def test_what_is_written_over_or_read_as_another_type_is_refused(what, why):
    model, trace, _ = traced(what, Two)
    assert why in write_recipes(model, trace, HEADERS).refused["one"]


def test_code_that_looks_at_values_is_told_that_there_are_none():
    with pytest.raises(Untraceable, match="looks at values"):
        traced(lambda model, files: files["norm"][0].item())


def test_what_is_still_without_values_is_an_error_by_name():
    model, _, lost = traced(Fused.load)
    with pytest.raises(hoist.FailedPrecondition, match="qkv"):
        settle_the_rest(model, torch.device("cpu"), lost)


def test_a_buffer_whose_values_were_lost_is_an_error():
    class Filled(nn.Module):
        def __init__(self):
            super().__init__()
            table = torch.empty(3)
            table.fill_(7.0)
            self.register_buffer("table", table)

    model, lost = build_on_meta(Filled)
    with pytest.raises(hoist.FailedPrecondition, match="table"):
        settle_the_rest(model, torch.device("cpu"), lost)


@pytest.mark.parametrize("make", [
    lambda: torch.triu(torch.empty(3, 3).fill_(7.0), 1),
    lambda: torch.ones_like(torch.empty(3)),
    lambda: torch.empty(3).new_ones(3),
    lambda: torch.ones(3, device=torch.empty(3).device),
    lambda: torch.arange(3.0, out=torch.empty(3)),
    lambda: torch.empty(3).fill_(2.0).clone(),
])
def test_a_buffer_that_was_computed_on_meta_is_an_error(make):
    class Computed(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", make())

    model, lost = build_on_meta(Computed)
    with pytest.raises(hoist.FailedPrecondition, match="table"):
        settle_the_rest(model, torch.device("cpu"), lost)


@pytest.mark.parametrize("make", [
    lambda: torch.empty(3).to(torch.float16),
    lambda: torch.empty_like(torch.empty(3)),
    lambda: torch.empty(2, 3)[1].view(3, 1),
])
def test_a_buffer_that_never_had_values_has_none_of_hoists(make):
    class Scratch(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", make())

    model, lost = build_on_meta(Scratch)
    settle_the_rest(model, torch.device("cpu"), lost)
    assert not model.table.is_meta and model.table.shape == make().shape


@pytest.mark.parametrize("load", [
    lambda model, files: model.table.copy_(files["norm"]),
    lambda model, files: setattr(model, "table", files["norm"]),
    lambda model, files: setattr(model, "table", files["norm"] * 2),
    lambda model, files: setattr(model, "table", torch.zeros(
        4, device=model.table.device)),
])
def test_an_attribute_that_the_loading_code_gave_values_is_an_error(load):
    class Attribute(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.empty(4)

    model, trace, lost = traced(load, Attribute)
    with pytest.raises(hoist.FailedPrecondition, match="table"):
        settle_the_rest(model, torch.device("cpu"), lost | trace.written)


def test_bound_parameters_refuse_to_be_loaded_anew():
    model, trace, _ = traced(Fused.load)
    bind(model, {"norm": torch.ones(4)})
    with pytest.raises(hoist.FailedPrecondition, match="read-only"):
        model.norm.weight_loader(model.norm, torch.zeros(4))
    assert ("norm", "head") in [one.names for one in held_by(model)]


def test_recipes_do_not_import_torchs_compiler():
    """Which takes longer than they do."""
    program = (
        "import sys, torch\n"
        "from hoist.checkpoint import FileTensor\n"
        "from hoist.serving._trace import Trace\n"
        "trace = Trace()\n"
        "with trace:\n"
        "    file = trace.file_tensor('w', FileTensor('F32', (4, 2)))\n"
        "    made = torch.empty(2, 2, device='meta').copy_(file[1:3])\n"
        "assert trace.ranges_of(made)[0].start == 2\n"
        "print('torch._dynamo' in sys.modules)\n")
    told = subprocess.run([sys.executable, "-c", program], text=True,
                          capture_output=True, check=True)
    assert told.stdout == "False\n"


class Kernel:
    """No module: vLLM's attention kernels keep a layer's sinks like this."""

    def __init__(self, sinks):
        self.sinks = sinks


class Attention(nn.Module):

    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.empty(4), requires_grad=False)
        self.kernel = Kernel(self.sinks)


def test_what_keeps_a_layers_parameter_gets_what_is_bound():
    model, _ = build_on_meta(Attention)
    shape_like(model, Manifest({}, ((("sinks",), True, (4,), "F32"),), {}))
    bind(model, {"sinks": torch.ones(4)})
    assert model.kernel.sinks is model.sinks
    assert torch.equal(model.sinks, torch.ones(4))


def test_what_keeps_a_parameter_that_is_not_bound_is_an_error():
    model, trace, lost = traced(
        lambda model, files: model.sinks.copy_(files["norm"]), Attention)
    model.sinks = nn.Parameter(torch.ones(4), requires_grad=False)
    with pytest.raises(hoist.FailedPrecondition, match="kernel.sinks"):
        settle_the_rest(model, torch.device("cpu"), lost | trace.written)
