"""Modules of transformers over 8-bit floats with scales: plain weights.

transformers has no layers for such weights, as image models' files have them.
So each is computed: its bytes times its scale, in float32. The library's own
conversions, or the caller's names, tell which file tensors make up a weight.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Mapping, Sequence

import torch
from torch import nn

from .._errors import Unimplemented
from ._finding import RENAME, Finder, Rename
from ._meaning import configured
from ._pieces import Source
from ._quantised import Packed
from ._safetensors import FileTensor, Paths
from ._scaled import Scaled
from ._single_file import is_of
from ._transformers import Computed


def unscale(module: nn.Module, path: Paths, files: Sequence[pathlib.Path],
            headers: Mapping[str, FileTensor], dtype: torch.dtype | None,
            rename: Rename) -> Packed | None:
    """The module's weights, those with scales computed.

    dtype: the weights'; None: bfloat16, as diffusers' layers compute in.

    None: no weight of the module has a scale, it is none of transformers', or a
    configuration says how its weights are quantised.
    Unimplemented: a used weight is not of 8-bit floats with one scale, or one a
    row; or transformers makes it of more than the files' tensors.
    """
    scaled = Scaled(files, headers)
    if not scaled.beside or not is_of(
            module, "transformers.modeling_utils", "PreTrainedModel") or any(
                configured(module, path)):
        return None
    # To the library they are plain weights already.
    plain = {name: FileTensor("F32", header.shape) if name in scaled.beside
             else header for name, header in headers.items()
             if name not in scaled.aside}
    finder = Finder(module, plain, rename)
    packed = Packed(dtype=dtype or torch.bfloat16, _beside=scaled.beside,
                    remedy=RENAME)
    for name, value in module.state_dict().items():
        for found in finder.find([name], tuple(value.shape)):
            packed.plain[name] = _unscaled(name, found, scaled, headers)
    if not any(isinstance(one, Computed) and {*one.inputs} & {*scaled.beside}
               for one in packed.plain.values()):
        return None
    for name, why in finder.refused.items():
        if name not in packed.plain:
            raise Unimplemented(f"{name}: {why}")
    return packed


def _unscaled(name: str, found: Source | Computed, scaled: Scaled,
              headers: Mapping[str, FileTensor]) -> Source | Computed:
    used = (found.inputs if isinstance(found, Computed) else tuple(
        dict.fromkeys(piece.tensor for piece in found.pieces)))
    scales = {one: scaled.checked_scale(one) for one in used
              if one in scaled.beside}
    if not scales:
        return found
    computes = _Unscales(name, found, {one: headers[one].shape for one in used},
                         scales)
    return Computed((*used, *scales.values()),
                    found.results if isinstance(found, Computed) else
                    {name: torch.empty(found.shape, device="meta",
                                       dtype=torch.float32)},
                    computes, repr(computes))


@dataclasses.dataclass(frozen=True)
class _Unscales:
    """Computes one weight, or those that one of the library's converters makes.
    repr() is its recipe.

    found: of tensors without scales. scales: the names, by their weights'."""

    name: str
    found: Source | Computed
    shapes: Mapping[str, tuple[int, ...]]
    scales: Mapping[str, str]

    def __repr__(self) -> str:
        found = (self.found.recipe if isinstance(self.found, Computed)
                 else self.found)
        return repr(("scaled", self.name, found, sorted(self.scales.items())))

    def __call__(self, tensors: Mapping[str, torch.Tensor]
                 ) -> dict[str, torch.Tensor]:
        values = {name: self._value(name, tensors) for name in self.shapes}
        if isinstance(self.found, Computed):
            return self.found.run(values)
        flat = [values[piece.tensor].flatten()[piece.start:][:piece.count]
                for piece in self.found.pieces]
        whole = flat[0] if len(flat) == 1 else torch.cat(flat)
        return {self.name: whole.reshape(self.found.shape)}

    def _value(self, name: str, tensors: Mapping[str, torch.Tensor]
               ) -> torch.Tensor:
        value = tensors[name].to(torch.float32)
        if name not in self.scales:
            return value
        scale = tensors[self.scales[name]].to(torch.float32)
        return value * scale.reshape(-1, *[1] * (value.dim() - 1))
