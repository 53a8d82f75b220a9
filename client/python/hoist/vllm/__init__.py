"""hoist.vllm: vLLM takes its weights from hoistd.

    vllm serve /models/llama --load-format hoist

vLLM finds this by the entry point `hoist` of `vllm.general_plugins`, in each of
its processes, and imports nothing of vLLM before. Options has the keys of
`--model-loader-extra-config`; README.md is the guide. `python -m hoist.vllm
verify MODEL` compares hoistd's weights with the files.
"""

from ._options import Options
from ._plugin import register, resume, suspend

__all__ = ["Options", "register", "resume", "suspend"]
