"""state_dict, saving, copying and converting attached modules: true bytes, or
an error that says what to do."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch import nn  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from models import WIDTH, Stack, Transformer  # noqa: E402
from passes import assert_passes, attached, make, references  # noqa: E402

pytestmark = pytest.mark.usefixtures("hoistd")
DETACH = r"hoist\.detach\(module\)"


@pytest.fixture(params=["cpu", "slot"])
def idle(request):
    return request.param


def assert_same_state(ours, theirs) -> None:
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert same_bytes(value, theirs[name]), name


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_state_dict_has_true_bytes_in_order(device, idle, tmp_path):
    """Item 15: and goes through torch.save and copy.deepcopy."""
    case, model = make("transformer")
    own = state_of(model)
    expected = references(case, model, device)
    with attached(model, 0.4, idle=idle):
        for _ in range(2):
            state = model.state_dict()
            assert_same_state(state, own)
            assert state["head.weight"] is state["embed.weight"] or (
                state["head.weight"].data_ptr() ==
                state["embed.weight"].data_ptr())
            assert_passes(case, model, device, expected)
            assert_same_state(state, own)  # Taken before the passes.
        torch.save(model.state_dict(), tmp_path / "state.pt")
        assert_same_state(copy.deepcopy(model.state_dict()), own)
        copied = copy.deepcopy(model.layers[0].up.weight)
        assert type(copied) is nn.Parameter
        copied.data.zero_()
        with pytest.raises(hoist.FailedPrecondition, match=DETACH):
            model.load_state_dict(own)
        assert_passes(case, model, device, expected)
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert_same_state(loaded, own)
    assert all(type(value) is torch.Tensor for value in loaded.values())
    other = Transformer()
    other.load_state_dict(loaded)
    assert_same_state(other.state_dict(), own)
    model.load_state_dict(loaded)


def test_safetensors_has_true_bytes(tmp_path, idle):
    """Item 15."""
    safetensors = pytest.importorskip("safetensors.torch")
    model = Stack(3)
    own = state_of(model)
    with attached(model, 0.5, idle=idle):
        safetensors.save_file(model.state_dict(), tmp_path / "a.safetensors")
        safetensors.save_model(model, str(tmp_path / "b.safetensors"))
    for name in "ab":
        found = safetensors.load_file(tmp_path / f"{name}.safetensors")
        assert_same_state(dict(sorted(found.items())),
                          dict(sorted(own.items())))


def test_save_pretrained_and_reload_are_equal(device, idle, tmp_path):
    """Item 15: a GPT-2 with a tied head."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=3, n_embd=64, n_head=4, vocab_size=99, n_positions=32)
    model = transformers.GPT2LMHeadModel(config).eval()
    own = state_of(model)
    ids = torch.arange(10, device=device)[None]
    with torch.no_grad():
        expected = copy.deepcopy(model).to(device)(ids).logits
        with attached(model, 0.5, idle=idle):
            assert_equal_outputs(model(ids).logits, expected)
            model.save_pretrained(tmp_path)
            assert_equal_outputs(model(ids).logits, expected)
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert_same_state(again.state_dict(), own)
    assert again.lm_head.weight is again.transformer.wte.weight
    with torch.no_grad():
        assert_equal_outputs(again.eval().to(device)(ids).logits, expected)


@pytest.mark.parametrize("attempt", [
    copy.deepcopy, copy.copy, lambda model: copy.deepcopy(model.layers[0]),
    pickle.dumps, lambda model: torch.save(model, io.BytesIO())],
    ids=["deepcopy", "copy", "deepcopy of a part", "pickle", "torch.save"])
def test_a_module_is_neither_copied_nor_pickled(idle, attempt):
    """Item 15."""
    model = Stack(2)
    with attached(model, 0.9, idle=idle):
        with pytest.raises(hoist.FailedPrecondition, match=DETACH) as raised:
            attempt(model)
        assert "copied or pickled: attach it with exclude=" in str(raised.value)
    copy.deepcopy(model)


@pytest.mark.parametrize("attempt", [
    lambda model: model.half(), lambda model: model.to(torch.float64),
    lambda model: model.double(), lambda model: model.layers[0].bfloat16(),
    lambda model: model.to("meta")],
    ids=["half", "to(float64)", "double", "part.bfloat16", "to(meta)"])
def test_conversions_are_refused_and_say_what_to_do(device, idle, attempt):
    """Item 15: `.to()` is never a silent no-op."""
    case, model = make("stack")
    expected = references(case, model, device)
    with attached(model, 0.5, idle=idle):
        with pytest.raises(hoist.FailedPrecondition, match=DETACH):
            attempt(model)
        assert_passes(case, model, device, expected)


def test_conversions_to_what_it_is_are_allowed(device, idle):
    """Item 15."""
    case, model = make("stack")
    expected = references(case, model, device)
    with attached(model, 0.5, idle=idle):
        assert model.to(device) is model
        assert model.to(torch.float32) is model
        assert model.to(device, torch.float32) is model
        assert model.float() is model
        assert model.eval() is model
        if device.type == "cpu":
            assert model.to("cpu") is model and model.cpu() is model
        else:
            assert model.cuda() is model
        assert_passes(case, model, device, expected)


@pytest.mark.only_cuda("elsewhere the weights' device is the CPU")
def test_moving_away_from_the_device_is_refused(device, idle):
    """Item 15."""
    model = Stack(2)
    with attached(model, 0.9, idle=idle):
        with pytest.raises(hoist.FailedPrecondition, match=DETACH):
            model.to("cpu")


def test_replacing_a_weight_is_refused(device, idle):
    """Item 15."""
    case, model = make("stack")
    expected = references(case, model, device)
    up = model.layers[0].up
    with attached(model, 0.5, idle=idle):
        with pytest.raises(hoist.FailedPrecondition, match=DETACH):
            up.weight = nn.Parameter(torch.zeros(4 * WIDTH, WIDTH))
        with pytest.raises(hoist.FailedPrecondition, match=DETACH):
            up.register_parameter("weight", nn.Parameter(torch.zeros(1)))
        assert_passes(case, model, device, expected)
