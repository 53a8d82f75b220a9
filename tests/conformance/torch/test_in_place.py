"""Weights that are read where they lie: experts and embeddings, in pieces that
are hot or cold."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import same_bytes  # noqa: E402
from real_daemon import MIB  # noqa: E402
from sampled import sampled  # noqa: E402
from torch import nn  # noqa: E402

EXPERTS, WIDTH, INNER = 8, 512, 1024  # An expert has 2 MiB in each matrix.

pytestmark = [pytest.mark.usefixtures("hoistd"),
              pytest.mark.hoistd(pool=96 * MIB, host=192 * MIB)]


class Experts(nn.Module):
    """Stacked, as transformers has them: called with who goes where."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(EXPERTS, INNER, WIDTH))
        self.down = nn.Parameter(torch.empty(EXPERTS, WIDTH, INNER))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        for expert in range(EXPERTS):
            rows = (chosen == expert).any(-1).nonzero()[:, 0]
            if len(rows):
                inner = torch.relu(nn.functional.linear(x[rows],
                                                        self.up[expert]))
                y.index_add_(0, rows, nn.functional.linear(
                    inner, self.down[expert]))
        return y


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(2048, WIDTH)  # 4 MiB: two pieces.
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(WIDTH), "experts": Experts()})
            for _ in range(2))
        self.head = nn.Linear(WIDTH, 64)

    def forward(self, ids: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer["experts"](layer["norm"](x), chosen)
        return self.head(x)


def make(device: torch.device) -> Mixture:
    torch.manual_seed(0)
    model = Mixture().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    return model.to(device).requires_grad_(False)


def run(model: nn.Module, device: torch.device, *experts: int) -> torch.Tensor:
    ids = torch.arange(0, 2048, 256, device=device)
    chosen = torch.tensor([experts], device=device).expand(len(ids), -1)
    with torch.no_grad():
        out: torch.Tensor = model(ids, chosen)
    return out


def in_all_ways(model: nn.Module, device: torch.device) -> list[torch.Tensor]:
    return [run(model, device, *experts) for experts in
            [(0,), (1, 2), (3, 7), (4, 5, 6), tuple(range(EXPERTS))]]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(same_bytes(a.cpu(), b.cpu()) for a, b in zip(ours, theirs))


AUTO = ["experts", "embed"]


@pytest.mark.parametrize("budget", sampled(
    ["2MiB", "10MiB", "30MiB", 1.0, None], "2MiB", "30MiB", None), ids=str)
def test_outputs_are_the_resident_models_at_every_budget(device, budget):
    model = make(device)
    expected = in_all_ways(model, device)
    hoist.attach(model, budget=budget, in_place=AUTO)
    assert hoist.stats(model).in_place_bytes == 68 * MIB
    for _ in range(3):
        assert same(in_all_ways(model, device), expected)
        hoist.advance(model, wait=True)
    hoist.detach(model)
    assert same(in_all_ways(model, device), expected)


def test_what_is_touched_most_becomes_hot(device):
    model = make(device)
    hoist.attach(model, budget="10MiB", in_place=AUTO)
    for _ in range(20):
        run(model, device, 3, 6)
    hoist.advance(model, wait=True)
    hot = hoist.stats(model)
    assert hot.hot_bytes == 8 * MIB
    run(model, device, 3, 6)
    hoist.advance(model, wait=True)
    # Of the two experts' eight matrices four are hot; eight rows go through
    # both, and read each once.
    assert (hoist.stats(model).touched_hot_bytes - hot.touched_hot_bytes
            == 4 * 2 * MIB)
    hoist.detach(model)


def test_the_hot_pieces_follow_what_is_touched(device):
    model = make(device)
    expected = run(model, device, 0, 1), run(model, device, 6, 7)
    hoist.attach(model, budget="21MiB", in_place="experts")
    cold = []
    for experts, want in zip([(0, 1), (6, 7)], expected):
        for _ in range(40):
            run(model, device, *experts)
            hoist.advance(model, wait=True)  # Each is seen as a pass.
        before = hoist.stats(model)
        assert same_bytes(run(model, device, *experts).cpu(), want.cpu())
        hoist.advance(model, wait=True)
        cold.append(hoist.stats(model).touched_cold_bytes
                    - before.touched_cold_bytes)
    assert cold == [0, 0]
    hoist.detach(model)


def until_all_is_hot(model: nn.Module, make_pass: Any) -> None:
    """That a pass touches; pieces move between passes, and nobody waits."""
    give_up = time.monotonic() + 60
    hot = cold = -1
    while True:
        assert time.monotonic() < give_up, "what is touched does not become hot"
        make_pass()
        stats = hoist.stats(model)
        if (stats.touched_cold_bytes == cold
                and stats.touched_hot_bytes > hot + 10 * 8 * MIB):
            return
        if stats.touched_cold_bytes != cold:
            hot, cold = stats.touched_hot_bytes, stats.touched_cold_bytes


@pytest.mark.real_time
def test_pieces_move_between_passes_by_themselves(device):
    model = make(device)
    expected = in_all_ways(model, device)
    hoist.attach(model, budget="21MiB", in_place="experts")
    for experts in (0, 1), (6, 7):
        want = run(model, device, *experts).clone()

        def make_pass(experts: Any = experts, want: Any = want) -> None:
            assert same_bytes(run(model, device, *experts).cpu(), want.cpu())

        until_all_is_hot(model, make_pass)
    assert same(in_all_ways(model, device), expected)
    hoist.detach(model)


@pytest.mark.real_time
def test_a_pass_that_is_cut_short_leaves_pieces_free_to_move(device):
    model = make(device)
    hoist.attach(model, budget="21MiB", in_place=AUTO)
    want = run(model, device, 6, 7)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    hook = model.head.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(model, device, 6, 7)
    hook.remove()

    def make_pass() -> None:
        assert same_bytes(run(model, device, 6, 7).cpu(), want.cpu())

    until_all_is_hot(model, make_pass)
    hoist.set_budget(model, "2MiB")  # Nothing runs.
    hoist.detach(model)


def test_an_address_is_one_for_good(device):
    model = make(device)
    expected = in_all_ways(model, device)
    hoist.attach(model, budget="10MiB", in_place=AUTO)
    experts = model.layers[0]["experts"]
    weight, address = experts.up, experts.up.data_ptr()
    for budget in ("30MiB", "2MiB", "20MiB"):
        hoist.set_budget(model, budget)
        assert same(in_all_ways(model, device), expected)
        hoist.advance(model, wait=True)
        assert experts.up is weight and weight.data_ptr() == address
    hoist.detach(model)


def test_a_budget_below_the_groups_leaves_nothing_hot(device):
    model = make(device)
    hoist.attach(model, budget="200KiB", in_place=AUTO)
    in_all_ways(model, device)
    hoist.advance(model, wait=True)
    assert hoist.stats(model).hot_bytes == 0
    hoist.set_budget(model, "72MiB")
    hoist.advance(model, wait=True)
    assert hoist.stats(model).hot_bytes == 68 * MIB
    hoist.detach(model)


def test_one_that_wakes_has_hot_pieces_within_its_last_budget(device):
    model = make(device)
    expected = in_all_ways(model, device)
    hoist.attach(model, budget="200KiB", in_place=AUTO)
    hoist.set_budget(model, "72MiB")
    in_all_ways(model, device)
    hoist.sleep(model)
    assert hoist.stats(model).hot_bytes == 0
    for _ in range(2):
        hoist.wake(model)
        assert same(in_all_ways(model, device), expected)
        hoist.advance(model, wait=True)
        assert hoist.stats(model).hot_bytes == 68 * MIB
    hoist.detach(model)


@pytest.mark.parametrize("budget", ["5MiB", "30MiB"])
def test_a_file_is_read_in_place(device, tmp_path, budget):
    from safetensors.torch import save_file
    model = make(torch.device("cpu"))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    expected = in_all_ways(model.to(device), device)
    loaded = hoist.load(Mixture, tmp_path, budget=budget, in_place="auto")
    assert hoist.stats(loaded).in_place_bytes == 64 * MIB
    for _ in range(2):
        assert same(in_all_ways(loaded, device), expected)
        hoist.advance(loaded, wait=True)
    hoist.detach(loaded)
    for name, value in model.state_dict().items():
        assert same_bytes(loaded.state_dict()[name].cpu(), value.cpu())


def test_a_file_is_read_in_place_while_its_other_weights_are_converted(
        device, tmp_path):
    from safetensors.torch import save_file
    model = make(torch.device("cpu"))
    model.head.half().float()  # Loses nothing when it is saved so.
    save_file({name: value.half() if name.startswith("head") else value
               for name, value in model.state_dict().items()},
              tmp_path / "model.safetensors")
    expected = in_all_ways(model.to(device), device)
    loaded = hoist.load(Mixture, tmp_path, budget="30MiB", in_place="auto",
                        dtype=torch.float32)
    assert hoist.stats(loaded).in_place_bytes == 64 * MIB
    assert same(in_all_ways(loaded, device), expected)
    hoist.detach(loaded)


def test_joined_experts_of_a_folder_are_read_in_place(device, tmp_path):
    """transformers saves experts one by one, and computes with them stacked."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3MoeConfig(
        vocab_size=256, hidden_size=256, intermediate_size=256,
        moe_intermediate_size=1024, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, num_experts=4,
        num_experts_per_tok=2)
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    ids = torch.randint(0, 256, (1, 12))
    with torch.no_grad():
        expected = model.to(device)(ids.to(device)).logits
    loaded = hoist.load(
        lambda: transformers.Qwen3MoeForCausalLM(config).eval(), tmp_path,
        budget="8MiB", in_place="auto")
    assert hoist.stats(loaded).in_place_bytes == 2 * 4 * 3 * MIB
    with torch.no_grad():
        for _ in range(3):
            assert same_bytes(loaded(ids.to(device)).logits.cpu(),
                              expected.cpu())
            hoist.advance(loaded, wait=True)
    assert hoist.stats(loaded).hot_bytes > 0
    hoist.detach(loaded)


def test_two_workers_of_one_model_share_the_hosts_pieces(device):
    first, second = make(device), make(device)
    expected = in_all_ways(first, device)
    hoist.attach(first, budget="20MiB", in_place="auto")
    with hoist.connect() as other:
        hoist.attach(second, budget="20MiB", in_place="auto", session=other)
        assert hoist.stats(first).model == hoist.stats(second).model
        for model in first, second:
            assert same(in_all_ways(model, device), expected)
            hoist.advance(model, wait=True)
            assert same(in_all_ways(model, device), expected)
        hoist.detach(second)
    assert same(in_all_ways(first, device), expected)
    hoist.detach(first)


def test_what_is_held_keeps_its_bytes(device):
    model = make(device)
    hoist.attach(model, budget="10MiB", in_place="auto")
    held = model.layers[1]["experts"].down
    value = held.detach().clone()
    hoist.set_budget(model, "30MiB")
    hoist.advance(model, wait=True)
    hoist.detach(model)
    del model
    gc.collect()
    assert same_bytes(held.detach().clone().cpu(), value.cpu())


def test_weights_can_be_read_and_not_written(device):
    model = make(device)
    before = {name: value.clone() for name, value in
              model.state_dict().items()}
    hoist.attach(model, budget="10MiB", in_place=AUTO)
    for name, value in model.state_dict().items():
        assert same_bytes(value.cpu().clone(), before[name].cpu()), name
    with pytest.raises(hoist.FailedPrecondition):
        model.embed.weight.add_(1)
    hoist.detach(model)
    for name, value in model.state_dict().items():
        assert value.device == before[name].device
        assert same_bytes(value.cpu(), before[name].cpu()), name
    model.embed.weight.add_(1)


def test_a_tied_head_is_read_in_place_by_name(device):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(2048, WIDTH)
            self.head = nn.Linear(WIDTH, 2048, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids))

    torch.manual_seed(0)
    model = Tied().to(device)
    ids = torch.arange(8, device=device)
    with torch.no_grad():
        expected = model(ids)
        hoist.attach(model, budget="6MiB", in_place="embed")
        assert model.head.weight is model.embed.weight
        for _ in range(2):
            assert same_bytes(model(ids).cpu(), expected.cpu())
            hoist.advance(model, wait=True)
        hoist.detach(model)
    assert model.head.weight is model.embed.weight


def in_two_threads(work: Any) -> None:
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.real_time
def test_passes_of_two_threads_are_right_while_pieces_move(device):
    model = make(device)
    expected = in_all_ways(model, device)
    hoist.attach(model, budget="12MiB", in_place=AUTO)
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(10):
            if not same(in_all_ways(model, device), expected):
                wrong.append(1)

    in_two_threads(work)
    assert not wrong
    hoist.detach(model)


@pytest.mark.parametrize("option, what", [
    ("nothing_of_that_name", "none of the module's parameters"),
    (nn.Conv2d, "none of the module's parameters")], ids=["name", "class"])
def test_patterns_that_mean_nothing_are_refused(device, option, what):
    model = make(device)
    with pytest.raises(hoist.InvalidArgument, match=what):
        hoist.attach(model, in_place=option)
    assert same(in_all_ways(model, device), in_all_ways(make(device), device))


def test_what_is_stored_in_another_type_is_refused_by_name(device):
    model = make(device)
    with pytest.raises(hoist.InvalidArgument, match="experts.up.*skip="):
        hoist.attach(model, in_place="experts", storage_dtype=torch.float16)
    assert not hasattr(model, "_hoist")


@pytest.mark.hoistd(pool=96 * MIB, host=192 * MIB, in_place=0)
def test_without_such_memory_auto_stages_and_names_are_refused(device):
    model = make(device)
    expected = in_all_ways(model, device)
    with pytest.raises(hoist.Unimplemented, match="host.in_place"):
        hoist.attach(model, in_place="experts")
    hoist.attach(model, budget="60MiB", in_place="auto")
    assert hoist.stats(model).in_place_bytes == 0
    assert same(in_all_ways(model, device), expected)
    hoist.detach(model)


@pytest.mark.hoistd(pool=96 * MIB, host=192 * MIB, in_place="8MiB")
def test_too_little_of_it_is_refused_and_leaves_the_module_as_it_was(device):
    model = make(device)
    expected = in_all_ways(model, device)
    with pytest.raises(hoist.ResourceExhausted):
        hoist.attach(model, in_place="experts", deadline=1)
    assert same(in_all_ways(model, device), expected)
    assert not any(module._forward_pre_hooks for module in model.modules())


class Pipeline:
    """A mixture, and what comes after it."""

    def __init__(self, device: torch.device) -> None:
        self.mixture = make(device)
        torch.manual_seed(1)
        self.after = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))
        self.after.to(device).requires_grad_(False)
        self.components = {"mixture": self.mixture, "after": self.after}

    def __call__(self, device: torch.device) -> list[torch.Tensor]:
        out = in_all_ways(self.mixture, device)
        with torch.no_grad():
            return [*out, self.after(torch.ones(1, 1024, device=device))]


def test_hot_pieces_take_turns_with_a_pipelines_other_weights(device):
    pipe = Pipeline(device)
    expected = pipe(device)
    hoist.attach_pipeline(pipe, "24MiB", each={"mixture": {"in_place": AUTO}})

    def hot() -> int:
        return hoist.stats(pipe).components["mixture"].hot_bytes

    for _ in range(2):
        in_all_ways(pipe.mixture, device)
        hoist.advance(pipe, wait=True)
        assert 0 < hot() <= 24 * MIB
        # 16 MiB of the budget are for what comes after.
        assert same(pipe(device), expected)
        assert hot() == 0
    hoist.detach(pipe)
    assert same(pipe(device), expected)


def test_the_next_worker_of_a_model_begins_with_what_was_hot(device):
    model = make(device)
    hoist.attach(model, budget="21MiB", in_place="experts", name="mixture")
    for _ in range(20):
        run(model, device, 2, 5)
    hoist.advance(model, wait=True)
    hoist.detach(model)

    with hoist.connect() as session:
        hoist.attach(model, budget="21MiB", in_place="experts",
                     name="mixture", session=session)
        hoist.advance(model, wait=True)
        run(model, device, 2, 5)
        hoist.advance(model, wait=True)
        stats = hoist.stats(model)
        assert stats.touched_hot_bytes > 0 and stats.touched_cold_bytes == 0
        hoist.detach(model)
