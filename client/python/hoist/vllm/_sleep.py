"""vLLM's sleep mode, with weights that are hoistd's."""

from __future__ import annotations

from vllm.device_allocator.sleep_mode_backend import CuMemBackend

from ..serving._weights import check_suspend_all, resume_all, suspend_all


class HoistSleepBackend(CuMemBackend):  # type: ignore[misc]
    """`--sleep-mode-backend hoist`: all that this process has of hoistd's goes
    back to it, at either level; the KV cache and the rest as by `cumem`.

    Waking up binds the weights at the same addresses, so that CUDA graphs and
    compiled code are right.
    """

    def suspend(self, level: int = 1) -> None:
        """The worker has waited for its device. FailedPrecondition: there is a
        budget; the engine stays awake, all of it."""
        check_suspend_all()
        super().suspend(level)
        suspend_all()

    def resume(self, tags: list[str] | None = None) -> None:
        """What Weights.resume raises: the engine stays asleep."""
        if tags is None or "weights" in tags:
            resume_all()
        super().resume(tags)
