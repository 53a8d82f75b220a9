#!/usr/bin/env python3
"""Loads quantised checkpoints by hoist.load and by their library.

bench_load.py --bin DIR [--shapes mxfp4,fp8,gguf] [--layers N] [--small]
              [--device cuda|emulated] [--folder DIR]

Writes one file at a time, with random weights: gpt-oss-20b in MXFP4, a
transformer like Flux's in 8-bit floats with scales, and that one as GGUF (Q4_K).
MXFP4 is unpacked by all, as transformers does without kernels. Three processes
load each: the library's own, and two of hoist's, the second beside the first.
The file is out of the page cache before the first two. Prints for each worker,
and in a table at the end, the time to load, the time of the first pass, and its
peak RSS. It also prints the bytes in hoistd's pinned pool, and whether the pass
has the library's bits.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import importlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, ClassVar, Iterator

import hoist
import numpy as np
import torch
from torch import nn

from common import MIB, compute_alike, hoistd, table
from peers.measure import forget_peaks, peak_rss_bytes

DTYPE = torch.bfloat16
BLOCK = 4 * MIB  # Of random bytes, repeated in each tensor.
TOML = """
[device]
backend = "{backend}"
{pool}
[host]
pool = "{host}MiB"
[log]
level = "error"
"""
File = pathlib.Path
# A tensor of a safetensors file: its type, its shape, and bytes to repeat.
Tensor = tuple[str, tuple[int, ...], np.ndarray]


# --- Files. Their bytes are random, and no value is NaN.

def random_bytes(low: int = 0, high: int = 256) -> np.ndarray:
    return np.random.default_rng(1).integers(low, high, BLOCK, np.uint8)


def bits_of(values: torch.Tensor) -> np.ndarray:
    return values.view(torch.uint8).numpy()


def normal(dtype: torch.dtype) -> np.ndarray:
    made = torch.randn(BLOCK // dtype.itemsize,
                       generator=torch.Generator().manual_seed(1)) / 50
    return bits_of(made.to(dtype))


def repeated(block: np.ndarray, nbytes: int) -> Iterator[np.ndarray]:
    for start in range(0, nbytes, block.nbytes):
        yield block[:min(block.nbytes, nbytes - start)]


def write_safetensors(path: File, tensors: dict[str, Tensor]) -> None:
    sizes = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, _) in tensors.items():
        begin, end = end, end + sizes[dtype] * int(np.prod(shape))
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (_, _, block) in tensors.items():
            begin, end = header[name]["data_offsets"]
            for part in repeated(block, end - begin):
                part.tofile(file)


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape)
            for name, value in model.named_parameters()}


# --- Shapes: what is written, and how it is loaded.

@dataclasses.dataclass
class Shape:
    """A model's configuration and file, in a folder of its own."""

    folder: File
    small: bool
    layers: int | None

    # Modules to import before the clock runs; and the host pool, in sizes of
    # the file.
    needs: ClassVar[tuple[str, ...]]
    in_pool: ClassVar[float] = 1.1

    @property
    def file(self) -> File:
        return self.folder / "model.safetensors"


class GptOss(Shape):
    """gpt-oss-20b: experts' matrices, of which 32 numbers have one exponent."""

    needs = ("transformers.models.gpt_oss.modeling_gpt_oss",
             "transformers.quantizers.auto")
    in_pool = 4.5  # The file's tensors, and the unpacked ones.

    def write(self) -> None:
        import transformers
        shape = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 64,
                 "num_attention_heads": 4, "num_key_value_heads": 2,
                 "head_dim": 16, "num_local_experts": 4,
                 "num_experts_per_tok": 2} if self.small else {}
        config = transformers.GptOssConfig(
            **{"num_local_experts": 32, **shape},
            num_hidden_layers=self.layers or (2 if self.small else 24))
        config.architectures = ["GptOssForCausalLM"]
        config.dtype = "bfloat16"
        config.quantization_config = {"quant_method": "mxfp4",
                                      "dequantize": True}
        config.save_pretrained(self.folder)
        del config.quantization_config
        packed, scales = random_bytes(), random_bytes(118, 122)
        plain = normal(DTYPE)
        tensors: dict[str, Tensor] = {}
        for name, of in shapes_of(on_meta(
                lambda: transformers.GptOssForCausalLM(config))).items():
            if name.endswith("_proj"):  # Experts, inputs, outputs.
                shape_of = (of[0], of[2], of[1] // 32)
                tensors[f"{name}_blocks"] = "U8", (*shape_of, 16), packed
                tensors[f"{name}_scales"] = "U8", shape_of, scales
            else:
                tensors[name] = "BF16", of, plain
        write_safetensors(self.file, tensors)

    def by_library(self, device: torch.device) -> nn.Module:
        import transformers
        # Only accelerate puts each weight there as it is read.
        where = ({"device_map": {"": device}}
                 if importlib.util.find_spec("accelerate") else {})
        made: nn.Module = transformers.GptOssForCausalLM.from_pretrained(
            self.folder, dtype=DTYPE, **where)
        return made.to(device)

    def by_hoist(self, device: torch.device, **options: Any) -> nn.Module:
        import transformers
        config = transformers.AutoConfig.from_pretrained(self.folder)
        return hoist.load(lambda: transformers.GptOssForCausalLM(config),
                          self.folder, dtype=DTYPE, **options)

    def run(self, model: nn.Module, device: torch.device) -> torch.Tensor:
        logits: torch.Tensor = model(
            torch.arange(32, device=device).reshape(1, 32)).logits
        return logits


class Flux(Shape):
    """8-bit floats, with a scale for each row of a matrix."""

    needs = ("diffusers.models.transformers.transformer_flux",
             "diffusers.quantizers.auto", "diffusers.loaders.single_file_model")

    def config(self) -> dict[str, Any]:
        single = self.layers and 2 * self.layers
        return {"num_layers": self.layers or (1 if self.small else 19),
                "num_single_layers": single or (1 if self.small else 38),
                "guidance_embeds": True,
                **({"num_attention_heads": 2, "joint_attention_dim": 256,
                    "pooled_projection_dim": 256} if self.small else {})}

    def weights(self) -> dict[str, tuple[int, ...]]:
        from diffusers import FluxTransformer2DModel as Model
        made: Any = on_meta(lambda: Model(**self.config()))
        made.save_config(self.folder)
        return shapes_of(made)

    def write(self) -> None:
        packed = random_bytes(0, 0x60)
        packed |= random_bytes(0, 2)[::-1] << 7
        plain, scale = normal(DTYPE), bits_of(torch.full((BLOCK // 4,), 1e-3))
        tensors: dict[str, Tensor] = {}
        for name, of in self.weights().items():
            if len(of) == 2:
                tensors[name] = "F8_E4M3", of, packed
                tensors[f"{name}_scale"] = "F32", of[:1], scale
            else:
                tensors[name] = "BF16", of, plain
        write_safetensors(self.file, tensors)

    def quantisation(self) -> Any:
        import diffusers
        return diffusers.BFLQuantizationConfig(compute_dtype=DTYPE)

    def by_library(self, device: torch.device) -> nn.Module:
        from diffusers import FluxTransformer2DModel as Model
        made: nn.Module = Model.from_single_file(
            str(self.file), config=str(self.folder), torch_dtype=DTYPE,
            quantization_config=self.quantisation())
        return made.to(device)

    def by_hoist(self, device: torch.device, **options: Any) -> nn.Module:
        from diffusers import FluxTransformer2DModel as Model
        config = Model.load_config(self.folder)
        return hoist.load(lambda: Model.from_config(config), self.file,
                          dtype=DTYPE, **options)

    def run(self, model: nn.Module, device: torch.device) -> torch.Tensor:
        sizes = model.config
        some = torch.Generator().manual_seed(2)

        def given(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=some).to(device, DTYPE)

        output: torch.Tensor = model(
            hidden_states=given(1, 64, sizes["in_channels"]),
            encoder_hidden_states=given(1, 16, sizes["joint_attention_dim"]),
            pooled_projections=given(1, sizes["pooled_projection_dim"]),
            timestep=torch.tensor([0.5], device=device, dtype=DTYPE),
            guidance=torch.tensor([3.5], device=device, dtype=DTYPE),
            img_ids=torch.zeros(64, 3, device=device),
            txt_ids=torch.zeros(16, 3, device=device),
            return_dict=False)[0]
        return output


class FluxGguf(Flux):
    """Q4_K, and floats of 32 bits for vectors and odd rows."""

    needs = (*Flux.needs, "gguf")
    in_pool = 2.3  # Blocks are published with their biases, converted.

    @property
    def file(self) -> File:
        return self.folder / "model-Q4_K.gguf"

    def write(self) -> None:
        import gguf
        elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q4_K]
        blocks = random_bytes()[:BLOCK // size * size].reshape(-1, size)
        blocks[:, :4] = np.frombuffer(  # The block's two scales.
            np.full(2, 1e-4, np.float16).tobytes(), np.uint8)
        packed, plain = blocks.reshape(-1), normal(torch.float32)
        writer = gguf.GGUFWriter(self.file, "flux")
        tensors: list[tuple[np.ndarray, int]] = []
        for name, of in self.weights().items():
            if len(of) == 2 and of[1] % elements == 0:
                row = of[1] // elements * size
                writer.add_tensor_info(
                    name, (of[0], row), np.dtype(np.uint8), of[0] * row,
                    raw_dtype=gguf.GGMLQuantizationType.Q4_K)
                tensors.append((packed, of[0] * row))
            else:
                nbytes = 4 * int(np.prod(of))
                writer.add_tensor_info(name, of, np.dtype(np.float32), nbytes)
                tensors.append((plain, nbytes))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for block, nbytes in tensors:
            writer.write_tensor_data(np.resize(block, nbytes))
        writer.close()

    def quantisation(self) -> Any:
        import diffusers
        return diffusers.GGUFQuantizationConfig(compute_dtype=DTYPE)


SHAPES = {"mxfp4": GptOss, "fp8": Flux, "gguf": FluxGguf}


# --- A worker: one process that loads, runs a pass and waits.

def work(arguments: argparse.Namespace, shape: Any) -> None:
    cuda = arguments.device == "cuda"
    device = torch.device("cuda" if cuda else "cpu")
    compute_alike()
    for name in shape.needs:
        importlib.import_module(name)
    asked = sys.stdin.readline()
    if not asked:
        return
    os.environ["HOIST_SOCKET"] = asked.strip()

    def now() -> float:
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    torch.zeros(1, device=device)
    forget_peaks(device)
    begin = now()
    model = (shape.by_hoist(device, deadline=600) if arguments.worker == "hoist"
             else shape.by_library(device)).eval()
    loaded = now()
    with torch.no_grad():
        output = shape.run(model, device)
    ran = now()
    bits = bits_of(output.contiguous().cpu())
    print(json.dumps({
        "load_s": loaded - begin, "pass_s": ran - loaded,
        "peak_rss_bytes": peak_rss_bytes(),
        "bits": hashlib.sha256(bits).hexdigest()}), flush=True)
    sys.stdin.read()  # Until the parent has read hoistd's books.


# --- The parent.

class Worker:
    """Imports what it needs at once, and loads when it is asked to."""

    def __init__(self, name: str, folder: File, kind: str) -> None:
        self._what = f"{name}: {kind}'s worker"
        self._process = subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--worker", kind,
             "--shapes", name, "--folder", str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @contextlib.contextmanager
    def loaded(self, socket: str) -> Iterator[dict[str, Any]]:
        """What it prints. It ends with the block."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(socket + "\n")
        self._process.stdin.flush()
        # Libraries print, too.
        line = next((one for one in self._process.stdout
                     if one.startswith("{")), "")
        if not line:
            raise SystemExit(f"{self._what} ended without a result")
        yield json.loads(line)
        self.end()

    def end(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()


def out_of_the_page_cache(path: File) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(arguments: argparse.Namespace, name: str, folder: File,
            rows: list[tuple[str, ...]]) -> None:
    shape = SHAPES[name](folder, arguments.small, arguments.layers)
    for package in {one.partition(".")[0] for one in shape.needs}:
        if importlib.util.find_spec(package) is None:
            print(f"{name}: left out, as there is no {package}", flush=True)
            return

    def row(what: str, found: dict[str, Any], pinned: int, bits: str) -> None:
        rows.append((name, f"{size / 1e6:.1f}", what, f"{found['load_s']:.2f}",
                     f"{found['pass_s']:.2f}",
                     f"{found['peak_rss_bytes'] / 1e6:.1f}",
                     f"{pinned / 1e6:.1f}",
                     "equal" if found["bits"] == bits else "DIFFERENT"))
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)

    with contextlib.ExitStack() as stack:
        library, first, second = (
            Worker(name, folder, kind) for kind in ("library", "hoist", "hoist"))
        for one in (library, first, second):
            stack.callback(one.end)
        shape.write()
        size = shape.file.stat().st_size
        host = int(shape.in_pool * size) // MIB + 256
        emulated = arguments.device == "emulated"
        toml = TOML.format(host=host, backend=arguments.device,
                           pool=f'pool = "{host}MiB"' if emulated else "")
        out_of_the_page_cache(shape.file)
        with library.loaded("") as own:
            row("library", own, 0, own["bits"])
        with hoistd(arguments.bin, toml) as daemon:
            daemon.wait_whole()

            def pinned() -> int:
                tier = daemon.tier("HOST")
                return int(tier.get("used_bytes", tier.get("usedBytes", 0)))

            out_of_the_page_cache(shape.file)
            with first.loaded(daemon.socket) as found:
                row("hoist.load, first", found, pinned(), own["bits"])
                with second.loaded(daemon.socket) as beside:
                    row("hoist.load, second", beside, pinned(), own["bits"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=f"Shapes: {', '.join(SHAPES)}.")
    parser.add_argument("--bin", required=True,
                        help="a folder with hoistd and hoistctl")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--layers", type=int, help="of gpt-oss; of Flux's two "
                        "kinds of blocks, this many and twice as many")
    parser.add_argument("--small", action="store_true",
                        help="a few MB, as a test does")
    parser.add_argument("--device", choices=("cuda", "emulated"),
                        default="cuda")
    parser.add_argument("--folder", default=tempfile.gettempdir(),
                        help="for the files, one at a time")
    parser.add_argument("--worker", choices=("library", "hoist"),
                        help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments, SHAPES[arguments.shapes](
            File(arguments.folder), arguments.small, arguments.layers))
        return
    rows: list[tuple[str, ...]] = []
    for name in arguments.shapes.split(","):
        with tempfile.TemporaryDirectory(
                prefix="hoist-load-", dir=arguments.folder) as folder:
            measure(arguments, name, File(folder), rows)
    if rows:
        table([("shape", "file MB", "loaded by", "load s", "pass s",
                "peak RSS MB", "pinned MB", "bits"), *rows])
    if any(row[-1] != "equal" for row in rows):
        raise SystemExit("a pass differs from the library's own")


if __name__ == "__main__":
    main()
