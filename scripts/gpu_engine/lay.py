#!/usr/bin/env python3
"""What a machine with a GPU lacks of an engine: lay.py vllm|sglang SITE OUT

SITE are the packages of an environment with the engine in full. The machine has
torch's CUDA libraries (but for NCCL), transformers, numpy, numba, and their
needs; OUT lies before them on its path, and has torch and triton of its own.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys

from slim import slim

# Distributions. What else vLLM asks for it imports only where it is used.
OF_VLLM = re.compile(r"""(
    torch | torchvision | triton | vllm | annotated-types | apache-tvm-ffi |
    astor | blake3 | cachetools | cbor2 | compressed-tensors | depyf | dill |
    diskcache | distro | dnspython | email-validator | fastapi |
    fastsafetensors | httpcore2 | httptools | httpx2 | ijson | interegular |
    jiter | jmespath | jsonschema.* | lark | llguidance | loguru |
    model-hosting-container-standards | msgspec | openai | opentelemetry-.* |
    orjson | oss-harmony | partial-json-parser |
    prometheus-fastapi-instrumentator | pybase64 | pydantic.* |
    python-dotenv | python-json-logger | python-multipart | pyzmq |
    referencing | rpds-py | runai-model-streamer | setproctitle | sniffio |
    starlette | supervisor | truststore | typing-extensions |
    typing-inspection | uvicorn | watchfiles | websockets | xgrammar
)$""", re.X)
# SGLang imports most of what it asks for.
OF_SGLANG = re.compile(r"""(?!(
    nvidia-(?!ml-py|cutlass-dsl).* | nvidia-cutlass-dsl-libs-cu12 |
    cuda-(toolkit|tile) | nccl.* | nvshmem4py.* |
    numpy | scipy | sympy | mpmath | networkx | numba | llvmlite | pillow |
    pandas | pyarrow | datasets | multiprocess | cryptography | pycryptodomex |
    sgl-(deep-.*|flash-mla) | flash-attn-4 | quack-kernels | humming-kernels |
    triton-kernels | tilelang | torchcodec | z3-solver | modelscope.* |
    anthropic | openai-harmony | deepseek-recipe | tml-renderers | blobfile |
    grpcio.* | smg-.* | lxml | jedi | parso | matplotlib.* | py-spy | hf-xet |
    pip | setuptools
)$)""", re.X)
ENGINES = {"vllm": OF_VLLM, "sglang": OF_SGLANG}
LEFT_OUT = re.compile(r"""
    (^|/)__pycache__/ | ^\.\./ | \.a$ |
    ^torch/(test|include|share|bin/protoc|utils/benchmark/examples)/ |
    ^triton/(instrumentation|plugins|FileCheck|_C/include|_C/libproton) |
    ^triton/backends/nvidia/(lib/cupti|bin/(ptxas-b|nvdisasm|cuobjdump)) |
    ^triton/backends/amd/(lib|include)/ |
    ^vllm/third_party/(deep_gemm|fmha_sm100|\w+/include)/ |
    ^vllm/(vllm-rs$|vllm_flash_attn/_vllm_fa2) |
    ^vllm/_(flashkda|deepselect|flashmla|qutlass)_C |
    ^sglang/(multimodal_gen|test)/ | ^flashinfer/data/(csrc|spdlog)/ |
    ^sgl_kernel/(sm100/|flashmla_ops|infllm_ops) |
    ^nvidia_cutlass_dsl/cu12/
""", re.X)
SLIM = re.compile(r"""
    ^torch/lib/libtorch_(cuda|cuda_linalg|nvshmem)\.so$ |
    ^torchvision/_C.*\.so$ | ^vllm/_(moe_)?C_stable_libtorch |
    ^vllm/vllm_flash_attn/_vllm_fa3 | ^sgl_kernel/.*\.so$ |
    ^nvidia/nccl/lib/libnccl\.so
""", re.X)
OF_FP8 = re.compile(r"_vllm_fa3|^sgl_kernel/flash_ops")  # Attention.
DEBUGGED = re.compile(r"^triton/_C/libtriton\.so$|/libnccl\.so")


def lay(carried: re.Pattern[str], site: pathlib.Path, out: pathlib.Path) -> None:
    for one in importlib.metadata.distributions(path=[str(site)]):
        name = re.sub(r"[-_.]+", "-", one.name).lower()
        if carried.match(name):
            for path in map(str, one.files or ()):
                if not LEFT_OUT.search(path) and (site / path).is_file():
                    take(site, out, path)
    take(site, out, "nvidia/nccl/lib/libnccl.so.2")


def take(site: pathlib.Path, out: pathlib.Path, path: str) -> None:
    target = out / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if SLIM.search(path):
        zeroed = slim(site / path, target,
                      b"e4m3" if OF_FP8.search(path) else None)
        print(f"{path}: {zeroed >> 20} MiB of other GPUs' code", flush=True)
    else:
        shutil.copy(site / path, target)
    if DEBUGGED.search(path):
        subprocess.run(["strip", "-g", target], check=True)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ENGINES:
        sys.exit(__doc__)
    lay(ENGINES[sys.argv[1]], *map(pathlib.Path, sys.argv[2:]))
