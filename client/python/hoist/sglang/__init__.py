"""hoist.sglang: SGLang takes its weights from hoistd.

    python -m sglang.launch_server --model-path /models/llama --load-format
    hoist

SGLang finds this through the entry point `hoist` of `sglang.srt.plugins`.
Options has the keys of `--model-loader-extra-config`. Weights that are ranges
of the files are shared; quantized ones, which SGLang cannot take processed, are
refused by name. `check_parity` compares hoistd's weights with the files.
"""

from ._options import Options
from ._plugin import check_parity, register

__all__ = ["Options", "check_parity", "register"]
