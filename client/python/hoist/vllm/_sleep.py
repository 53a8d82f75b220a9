"""vLLM's sleep mode with hoistd's weights."""

from __future__ import annotations

from vllm.device_allocator.sleep_mode_backend import CuMemBackend

from ..serving._weights import check_suspend_all, resume_all, suspend_all


class HoistSleepBackend(CuMemBackend):  # type: ignore[misc]
    """`--sleep-mode-backend hoist`: at either level hoistd gets all of its
    memory in this process back; `cumem` handles the KV cache and the rest.

    Waking up binds the weights at the same addresses, so CUDA graphs and
    compiled code stay valid.
    """

    def suspend(self, level: int = 1) -> None:
        """The worker has waited for its device. FailedPrecondition: there is a
        budget; the whole engine stays awake."""
        check_suspend_all()
        super().suspend(level)
        suspend_all()

    def resume(self, tags: list[str] | None = None) -> None:
        """Weights.resume's errors: the engine stays asleep."""
        if tags is None or "weights" in tags:
            resume_all()
        super().resume(tags)
