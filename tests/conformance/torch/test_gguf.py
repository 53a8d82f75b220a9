"""GGUF files: hoistd serves their tensors; diffusers makes modules of them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")

import hoist  # noqa: E402
import numpy  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402

Type = gguf.GGMLQuantizationType
# The package takes Q8_1, which no file has, for 40 bytes; ggml has 36.
TYPES = [one for one in Type if one.name != "Q8_1"]
# ggml's names, and torch's types. All others are bytes of packed blocks.
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
         "F64": torch.float64, "I8": torch.int8, "I16": torch.int16,
         "I32": torch.int32, "I64": torch.int64}
WORDS = [f"word {i}" for i in range(50_000)]  # A header of some 800 KB.


def write(path: pathlib.Path, tensors: dict[str, tuple[Any, numpy.ndarray]],
          **options: Any) -> list[pathlib.Path]:
    """Bytes of shape (..., row) as the type's blocks, by the package itself."""
    writer = gguf.GGUFWriter(path, "llama", **options)
    writer.add_array("tokenizer.ggml.tokens", WORDS)
    for name, (kind, data) in tensors.items():
        if PLAIN.get(kind.name) in (None, torch.bfloat16):
            writer.add_tensor(name, data, raw_dtype=kind)
        else:
            writer.add_tensor(name, data.view(kind.name.lower().replace(
                "f", "float").replace("i", "int")))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(path.parent.glob(f"{path.stem}*.gguf"))


def tensors_of_all_types() -> dict[str, tuple[Any, numpy.ndarray]]:
    generator = numpy.random.default_rng(0)
    made = {}
    for at, kind in enumerate(TYPES):
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        rows = 8 if elements == 1 else 3
        made[f"blk.{at % 3}.{kind.name}"] = kind, generator.integers(
            0, 255, (rows, rows * size), dtype=numpy.uint8)
    return made


def assert_as_gguf_reads(session: Any, model: Any,
                         files: list[pathlib.Path]) -> None:
    expected = {one.name: one for path in files
                for one in gguf.GGUFReader(path).tensors}
    seen = set()
    for group in model:
        with session.stage(group, deadline=30) as lease:
            for name in lease:
                tensor = lease[name].torch()
                kind = expected[name].tensor_type.name
                data = expected[name].data
                assert tensor.dtype == PLAIN.get(kind, torch.uint8)
                assert lease[name].info.block_type == (
                    "" if kind in PLAIN else kind)
                if kind == "BF16":  # Bytes to the package.
                    data = data.view(numpy.uint16)
                assert tuple(tensor.shape) == data.shape
                assert tensor.cpu().contiguous().view(
                    torch.uint8).numpy().tobytes() == data.tobytes()
                seen.add(name)
    assert seen == set(expected)


def test_tensors_of_each_type_are_as_the_gguf_package_reads_them(
        session, tmp_path):
    tensors = tensors_of_all_types()
    files = write(tmp_path / "m.gguf", tensors)
    model = session.register(files[0])
    assert model.name == "m"
    assert {group.name for group in model} == {"blk.0", "blk.1", "blk.2"}
    assert_as_gguf_reads(session, model, files)


def test_workers_share_one_registration_and_a_changed_file_is_another(
        session, tmp_path, hoistd):
    tensors = tensors_of_all_types()
    path, = write(tmp_path / "m.gguf", tensors)
    model = session.register(path, "one")
    with hoist.connect(hoistd.socket) as other:
        again = other.register(path, "one")
        assert (again.id, again.fingerprint) == (model.id, model.fingerprint)
    del tensors["blk.0.F32"]
    write(path, tensors)
    with pytest.raises(hoist.AlreadyExists):
        session.register(path, "one")


@pytest.mark.parametrize("named", ["folder", "first", "last"])
def test_a_set_of_files_is_one_model(session, tmp_path, named):
    tensors = tensors_of_all_types()
    files = write(tmp_path / "m.gguf", tensors, split_max_tensors=15)
    assert [one.name for one in files] == [
        f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    path = {"folder": tmp_path, "first": files[0], "last": files[2]}[named]
    model = session.register(path)
    assert model.name == (tmp_path.name if named == "folder" else "m")
    assert_as_gguf_reads(session, model, files)


def test_parts_of_a_set_alone_are_refused(session, tmp_path):
    files = write(tmp_path / "m.gguf", tensors_of_all_types(),
                  split_max_tensors=15)
    files[1].rename(tmp_path / "hidden")
    with pytest.raises(hoist.NotFound, match="m-00002-of-00003.gguf"):
        session.register(files[0])
    with pytest.raises(hoist.InvalidArgument,
                       match="2 of a set's 3 parts; name all of them"):
        session.register(tmp_path)


def test_hoistctl_loads_a_file(make_hoistd, tmp_path):
    daemon = make_hoistd(extra=f'[models]\nroots = ["{tmp_path}"]\n')
    files = write(tmp_path / "m.gguf", tensors_of_all_types(),
                  split_max_tensors=15)
    assert "loaded m to host" in daemon.ctl("load", str(files[1]))
    model, = json.loads(daemon.ctl("--json", "models"))["models"]
    assert (model["name"], model["tensors"]) == ("m", len(TYPES))
    groups = json.loads(daemon.ctl("--json", "groups", "m"))["groups"]
    for at, group in enumerate(sorted(groups, key=lambda one: one["name"])):
        assert group["block_types"] == sorted(
            one.name for one in TYPES[at::3] if one.name not in PLAIN)
    assert "PACKED" in daemon.ctl("groups", "m")
    with hoist.connect(daemon.socket) as session:
        assert_as_gguf_reads(session, session.register(files[0]), files)


def test_a_damaged_file_is_refused_by_name(session, tmp_path):
    path, = write(tmp_path / "m.gguf", tensors_of_all_types())
    whole = path.read_bytes()
    path.write_bytes(whole[:-4096])
    with pytest.raises(hoist.InvalidArgument,
                       match='m.gguf: tensor "blk.*past the file.*again'):
        session.register(path)
    path.write_bytes(whole[:500_000])
    with pytest.raises(hoist.InvalidArgument, match="m.gguf.*truncated"):
        session.register(path)
    path.write_bytes(b"GGUF\0\0\0\3" + whole[8:])
    with pytest.raises(hoist.InvalidArgument, match="big-endian"):
        session.register(path)


def test_attach_takes_what_diffusers_makes_of_it(
        hoistd, device, tmp_path):
    diffusers = pytest.importorskip("diffusers")
    kind = diffusers.QwenImageTransformer2DModel
    torch.manual_seed(1)
    plain = kind(patch_size=1, in_channels=64, out_channels=64, num_layers=2,
                 attention_head_dim=16, num_attention_heads=2,
                 joint_attention_dim=32, axes_dims_rope=(4, 6, 6))
    plain.save_config(tmp_path)
    path = tmp_path / "m.gguf"
    write(path, {
        name: (Type.F32, value.numpy().view(numpy.uint8)) if value.ndim < 2
        else (Type.Q8_0, gguf.quantize(value.numpy(), Type.Q8_0))
        for name, value in plain.state_dict().items()})
    made = kind.from_single_file(
        str(path), config=str(tmp_path), torch_dtype=torch.float32,
        quantization_config=diffusers.GGUFQuantizationConfig(
            compute_dtype=torch.float32)).eval().to(device)
    assert made.proj_out.weight.quant_type == Type.Q8_0
    inputs = {"hidden_states": torch.randn(1, 16, 64, device=device),
              "encoder_hidden_states": torch.randn(1, 5, 32, device=device),
              "timestep": torch.tensor([0.5], device=device),
              "img_shapes": [[(1, 4, 4)]], "return_dict": False}
    if "txt_seq_lens" in kind.forward.__code__.co_varnames:
        inputs["txt_seq_lens"] = [5]
    packed = made.proj_out.weight.detach().as_subclass(torch.Tensor).clone()
    with torch.no_grad():
        expected = made(**inputs)
        hoist.attach(made, 0.6)
        assert_equal_outputs(made(**inputs), expected)
    hoist.detach(made)
    assert same_bytes(made.proj_out.weight.as_subclass(torch.Tensor), packed)
