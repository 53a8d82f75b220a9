"""What vLLM calls in each of its processes."""

from __future__ import annotations

import logging

_log = logging.getLogger("hoist.vllm")


def register() -> None:
    """Makes `--load-format hoist` and `--sleep-mode-backend hoist` legal.
    Again: nothing happens.

    An engine that does not ask for hoist must start whatever is wrong here, so
    a vLLM that has not what is needed is only told of in the log.
    """
    try:
        from vllm.device_allocator.sleep_mode_backend import (
            SleepModeBackendFactory)
        from vllm.model_executor import model_loader
        if "hoist" in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
            return
        from ._loader import HoistModelLoader
        model_loader.register_model_loader("hoist")(HoistModelLoader)
        SleepModeBackendFactory.register_backend(
            "hoist", "hoist.vllm._sleep", "HoistSleepBackend")
    except (ImportError, AttributeError) as error:
        _log.warning("--load-format hoist is not there, as this vLLM lacks "
                     "what it builds on (0.32 and 0.33 are known to have it): "
                     "%s", error)


def suspend() -> None:
    """Gives hoistd back all that this process has of it: weights, mappings and
    sessions. Nothing computes, here or on a GPU, until `resume`; vLLM's sleep
    mode calls it (`--sleep-mode-backend hoist`), and on CPUs, where vLLM has no
    such mode, whoever drives the engine may. Again: nothing happens."""
    from ..serving._weights import suspend_all
    suspend_all()


def resume() -> None:
    """The same weights at the same addresses. DataLoss: their files have
    changed. NotFound: they were published, and hoistd has them no more.
    Unavailable: no hoistd. Whatever it raises, it may be called again."""
    from ..serving._weights import resume_all
    resume_all()
