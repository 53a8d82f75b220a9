"""A BERT encoder written out by hand, once, over NumPy or PyTorch.

`weights(group)` is a context manager that gives {name: array} of one group of
weights; the forward pass asks for one group after the other, and holds one at a
time. Whether they are staged by hoist or lie in this process it does not know.
"""

from __future__ import annotations

import math
from typing import Any, Callable, ContextManager, Mapping, Sequence

Weights = Callable[[str], ContextManager[Mapping[str, Any]]]


class NumpyOps:
    """What the encoder needs, in NumPy."""

    def __init__(self) -> None:
        import numpy
        self.np = numpy

    def view(self, tensor: Any) -> Any:
        return tensor.numpy()

    def ids(self, rows: Sequence[Sequence[int]]) -> Any:
        return self.np.array(rows, self.np.int64)

    def floats(self, array: Any) -> Any:
        return array.astype(self.np.float32)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.np.matmul(x, weight.T) + bias

    def layer_norm(self, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred / self.np.sqrt(variance + self.np.float32(eps)) \
            * weight + bias

    def gelu(self, x: Any) -> Any:
        np = self.np
        # erf by Abramowitz and Stegun 7.1.26; its error of 1.5e-7 is float32's.
        z = np.abs(x.astype(np.float64)) / math.sqrt(2)
        t = 1 / (1 + 0.3275911 * z)
        poly = t * (0.254829592 + t * (-0.284496736 + t * (
            1.421413741 + t * (-1.453152027 + t * 1.061405429))))
        erf = np.sign(x) * (1 - poly * np.exp(-z * z))
        return (x * 0.5 * (1 + erf)).astype(np.float32)

    def softmax(self, x: Any) -> Any:
        raised = self.np.exp(x - x.max(-1, keepdims=True))
        return raised / raised.sum(-1, keepdims=True)

    def swap(self, x: Any, a: int, b: int) -> Any:
        return self.np.swapaxes(x, a, b)

    def finish(self, x: Any) -> Any:
        return x


class TorchOps:
    """The same in PyTorch, on the device where the weights are."""

    def __init__(self, device: str) -> None:
        import torch
        self.torch, self.device = torch, device
        torch.set_grad_enabled(False)

    def view(self, tensor: Any) -> Any:
        return tensor.torch()

    def ids(self, rows: Sequence[Sequence[int]]) -> Any:
        return self.torch.tensor(rows, device=self.device)

    def floats(self, array: Any) -> Any:
        return array.to(self.torch.float32)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.torch.nn.functional.linear(x, weight, bias)

    def layer_norm(self, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        return self.torch.nn.functional.layer_norm(
            x, x.shape[-1:], weight, bias, eps)

    def gelu(self, x: Any) -> Any:
        return self.torch.nn.functional.gelu(x)

    def softmax(self, x: Any) -> Any:
        return self.torch.softmax(x, -1)

    def swap(self, x: Any, a: int, b: int) -> Any:
        return x.transpose(a, b)

    def finish(self, x: Any) -> Any:
        # The kernels must have read the weights before a lease is released.
        if self.device != "cpu":
            self.torch.cuda.synchronize()
        return x


def group_names(config: Mapping[str, Any]) -> list[str]:
    """The groups that forward() uses, in order."""
    count = config["num_hidden_layers"]
    return ["embeddings"] + [f"encoder.layer.{i}" for i in range(count)]


def _embed(ops: Any, w: Mapping[str, Any], ids: Any, eps: float) -> Any:
    x = (w["embeddings.word_embeddings.weight"][ids]
         + w["embeddings.token_type_embeddings.weight"][0]
         + w["embeddings.position_embeddings.weight"][:ids.shape[1]])
    return ops.layer_norm(x, w["embeddings.LayerNorm.weight"],
                          w["embeddings.LayerNorm.bias"], eps)


def _layer(ops: Any, w: Mapping[str, Any], at: str, x: Any, mask: Any,
           heads: int, eps: float) -> Any:
    def linear(name: str, value: Any) -> Any:
        return ops.linear(value, w[f"{at}.{name}.weight"],
                          w[f"{at}.{name}.bias"])

    def norm(name: str, value: Any) -> Any:
        return ops.layer_norm(value, w[f"{at}.{name}.weight"],
                              w[f"{at}.{name}.bias"], eps)

    def split(value: Any) -> Any:  # [b, t, h * d] -> [b, h, t, d]
        return ops.swap(value.reshape(*value.shape[:2], heads, -1), 1, 2)

    q = split(linear("attention.self.query", x))
    k = split(linear("attention.self.key", x))
    v = split(linear("attention.self.value", x))
    scores = q @ ops.swap(k, 2, 3) * (1 / math.sqrt(q.shape[-1])) + mask
    mixed = ops.swap(ops.softmax(scores) @ v, 1, 2).reshape(x.shape)
    x = norm("attention.output.LayerNorm",
             x + linear("attention.output.dense", mixed))
    inner = ops.gelu(linear("intermediate.dense", x))
    return norm("output.LayerNorm", x + linear("output.dense", inner))


def forward(ops: Any, config: Mapping[str, Any], weights: Weights,
            sentences: Sequence[Sequence[int]]) -> Any:
    """Sentence embeddings: the mean of the tokens' states, of length one."""
    longest = max(len(ids) for ids in sentences)
    ids = ops.ids([list(s) + [0] * (longest - len(s)) for s in sentences])
    used = ops.floats(ops.ids([[1] * len(s) + [0] * (longest - len(s))
                               for s in sentences]))
    mask = (1 - used)[:, None, None, :] * -1e9
    eps, heads = config["layer_norm_eps"], config["num_attention_heads"]
    names = group_names(config)
    with weights(names[0]) as w:
        x = ops.finish(_embed(ops, w, ids, eps))
    for name in names[1:]:
        with weights(name) as w:
            x = ops.finish(_layer(ops, w, name, x, mask, heads, eps))
    mean = (x * used[:, :, None]).sum(1) / used.sum(1)[:, None]
    return mean / ((mean * mean).sum(-1) ** 0.5)[:, None]
