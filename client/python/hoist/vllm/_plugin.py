"""The functions that vLLM calls in each of its processes."""

from __future__ import annotations

import logging

_log = logging.getLogger("hoist.vllm")


def register() -> None:
    """Makes `--load-format hoist` and `--sleep-mode-backend hoist` valid.
    Repeated, it does nothing.

    An engine without hoist must start whatever is wrong here, so for a vLLM
    that lacks what hoist needs this only writes to the log.
    """
    try:
        from vllm.device_allocator.sleep_mode_backend import (
            SleepModeBackendFactory)
        from vllm.model_executor import model_loader
        if "hoist" in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
            return
        from ._code_key import tell_compile_cache
        from ._loader import HoistModelLoader
        tell_compile_cache()
        model_loader.register_model_loader("hoist")(HoistModelLoader)
        SleepModeBackendFactory.register_backend(
            "hoist", "hoist.vllm._sleep", "HoistSleepBackend")
    except (ImportError, AttributeError) as error:
        _log.warning("--load-format hoist is not there, as this vLLM lacks "
                     "what it builds on (0.32 and 0.33 are known to have it): "
                     "%s", error)


def suspend() -> None:
    """Gives hoistd back all that this process has of it: weights, mappings and
    sessions. Nothing may compute, here or on a GPU, until `resume`. vLLM's
    sleep mode calls it (`--sleep-mode-backend hoist`); on CPUs, without such a
    mode in vLLM, the engine's caller may. Repeated, it does nothing."""
    from ..serving._weights import suspend_all
    suspend_all()


def resume() -> None:
    """The same weights at the same addresses. DataLoss: their files have
    changed. NotFound: they were published, and hoistd no longer has them.
    Unavailable: no hoistd. After any error it may be called again."""
    from ..serving._weights import resume_all
    resume_all()
