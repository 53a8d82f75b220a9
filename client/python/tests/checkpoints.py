"""Checkpoints of small transformers models, and what the library and hoist make
of them. Of modules that skip where transformers is missing."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Mapping

import safetensors.torch
import torch
import transformers
from hoist.nn._store.building import build_on_meta
from hoist.checkpoint._transformers import library_computations, library_sources
from hoist.checkpoint._pieces import Source
from hoist.checkpoint._safetensors import FileTensor, find_files, read_headers

SIZES = {"BOOL": 1, "U8": 1, "I64": 8, "F32": 4, "BF16": 2, "F16": 2}

TEXT = dict(vocab_size=64, hidden_size=16, intermediate_size=24,
            num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            head_dim=8, max_position_embeddings=32, pad_token_id=0,
            bos_token_id=1, eos_token_id=2)
EXPERTS = dict(moe_intermediate_size=8, num_experts=12, num_local_experts=12,
               n_routed_experts=12, num_experts_per_tok=2)
VISION = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2,
              num_attention_heads=2, image_size=8, patch_size=4)
T5 = dict(vocab_size=64, d_model=16, d_kv=8, d_ff=24, num_layers=2,
          num_heads=2)
WHISPER = dict(vocab_size=64, d_model=16, encoder_layers=2, decoder_layers=2,
               encoder_attention_heads=2, decoder_attention_heads=2,
               encoder_ffn_dim=24, decoder_ffn_dim=24, num_mel_bins=8,
               max_source_positions=8, max_target_positions=8, pad_token_id=0,
               bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
GPT2 = dict(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=32)
CLIP = dict(text_config=TEXT | {"projection_dim": 8},
            vision_config=VISION | {"projection_dim": 8}, projection_dim=8)
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
QWEN_VISION = dict(depth=2, hidden_size=16, num_heads=2, patch_size=4)
LLAVA = dict(text_config=TEXT | {"model_type": "llama"},
             vision_config=VISION | {"model_type": "clip_vision_model"})


def build(name: str, options: Mapping[str, Any], dtype: Any = torch.float32
          ) -> Any:
    """The model with random weights and buffers, all of them different."""
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**json.loads(json.dumps(options)))).to(dtype)
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.normal_()
    return model


def raw_files(folder: pathlib.Path) -> dict[str, bytes]:
    """Each tensor's bytes, read without hoist and without safetensors."""
    found: dict[str, bytes] = {}
    for path in find_files(folder):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:start]).items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                found[name] = data[start + first:start + last]
    return found


def put_together(source: Source, files: Mapping[str, bytes]) -> bytes:
    size = SIZES[source.dtype]
    return b"".join(
        files[piece.tensor][piece.start * size:
                            (piece.start + piece.count) * size]
        for piece in source.pieces)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(
        torch.uint8).numpy().tobytes()


def check(folder: pathlib.Path, cls: Any,
          refuses: Mapping[str, str] | None = None,
          computes: bool = True) -> dict[str, Source]:
    """The sources of the class's module for these files, which are what the
    library loads from them: the same names, shapes and bytes.

    refuses: what else it loads, and the operations by which it does.
    computes: whether these can be told from shapes and types what they give.
    """
    loaded, info = cls.from_pretrained(folder, output_loading_info=True)
    module = build_on_meta(lambda: cls(loaded.config))
    sources, refused = library_sources(module, read_headers(
        find_files(folder)))
    assert {name: why.partition(":")[0] for name, why in refused.items()} == {
        name: f"transformers' {operation}"
        for name, operation in (refuses or {}).items()}
    assert all("hoist.attach" in why for why in refused.values())
    files = raw_files(folder)
    there = loaded.state_dict()
    for name, source in sources.items():
        assert source.shape == tuple(there[name].shape), name
        assert put_together(source, files) == raw(there[name]), name
    if computes:
        check_computed(folder, module, refused, there)
    else:
        assert not library_computations(module, read_headers(
            find_files(folder)), refused)
    filled = {there[name].data_ptr() for name in [*sources, *refused]}
    assert {name for name, value in there.items()
            if value.data_ptr() not in filled} == set(info["missing_keys"])
    return sources


def check_computed(folder: pathlib.Path, module: torch.nn.Module,
                   refused: Mapping[str, str],
                   there: Mapping[str, torch.Tensor]) -> None:
    """What is refused is computed from the files' tensors instead."""
    headers = read_headers(find_files(folder))
    computed = library_computations(module, headers, refused)
    assert set(computed) == set(refused)
    files = {name: tensor for path in find_files(folder)
             for name, tensor in safetensors.torch.load_file(path).items()}
    for name, one in computed.items():
        made = one.run({tensor: files[tensor] for tensor in one.inputs})
        assert set(made) >= {name}
        assert raw(made[name]) == raw(there[name]), name
        assert one.results[name].shape == there[name].shape
        assert one.results[name].dtype == made[name].dtype


def write(folder: pathlib.Path, config: Any,
          tensors: Mapping[str, torch.Tensor]) -> None:
    """A checkpoint with these names, whatever the library would name them."""
    config.save_pretrained(folder)
    safetensors.torch.save_file(
        {name: tensor.detach().clone() for name, tensor in tensors.items()},
        folder / "model.safetensors", metadata={"format": "pt"})


def headers_of(module: Any, **changes: FileTensor) -> dict[str, FileTensor]:
    return {name: FileTensor("F32", tuple(value.shape))
            for name, value in module.state_dict().items()} | changes
