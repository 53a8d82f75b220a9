"""hoist.sglang: SGLang takes its weights from hoistd.

    python -m sglang.launch_server --model-path /models/llama --load-format hoist

SGLang finds this by the entry point `hoist` of `sglang.srt.plugins`. What can be
said in `--model-loader-extra-config` is in Options. Weights that are ranges of
the files are shared; quantised ones, which SGLang has no way to take processed,
are refused by name. `check_parity` compares what hoistd gives with the files.
"""

from ._options import Options
from ._plugin import check_parity, register

__all__ = ["Options", "check_parity", "register"]
