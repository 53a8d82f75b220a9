"""hoist.vllm: vLLM takes its weights from hoistd.

    vllm serve /models/llama --load-format hoist

vLLM finds this by the entry point `hoist` of `vllm.general_plugins`, in each of
its processes. Nothing of vLLM is imported before it asks. What can be said in
`--model-loader-extra-config` is in Options; README.md says how it works and
what is refused. `python -m hoist.vllm verify MODEL` compares what hoistd gives
with the files.
"""

from ._options import Options
from ._plugin import register, resume, suspend

__all__ = ["Options", "register", "resume", "suspend"]
