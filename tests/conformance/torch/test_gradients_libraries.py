"""Fine-tuning as libraries do it: peft's adapters, transformers' checkpoints,
quantised bases, torch.compile, several devices."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from compiling import fresh_compiler  # noqa: E402
from families import FAMILIES  # noqa: E402
from models import WIDTH, Stack, numbers  # noqa: E402
from passes import attached, least_budget  # noqa: E402
from subclasses import TORCHAO  # noqa: E402
from subclasses import Stack as Quantised  # noqa: E402
from torch import nn  # noqa: E402
from training import (Step, assert_same_gradients,  # noqa: E402
                      assert_same_steps, both, gradients_of, loss_of,
                      take_gradients, train, trained)

KIND = os.environ.get("HOIST_TEST_DEVICE", "cpu")
pytestmark = [pytest.mark.usefixtures("hoistd"),
              pytest.mark.filterwarnings("ignore")]


# peft, over transformers.


def with_lora(base: nn.Module, targets: list[str]) -> nn.Module:
    peft = pytest.importorskip("peft")
    torch.manual_seed(7)
    return peft.get_peft_model(base, peft.LoraConfig(
        r=4, target_modules=targets, lora_dropout=0.1,
        init_lora_weights=False)).train()


def step(model: nn.Module, at: int) -> torch.Tensor:
    ids = (torch.arange(14).reshape(2, 7) * (at + 3) % 60 + 3).to(KIND)
    torch.manual_seed(at)  # Dropout.
    loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
    return loss


def tune(model: nn.Module, steps: int) -> list[Step]:
    optimizer = torch.optim.AdamW(trained(model).values(), 1e-2)
    found = []
    for at in range(steps):
        loss = step(model, at)
        loss.backward()
        found.append(Step(loss.detach(), take_gradients(model, keep=True)))
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize("checkpointing", [None, False, True])
@pytest.mark.parametrize("first", ["attach", "peft"])
@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_lora_over_a_streamed_base(device, groups, first, checkpointing):
    """Steps that equal the resident model's: with dropout, and with
    transformers' gradient checkpointing, reentrant and not."""
    pytest.importorskip("transformers")
    targets = ["q_proj", "v_proj", "down_proj"]
    base = FAMILIES["llama"].make()
    plain = with_lora(copy.deepcopy(base).to(device), targets)
    if first == "attach":  # What is not frozen yet is, by peft.
        hoist.attach(base, least_budget(base, groups=groups), groups=groups)
        model = with_lora(base, targets)
    else:
        model = with_lora(base, targets)
        hoist.attach(model, 0.5, exclude=["lora_"], groups=groups)
        for one in trained(model).values():
            one.data = one.data.to(device)
    for one in (plain, model):
        if checkpointing is not None:
            one.gradient_checkpointing_enable(
                {"use_reentrant": checkpointing})
            one.enable_input_require_grads()
    assert_same_steps(tune(model, 6), tune(plain, 6))
    stats = hoist.stats(model)
    assert stats.streamed_bytes > 0
    hoist.check(model)
    hoist.detach(base if first == "attach" else model).to(device)
    assert_same_steps(tune(model, 2), tune(plain, 2))


@pytest.mark.parametrize("name", ["gpt2", "t5", "mixtral", "bert", "vit",
                                  "whisper", "unet", "dit", "flux"])
def test_checkpointing_of_families(device, name):
    pytest.importorskip("transformers")
    pytest.importorskip("diffusers")
    if name == "unet" and device.type == "cuda":
        pytest.skip("it computes parts of its blocks again, for which a GPU "
                    "lacks weights (client/python/hoist/nn/README.md)")
    family = FAMILIES[name]

    def run(model: nn.Module) -> Any:
        return family.ways["forward"](model, device)

    def prepared(model: nn.Module) -> nn.Module:
        model = model.requires_grad_(False).train()
        for one in model.modules():  # The same outputs each time.
            if isinstance(one, (nn.Dropout, nn.Dropout2d)):
                one.p = 0.0
        if hasattr(model, "gradient_checkpointing_enable"):
            model.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            model.enable_gradient_checkpointing()
        return model

    plain = prepared(family.make()).to(device)
    model = family.make()
    model.load_state_dict(plain.state_dict())
    expected = gradients_of(plain, device, run)
    with attached(prepared(model), least_budget(model)):
        for mine, other in zip(gradients_of(model, device, run), expected):
            assert_same_gradients(mine, other)


# Quantised bases.


@pytest.mark.parametrize("budget", ["least", 0.7, 1.0])
@pytest.mark.parametrize("name", TORCHAO)
def test_torchao(device, name, budget):
    """Wrappers of plain tensors, whichever of them have gradients for their
    inputs at all."""
    pytest.importorskip("torchao")
    module = Quantised(torch.bfloat16).to(device).requires_grad_(False)
    try:
        TORCHAO[name](module)
        width = next(one.in_features for one in module.modules()
                     if isinstance(one, nn.Linear))
        x = numbers(4, width).to(device, torch.bfloat16)
        expected = gradients_of(module, device, lambda model: model(
            x.clone().requires_grad_()))
    except (AttributeError, ImportError, AssertionError, NotImplementedError,
            RuntimeError, ValueError) as error:
        pytest.skip(f"the resident one has no gradients: {error}"[:200])
    with attached(module, least_budget(module) if budget == "least" else
                  budget):
        found = gradients_of(module, device, lambda model: model(
            x.clone().requires_grad_()))
    for mine, other in zip(found, expected):
        assert_same_gradients(mine, other)


@pytest.mark.parametrize("budget", ["least", 1.0])
@pytest.mark.parametrize("bits", [4, 8])
def test_bitsandbytes(device, bits, budget):
    """Its nodes keep weights past torch's hooks: right where they stay, and
    refused where they come and go, but under reentrant checkpoints."""
    from test_side_state import WIDTH as SIDE
    from test_side_state import eight_bits, four_bits
    from torch.utils.checkpoint import checkpoint
    module = (four_bits(device, "nf4", False) if bits == 4 else
              eight_bits(device))
    x = numbers(3, SIDE).to(device, torch.bfloat16)

    def gradient(checkpoints: bool) -> torch.Tensor:
        start = x.clone().requires_grad_()
        y = start
        if not checkpoints:
            y = module(y)
        else:
            for layer in module.layers:
                y = y + checkpoint(layer, y, use_reentrant=True)
        loss_of(y).backward()
        assert start.grad is not None
        return start.grad

    try:
        expected = [gradient(False), gradient(True)]
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"the resident one has no gradients: {error}"[:200])
    with attached(module, least_budget(module) if budget == "least" else
                  budget):
        with torch.no_grad():
            module(x)
            module(x)
        assert torch.equal(gradient(True), expected[1])
        if budget == "least":
            with pytest.raises(hoist.FailedPrecondition, match="reentrant"):
                gradient(False)
        else:
            assert torch.equal(gradient(False), expected[0])
        assert torch.equal(gradient(True), expected[1])


# torch.compile.


@pytest.mark.parametrize("way", ["whole", "blocks"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(device, way, backend):
    """In pieces, with a break at each group."""
    model = Stack(4)
    plain, model = both(model, device, 0.5)

    def compiled(model: nn.Module) -> Any:
        if way == "whole":
            return torch.compile(model, backend=backend)
        for layer in model.layers:
            layer.compile(backend=backend)
        return model

    with fresh_compiler():
        expected = train(compiled(plain), lambda at: numbers(
            3, WIDTH, seed=at).to(device), 6)
    with fresh_compiler():
        found = train(compiled(model), lambda at: numbers(
            3, WIDTH, seed=at).to(device), 6)
    assert_same_steps(found, expected)


# Several devices.


@pytest.mark.hoistd(extra="" if KIND == "cuda" else
                    "[device.emulated]\ncount = 2\n")
@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_two_devices(device, groups):
    if KIND == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    model = Stack(6)
    plain, model = both(model, device, {0: 0.4, 1: 0.4}, groups=groups)
    assert_same_steps(train(model, lambda at: numbers(3, WIDTH, seed=at).to(
        device), 6), train(plain, lambda at: numbers(3, WIDTH, seed=at).to(
            device), 6))
    assert len({group.part for group in vars(model)["_hoist"].groups}) == 2


# Pipelines.


@pytest.mark.parametrize("budget", [0.6, 1.0])
def test_components_that_give_way_between_forward_and_backward(device,
                                                               budget):
    """The encoder's device memory is the decoder's by the time that its
    backward comes."""
    pytest.importorskip("diffusers")
    from pipelines import KINDS

    def gradients(pipe: Any) -> list[torch.Tensor]:
        for name in ("text_encoder", "vae"):
            getattr(pipe, name).requires_grad_(False)
        encoder = pipe.text_encoder.get_input_embeddings()
        shift = torch.zeros((), device=device, requires_grad=True)
        handle = encoder.register_forward_hook(
            lambda module, args, output: output + shift)
        ids = torch.arange(3, 10, device=device)[None]
        latents = numbers(1, pipe.vae.config.latent_channels, 8, 8).to(
            device).requires_grad_()
        found = []
        for _ in range(3):
            words = pipe.text_encoder(ids).last_hidden_state
            image = pipe.vae.decode(latents).sample
            loss = loss_of(words) + loss_of(image)
            found += [loss.detach(),
                      *torch.autograd.grad(loss, [shift, latents])]
        handle.remove()
        return found

    expected = gradients(KINDS["flux"].make().to(device))
    pipe = hoist.attach_pipeline(KINDS["flux"].make(), budget, device=device)
    for mine, other in zip(gradients(pipe), expected):
        assert torch.equal(mine, other)
    hoist.detach(pipe)
