"""A pipeline of two models: an encoder, called twice an image, and a denoiser,
called in a loop. A pass is a step of the denoiser, the encoder having run."""

from __future__ import annotations

import pathlib
import time
from typing import Any, Callable

import torch

from . import measure
from .job import Job, Ready
from .models import Spec, encoder_of, load_weights, write_weights

STEPS = 8  # Of an image.


def in_memory(spec: Spec, file: pathlib.Path) -> torch.nn.Module:
    module = spec.build()
    load_weights(module, file)
    return module


def encoder_file(job: Job) -> pathlib.Path:
    return job.path.with_name("encoder.safetensors")


class Pipeline:
    """As diffusers' look to hoist."""

    model_cpu_offload_seq = "text_encoder->transformer"

    def __init__(self, job: Job, make: Callable[
            [Spec, pathlib.Path], torch.nn.Module] = in_memory) -> None:
        """make: of a model's file."""
        device = torch.device(job.device)
        encoder = encoder_of(job.spec)
        file = encoder_file(job)
        if not file.exists():
            write_weights(encoder, file, device)
        begin = time.perf_counter()
        self.encoder_inputs = encoder.inputs(device)
        self.components = {"text_encoder": make(encoder, file),
                           "transformer": make(job.spec, job.path)}
        self.load_seconds = time.perf_counter() - begin
        self._encoded = False

    def encode(self) -> None:
        """Twice, as with guidance."""
        for _ in range(2):
            self.components["text_encoder"](*self.encoder_inputs)
        self._encoded = True

    def step(self, *inputs: torch.Tensor) -> torch.Tensor:
        if not self._encoded:
            self.encode()
        return self.components["transformer"](*inputs)

    def image(self, *inputs: torch.Tensor) -> None:
        self.encode()
        for _ in range(STEPS):
            self.step(*inputs)


def ready(job: Job, device: torch.device, pipe: Pipeline, streamed: int,
          facts: Callable[[], dict[str, Any]] = dict) -> Ready:
    """With what a whole image takes among its facts."""
    def found() -> dict[str, Any]:
        inputs = job.spec.inputs(device)
        pipe.image(*inputs)
        _, seconds = measure.once(lambda: pipe.image(*inputs), device)
        return {**facts(), "image_seconds": seconds, "image_steps": STEPS}

    return Ready(pipe.step, pipe.load_seconds, streamed,
                 pipe.components["transformer"], found)
