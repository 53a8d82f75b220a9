"""What vLLM calls in each of its processes."""

from __future__ import annotations

import logging

_log = logging.getLogger("hoist.vllm")


def register() -> None:
    """Makes `--load-format hoist` legal. Again: nothing happens.

    An engine that does not ask for hoist must start whatever is wrong here, so
    a vLLM that has not what is needed is only told of in the log.
    """
    try:
        from vllm.model_executor import model_loader
        if "hoist" in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
            return
        from ._loader import HoistModelLoader
        model_loader.register_model_loader("hoist")(HoistModelLoader)
    except (ImportError, AttributeError) as error:
        _log.warning("--load-format hoist is not there, as this vLLM lacks "
                     "what it builds on (0.32 and 0.33 are known to have it): "
                     "%s", error)
