"""The guide, client/python/README.md: every block of Python in it is run, as it
is printed, on a small model, and gives what the resident model gives.

The guide's block of names (MODEL, BUDGET, ...) is run with other values, and a
literal that the guide gives a name there stands for that name everywhere.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dataclasses
import json
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
from typing import Any, Callable
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import hoist  # noqa: E402
from compiling import fresh_compiler  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from families import FAMILIES, computing_library, refuse  # noqa: E402
from hoist.nn import IdleTensor  # noqa: E402
from hoist.nn._api.attachment import attachment_of  # noqa: E402
from passes import least_budget  # noqa: E402
from pipelines import save_a_flux  # noqa: E402
from real_daemon import write_safetensors  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from sampled import sampled  # noqa: E402
from subclasses import Opaque  # noqa: E402
from torch import nn  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
GUIDE = ROOT / "client" / "python" / "README.md"
FRONT = ROOT / "README.md"
MIB = 1 << 20

pytestmark = pytest.mark.skipif(not GUIDE.exists(),
                                reason=f"{GUIDE} was not carried here")


@dataclasses.dataclass(frozen=True)
class Block:
    heading: str
    number: int  # Among its heading's.
    text: str

    def __str__(self) -> str:
        return f"{self.heading} {self.number}".strip()


def blocks_of(path: pathlib.Path) -> list[Block]:
    """The fenced blocks of Python, in order, each under its heading."""
    if not path.exists():
        return []
    found: list[Block] = []
    heading, inside, lines = "", "", []
    for line in path.read_text().splitlines():
        if line.startswith("```"):
            if inside == "python":
                count = sum(one.heading == heading for one in found)
                found.append(Block(heading, count + 1, "\n".join(lines)))
            inside = "" if inside else line[3:].strip() or "text"
            lines = []
        elif inside:
            lines.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    return found


BLOCKS = blocks_of(GUIDE)
# Of several processes, a library's import, or many convolutions on a CPU.
LONG = ("Run N replicas of one model 1", "Serve a quantized model 1",
        "Serve LoRA adapters 1", "Run a diffusion pipeline in one budget 1",
        "Load a diffusion pipeline from files 1",
        "Offload activations in training 1")
NAMES = next((one for one in BLOCKS if one.heading == "Recipes"), None)
RECIPES = [heading for heading in re.findall(
    r"^### (.+)$", GUIDE.read_text().partition("\n## Recipes\n")[2]
    .partition("\n## ")[0], re.M)] if GUIDE.exists() else []


class _Named(ast.NodeTransformer):
    """Literals that have a name become that name."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.by_value = {value: name for name, value in names.items()
                         if isinstance(value, str)}

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        name = (self.by_value.get(node.value)
                if isinstance(node.value, str) else None)
        return node if name is None else ast.copy_location(
            ast.Name(name, ast.Load()), node)


def printed_names() -> dict[str, Any]:
    """What the guide's block of names defines, as it is printed there."""
    found: dict[str, Any] = {}
    exec(compile(NAMES.text, str(GUIDE), "exec"), found)
    return {name: value for name, value in found.items()
            if name not in ("__builtins__", "hoist", "torch")}


def tree_of(block: Block) -> ast.Module:
    return ast.fix_missing_locations(
        _Named(printed_names()).visit(ast.parse(block.text)))


def run(block: Block, names: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Runs a block; returns all names that it leaves."""
    assert set(names) == set(printed_names()), "a name has no value for tests"
    found = {"hoist": hoist, "torch": torch, **names, **more}
    exec(compile(tree_of(block), f"{GUIDE}: {block}", "exec"), found)
    return found


# The model.


def a_resident(folder: Any, device: torch.device) -> nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto").to(device)


def logits(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=ids).logits.cpu()


def generated(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return model.generate(input_ids=ids, max_new_tokens=20).cpu()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A small Llama as transformers saves it: 7.6 MiB of bfloat16."""
    path = tmp_path_factory.mktemp("guide") / "llama"
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=512, num_hidden_layers=16,
        num_attention_heads=4, num_key_value_heads=2, vocab_size=128,
        bos_token_id=1, eos_token_id=None, dtype="bfloat16")
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def adapters(folder, tmp_path_factory) -> tuple[str, ...]:
    """Two adapters as peft saves them; none where there is no peft."""
    try:
        import peft
    except ImportError:
        return ("", "")
    saved = []
    for rank, name in ((4, "formal"), (2, "brief")):
        torch.manual_seed(rank)
        path = tmp_path_factory.mktemp("guide") / name
        config = peft.LoraConfig(
            r=rank, target_modules=["q_proj", "up_proj"],
            init_lora_weights=False)
        peft.get_peft_model(a_resident(folder, torch.device("cpu")),
                            config).save_pretrained(path)
        saved.append(str(path))
    return tuple(saved)


@pytest.fixture
def names(folder, adapters, device, tmp_path) -> dict[str, Any]:
    ids = torch.randint(3, 128, (2, 7),
                        generator=torch.Generator().manual_seed(1))
    return {"MODEL": str(folder), "BUDGET": 0.5, "ADAPTERS": adapters,
            "MODELS": (str(folder), str(tmp_path / "second")),
            "MIXTURE": str(tmp_path / "moe"),
            "PIPELINE": str(tmp_path / "flux"), "DEVICE": str(device),
            "ids": ids}


@dataclasses.dataclass
class World:
    """What a check needs besides what its block left."""

    hoistd: Any
    device: torch.device
    names: dict[str, Any]

    @property
    def ids(self) -> torch.Tensor:
        return self.names["ids"].to(self.device)

    def resident(self) -> nn.Module:
        return a_resident(self.names["MODEL"], self.device)

    def is_equal(self, model: nn.Module, resident: nn.Module,
                 tokens: torch.Tensor) -> None:
        """A block's model and the tokens it generated."""
        assert attachment_of(model) is not None
        assert same_bytes(tokens, generated(resident, self.ids))
        assert_equal_outputs(logits(model, self.names["ids"]),
                             logits(resident, self.ids))
        hoist.check(model)
        stats = hoist.stats(model)
        assert 0 < stats.budget_bytes < stats.model_bytes
        assert stats.streamed_bytes > 0


# Each block's check: runs it, and looks at what it left.


def check_opening(block: Block, world: World) -> None:
    left = run(block, world.names)
    world.is_equal(left["model"], world.resident(), left["tokens"])


def check_names(block: Block, world: World) -> None:
    assert set(printed_names()) == set(world.names)


def check_bigger(block: Block, world: World) -> None:
    capacity = world.hoistd.tier("DEVICE")["capacity_bytes"]
    left = run(block, world.names)
    world.is_equal(left["model"], world.resident(), left["tokens"])
    assert left["stats"].model_bytes > capacity


def check_workers(block: Block, world: World) -> None:
    """Two processes at once: the memory of one, and one's reading."""
    values = {**world.names, "ids": world.names["ids"].tolist()}
    script = "\n".join([
        "import sys", f"sys.path += {sys.path!r}",
        "import hoist, torch", "torch.set_num_threads(1)",
        f"globals().update({values!r})", "ids = torch.tensor(ids)",
        ast.unparse(tree_of(block)),
        "print(tokens.tolist(), flush=True)", "sys.stdin.readline()"])
    workers: list[subprocess.Popen[str]] = []
    said, read, used = [], [], []
    try:
        for _ in range(2):
            workers.append(subprocess.Popen(
                [sys.executable, "-c", script], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True))
            said.append([workers[-1].stdout.readline() for _ in range(2)])
            read.append(world.hoistd.counters()["file_read_bytes"])
            used.append(world.hoistd.tier("HOST")["used_bytes"])
        sessions = world.hoistd.ctl("sessions", "--json")
    finally:
        codes = [worker.communicate("\n", timeout=60) and worker.returncode
                 for worker in workers]
    assert codes == [0, 0]
    pids = {int(one["pid"]) for one in json.loads(sessions)["sessions"]}
    assert {worker.pid for worker in workers} <= pids
    assert said[0] == said[1]
    expected = generated(world.resident(), world.ids).tolist()
    assert ast.literal_eval(said[0][1]) == expected
    assert read[0] == read[1] > 0
    size = (pathlib.Path(world.names["MODEL"]) / "model.safetensors"
            ).stat().st_size
    assert used[0] == used[1] < 1.1 * size


def check_models(block: Block, world: World) -> None:
    """Two in one device, of which the one that comes back reads no file."""
    second = world.resident()
    with torch.no_grad():
        second.lm_head.weight.mul_(-1)
    second.save_pretrained(world.names["MODELS"][1])
    read: list[int] = []
    *lines, last = block.text.splitlines()
    noting = dataclasses.replace(block, text="\n".join(
        [*lines, "note()", last, "note()"]))
    left = run(noting, {**world.names, "BUDGET": 0.3}, note=lambda: read.append(
        world.hoistd.counters()["file_read_bytes"]))
    assert read[0] == read[1] > 0
    for path, tokens in zip(world.names["MODELS"], left["tokens"]):
        world.is_equal(left["models"][path],
                       a_resident(path, world.device), tokens)


def check_quantised(block: Block, world: World) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    for config in ("Int8WeightOnlyConfig", "Float8WeightOnlyConfig"):
        assert config in block.text
        one = dataclasses.replace(block, text=block.text.replace(
            "Int8WeightOnlyConfig", config))
        left = run(one, world.names)
        resident = a_resident(world.names["MODEL"], torch.device("cpu"))
        quantization.quantize_(resident, getattr(quantization, config)())
        world.is_equal(left["model"], resident.to(world.device),
                       left["tokens"])
        assert hoist.stats(left["model"]).model_bytes < 6 * MIB
        hoist.detach(left["model"])


def check_fp8(block: Block, world: World) -> None:
    left = run(block, world.names)
    resident = world.resident()
    count = 0
    with torch.no_grad():
        for name, one in resident.named_modules():
            if isinstance(one, nn.Linear) and name != "lm_head":
                one.weight.copy_(one.weight.to(torch.float8_e4m3fn))
                count += one.weight.numel()
    world.is_equal(left["model"], resident, left["tokens"])
    before = hoist.attach(world.resident(), world.names["BUDGET"])
    saved = (hoist.stats(before).model_bytes
             - hoist.stats(left["model"]).model_bytes)
    # A byte of each; images are padded.
    assert abs(saved - count) < 0.01 * count
    hoist.detach(left["model"])
    for name, one in world.resident().state_dict().items():
        assert same_bytes(left["model"].state_dict()[name], one), name


def check_lora(block: Block, world: World) -> None:
    peft = pytest.importorskip("peft")
    left = run(block, world.names)
    resident = world.resident()
    base = logits(resident, world.ids)
    tokens = {"base": generated(resident, world.ids)}
    tuned = peft.PeftModel.from_pretrained(
        resident, world.names["ADAPTERS"][0], adapter_name="formal")
    tuned.load_adapter(world.names["ADAPTERS"][1], "brief")
    for name in ("formal", "brief"):
        tuned.set_adapter(name)
        tokens[name] = generated(tuned, world.ids)
    assert len({str(one.tolist()) for one in tokens.values()}) == 3
    assert left["answers"].keys() == tokens.keys()
    for name, one in left["answers"].items():
        assert same_bytes(one.cpu(), tokens[name]), name
    assert_equal_outputs(logits(left["model"], world.names["ids"]), base)


def check_tuning(block: Block, world: World) -> None:
    """The same losses and adapters as over the resident model."""
    pytest.importorskip("peft")
    torch.manual_seed(11)
    left = run(block, world.names, ids=world.ids)
    stats = hoist.stats(left["model"])
    assert stats.streamed_bytes > 0 and stats.bound_groups < stats.groups
    hoist.detach(left["model"])
    with mock.patch.object(hoist, "attach", lambda model, budget:
                           model.to(world.device)):
        torch.manual_seed(11)
        resident = run(block, world.names, ids=world.ids)
    assert left["losses"] == resident["losses"]
    assert left["losses"][-1] < left["losses"][0]
    for mine, other in zip(left["trained"], resident["trained"]):
        assert same_bytes(mine, other)


def check_training(block: Block, world: World) -> None:
    ids = torch.randint(3, 128, (2, 256),
                        generator=torch.Generator().manual_seed(1))
    left = run(block, {**world.names, "ids": ids})
    resident = world.resident()
    optimizer = torch.optim.SGD(resident.parameters(), lr=1e-3)
    ids = ids.to(world.device)
    for _ in range(3):
        resident(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_equal_outputs(left["model"].state_dict(), resident.state_dict())
    stats = left["stats"]
    assert stats.layers == 16 and stats.offloaded_layers == 3 * 14
    assert 0 < stats.peak_bytes < stats.moved_out_bytes / 3 / 14 * 4


def check_te(block: Block, world: World) -> None:
    layers = [nn.Linear(64, 64).to(world.device) for _ in range(4)]
    hidden = torch.randn(2048, 64, device=world.device, requires_grad=True)
    left = run(block, world.names, layers=layers, hidden=hidden)
    left["hidden"].sum().backward()
    found, hidden.grad = hidden.grad, None
    plain = hidden
    for layer in layers:
        plain = layer(plain)
    plain.sum().backward()
    assert_equal_outputs(found, hidden.grad)


def check_mixture(block: Block, world: World) -> None:
    torch.manual_seed(5)
    config = transformers.Qwen3MoeConfig(
        hidden_size=128, intermediate_size=128, moe_intermediate_size=256,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, num_experts=8, num_experts_per_tok=2, vocab_size=128,
        bos_token_id=1, eos_token_id=None, dtype="bfloat16")
    transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16).save_pretrained(world.names["MIXTURE"])
    left = run(block, world.names)
    resident = a_resident(world.names["MIXTURE"], world.device)
    assert same_bytes(left["tokens"].cpu(), generated(resident, world.ids))
    experts = sum(one.numel() * 2 for name, one in resident.named_parameters()
                  if ".experts." in name)
    stats = left["stats"]
    assert stats.in_place_bytes == experts
    assert 0 < stats.budget_bytes < stats.model_bytes
    hoist.advance(left["model"])  # As the guide's options say.


def check_diffusion(block: Block, world: World) -> None:
    diffusers = pytest.importorskip("diffusers")
    pytest.importorskip("PIL")
    save_a_flux(world.names["PIPELINE"])
    left = run(block, world.names)
    stats = left["stats"]
    assert set(stats.components) == {"vae", "text_encoder", "text_encoder_2",
                                     "transformer"}
    assert sum(one.budget_bytes for one in stats.components.values()) <= (
        stats.budget_bytes) < stats.model_bytes
    assert stats.stages > stats.resident_stages
    resident = diffusers.FluxPipeline.from_pretrained(
        world.names["PIPELINE"], dtype=torch.bfloat16).to(world.device)
    expected = resident("a crane at dawn", num_inference_steps=4,
                        generator=torch.manual_seed(0)).images[0]
    assert len(set(expected.tobytes())) > 100  # A picture, not one colour.
    assert left["image"].tobytes() == expected.tobytes()


def check_idle(block: Block, world: World) -> None:
    model, resident = world.resident(), world.resident()
    hidden = torch.randn(2, 128, dtype=torch.bfloat16, device=world.device)
    with torch.inference_mode():
        left = run(block, world.names, model=model, hidden=hidden)
        expected = resident.lm_head(hidden)
    assert left["same"] is True
    assert_equal_outputs(left["logits"], expected)
    assert attachment_of(model) is None
    assert not any(isinstance(one, IdleTensor) for one in model.parameters())


def check_compat(block: Block, world: World) -> None:
    model = world.resident()
    run(block, world.names, model=model)
    resident = world.resident()
    world.is_equal(model, resident, generated(model, world.names["ids"]))
    plain = hoist.attach(world.resident(), groups="block")
    assert hoist.stats(model).groups < hoist.stats(plain).groups


def weights_seen(block: Block, world: World) -> None:
    """A block that makes `weights` in a loop leaves the last group's name."""
    seen: dict[str, torch.Tensor] = {}
    noting = dataclasses.replace(block, text=re.sub(
        r"\.\.\. +#.*", "keep(weights)", block.text))
    assert noting.text != block.text
    # To the CPU, as a clone on the GPU may run after its lease has ended.
    left = run(noting, world.names, keep=lambda weights: seen.update(
        {name: one.cpu().clone() for name, one in weights.items()}))
    expected = world.resident().state_dict()
    assert seen.keys() == expected.keys()
    for name, one in seen.items():
        assert same_bytes(one, expected[name].cpu()), name
    left["session"].close()


def check_image(block: Block, world: World) -> None:
    left = run(block, world.names)
    expected = world.resident().state_dict()
    assert left["weights"]
    total = sum(expected[name].cpu().sum() for name in left["weights"])
    assert_equal_outputs(left["total"], total)


CHECKS: dict[str, Callable[[Block, World], None]] = {
    "hoist for Python 1": check_opening,
    "Recipes 1": check_names,
    "Serve a model larger than VRAM 1": check_bigger,
    "Run N replicas of one model 1": check_workers,
    "Serve many models on one node 1": check_models,
    "Serve a quantized model 1": check_quantised,
    "Store weights in fp8 1": check_fp8,
    "Serve LoRA adapters 1": check_lora,
    "Train LoRA adapters over streamed weights 1": check_tuning,
    "Offload activations in training 1": check_training,
    "Serve a mixture of experts (MoE) 1": check_mixture,
    "Run a diffusion pipeline in one budget 1": check_diffusion,
    "Load a diffusion pipeline from files 1": check_diffusion,
    "Read weights outside of forward 1": check_idle,
    "Migrate from diffusers or accelerate 1": check_compat,
    "Options of offload_activations 1": check_te,
    "Sessions, leases, plans, host images 1": weights_seen,
    "Sessions, leases, plans, host images 2": weights_seen,
    "Sessions, leases, plans, host images 3": check_image,
}


# Room for a plan and leases, but not for the model's 7.6 MiB.
@pytest.mark.hoistd(pool=6 * MIB, host=64 * MIB, slab=2 * MIB)
@pytest.mark.parametrize("block", sampled(BLOCKS, *(
    one for one in BLOCKS if str(one) not in LONG)), ids=str)
def test_what_the_guide_prints_runs_and_equals_the_resident(
        hoistd, device, names, block):
    check = CHECKS.get(str(block))
    assert check is not None, f"the guide's block {block} has no test"
    check(block, World(hoistd, device, names))


def test_each_recipe_is_one_block_of_fifteen_lines_at_most():
    assert len(RECIPES) == 11
    for heading in RECIPES:
        mine = [one for one in BLOCKS if one.heading == heading]
        assert len(mine) == 1, heading
        code = [line for line in mine[0].text.splitlines() if line.strip()]
        assert len(code) <= 15, heading


def test_the_guide_has_every_block_that_is_checked():
    assert [str(one) for one in BLOCKS] == list(CHECKS)


@pytest.mark.skipif(not FRONT.exists(), reason=f"{FRONT} was not carried here")
def test_the_front_page_opens_as_the_guide():
    opening = blocks_of(FRONT)[0].text
    assert opening == BLOCKS[0].text
    code = [line for line in opening.splitlines() if line.strip()]
    assert len(code) == 5


# The table of what is refused.

Refused = Callable[[nn.Module, torch.device], None]


def merge(model: nn.Module, device: torch.device) -> None:
    """As peft does."""
    with torch.no_grad():
        hoist.attach(model)[0].weight.data += 1


def load_other_weights(model: nn.Module, device: torch.device) -> None:
    hoist.attach(model).load_state_dict(small(device).state_dict())


def train(model: nn.Module, device: torch.device) -> None:
    hoist.attach(model, least_budget(model))(
        torch.randn(2, 8, device=device, requires_grad=True))


def go_backward(model: nn.Module, device: torch.device) -> None:
    hoist.attach(model, 0.7)
    x = torch.randn(2, 8, device=device)
    with fresh_compiler():
        code = torch.compile(model, backend="eager")
        for _ in range(6):
            output = code(x)
        try:
            output.sum().backward()
        except RuntimeError as error:
            assert re.search("modified by an inplace operation|"
                             "does not require grad|lives in hoist",
                                 str(error))
            raise


def keep_past_hooks(model: nn.Module, device: torch.device) -> None:
    bnb = pytest.importorskip("bitsandbytes")
    del model
    made = nn.Sequential(*(bnb.nn.Linear4bit(
        128, 128, compute_dtype=torch.bfloat16) for _ in range(3)))
    made.eval().requires_grad_(False).to(device)
    hoist.attach(made, least_budget(made))(torch.randn(
        2, 128, dtype=torch.bfloat16, device=device, requires_grad=True))


class _GivesItsWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor
                ) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return (x * weight).sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.saved_tensors[0], None


def give_a_view(model: nn.Module, device: torch.device) -> None:
    for one in model:
        one.forward = lambda x, one=one: _GivesItsWeight.apply(x, one.weight)
    hoist.attach(model.requires_grad_(False), least_budget(model))
    inputs = [torch.ones(8, 8, device=device, requires_grad=True)
              for _ in model]
    torch.autograd.backward([one(x) for one, x in zip(model, inputs)])


def convert(model: nn.Module, device: torch.device) -> None:
    hoist.attach(model).to(torch.float64)


@torch.no_grad()
def keep_a_view(model: nn.Module, device: torch.device) -> None:
    kept = []
    model[1].register_forward_hook(
        lambda module, *_: kept.append(module.weight.t()))
    hoist.attach(model, least_budget(model))(torch.randn(2, 8, device=device))


def attach_what_accelerate_has(model: nn.Module, device: torch.device) -> None:
    accelerate = pytest.importorskip("accelerate")
    hoist.attach(accelerate.cpu_offload(model, execution_device=device))


def attach_a_wrapper(model: nn.Module, device: torch.device) -> None:
    model[0].weight = nn.Parameter(Opaque(model[0].weight.detach()),
                                   requires_grad=False)
    hoist.attach(model)


def without_hoistd(model: nn.Module, device: torch.device) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOIST_SOCKET", "/nowhere/hoistd.sock")
        hoist.attach(model)


def without_torch(model: nn.Module, device: torch.device) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        hoist.attach(model)


def load_what_no_file_has(model: nn.Module, device: torch.device) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "other.safetensors"
        write_safetensors(path, {"other.weight": ("F32", [2], bytes(8))})
        hoist.load(lambda: nn.Sequential(nn.Linear(8, 8)), path)


def load_ties_that_differ(model: nn.Module, device: torch.device) -> None:
    def tied() -> nn.Module:
        made = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(2)))
        made[1].weight = made[0].weight
        return made

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tied.safetensors"
        write_safetensors(path, {f"{at}.weight": ("F32", [2, 2], bytes(15)
                                                  + bytes([at]))
                                 for at in range(2)})
        hoist.load(tied, path)


def load_what_transformers_cannot_say(model: nn.Module,
                                      device: torch.device) -> None:
    family = FAMILIES["mixtral"]
    with tempfile.TemporaryDirectory() as folder:
        family.make().save_pretrained(folder)
        with computing_library(refuse):
            hoist.load(family.build, folder)


def load_without_scales(model: nn.Module, device: torch.device) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_file({**small(device).state_dict(), "0.weight_scale":
                   torch.ones(1)}, pathlib.Path(folder) / "model.safetensors")
        hoist.load(small(torch.device("meta")), folder)


def load_what_is_quantised(model: nn.Module, device: torch.device) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        save_file(small(device).state_dict(), path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(
            {"quantization_config": {"quant_method": "fp8"}}))
        hoist.load(small(torch.device("meta")), folder)


def shard_it_all(model: nn.Module, device: torch.device) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel
    FullyShardedDataParallel(hoist.attach(model))


def freeze(model: nn.Module, device: torch.device) -> None:
    from torch._inductor import config
    hoist.attach(model, least_budget(model))
    code = torch.compile(model, backend="eager")
    with torch.no_grad(), fresh_compiler(), config.patch(freezing=True):
        code(torch.randn(2, 8, device=device))


def attach_what_is_cast(model: nn.Module, device: torch.device) -> None:
    from pipelines import KINDS
    del model
    hoist.attach_pipeline(KINDS["sdxl"].make(torch.float16), device=device)


# What the table's first column says, by its beginning.
def let_accelerate_offload_it(model: nn.Module, device: torch.device) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerate.cpu_offload(hoist.attach(model), device)


REFUSED: dict[str, Refused] = {
    "a budget below": lambda model, device: hoist.attach(model, 64),
    "writing to a weight": merge,
    "`load_state_dict`": load_other_weights,
    "gradients for": train,
    "`backward()`": go_backward,
    "graphs over": keep_past_hooks,
    "a gradient that is": give_a_view,
    "`.half()`": convert,
    "`copy.deepcopy`": lambda model, device: copy.deepcopy(
        hoist.attach(model)),
    "`pickle`": lambda model, device: pickle.dumps(hoist.attach(model)),
    "a module under accelerate's": attach_what_accelerate_has,
    "`torch.export`": lambda model, device: torch.jit.trace(
        hoist.attach(model, least_budget(model)),
        torch.randn(2, 8, device=device)),
    "`torch.vmap`": lambda model, device: torch.vmap(
        hoist.attach(model, least_budget(model)))(
            torch.randn(3, 2, 8, device=device)),
    "code that inductor": freeze,
    "keeping a view": keep_a_view,
    "attaching twice": lambda model, device: hoist.attach(
        hoist.attach(model)),
    "`attach` of a pipeline": lambda model, device: hoist.attach([model]),
    "a pipeline that casts": attach_what_is_cast,
    "accelerate's or diffusers'": let_accelerate_offload_it,
    "`FullyShardedDataParallel`": shard_it_all,
    "a wrapper without": attach_a_wrapper,
    "a parameter that is in no file": load_what_no_file_has,
    "tied weights that have different": load_ties_that_differ,
    "weights whose scales": load_without_scales,
    "files whose metadata": load_what_is_quantised,
    "one that transformers computes": load_what_transformers_cannot_say,
    "no hoistd": without_hoistd,
    "no torch": without_torch,
}


def refused_rows() -> list[tuple[str, str]]:
    """What is refused, and the error's name, row by row."""
    text = GUIDE.read_text() if GUIDE.exists() else ""
    part = text.partition("\n### Errors and alternatives\n")[2].partition(
        "\n###")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in part.splitlines() if line.startswith("|")][2:]
    return [(what.strip(), re.search(r"`(\w+)`", error)[1])
            for whole, error, _ in rows
            for what in re.split(r", (?=`load_state_dict|`pickle|merging)",
                                 whole)]


def small(device: torch.device) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(3))).to(device)


@pytest.mark.parametrize("what, error", refused_rows())
def test_what_the_guide_says_is_refused_is_refused_by_that_error(
        hoistd, device, what, error):
    if what.startswith("merging"):
        what = "writing to a weight"
    check = next((one for start, one in REFUSED.items()
                  if what.startswith(start)), None)
    assert check is not None, f"the guide's {what!r} has no test"
    with pytest.raises(getattr(hoist, error, None) or
                       getattr(builtins, error)) as caught:
        check(small(device), device)
    if what.startswith("a budget"):
        assert re.search(r"would be enough|budget of", str(caught.value))


def test_each_check_of_what_is_refused_belongs_to_a_row():
    rows = [what for what, _ in refused_rows()]
    for start in REFUSED:
        assert any(what.startswith(start) for what in rows), start
