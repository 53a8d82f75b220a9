"""What safetensors files hold, by their headers."""

from __future__ import annotations

import json
import os
import pathlib
import pickle

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from hoist.checkpoint._safetensors import (Bytes, FileTensor, find_files,  # noqa: E402
                                   identity, one_path, read_headers)


def write(path: pathlib.Path, **tensors: tuple[str, list[int], int]) -> None:
    """tensors: name -> (dtype, shape, bytes)."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, nbytes) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [at, at + nbytes]}
        at += nbytes
    raw(path, json.dumps(header).encode(), bytes(at))


def raw(path: pathlib.Path, header: bytes, data: bytes = b"",
        length: int | None = None) -> None:
    path.write_bytes((len(header) if length is None else length
                      ).to_bytes(8, "little") + header + data)


def test_headers_say_types_and_shapes_and_leave_metadata_out(tmp_path):
    file = tmp_path / "m.safetensors"
    write(file, a=("F32", [2, 3], 24), b=("BF16", [], 2), c=("I8", [0, 4], 0))
    assert read_headers([file]) == {
        "a": FileTensor("F32", (2, 3)), "b": FileTensor("BF16", ()),
        "c": FileTensor("I8", (0, 4))}


def test_a_file_is_itself_and_a_folder_is_its_files(tmp_path):
    for name in ("b.safetensors", "a.safetensors", "readme.txt"):
        write(tmp_path / name, x=("U8", [1], 1))
    assert find_files(tmp_path / "b.safetensors") == [
        tmp_path / "b.safetensors"]
    assert [one.name for one in find_files(str(tmp_path))] == [
        "a.safetensors", "b.safetensors"]


def test_the_whole_model_goes_before_others_unless_there_is_an_index(tmp_path):
    for name in ("consolidated.safetensors", "model.safetensors"):
        write(tmp_path / name, x=("U8", [1], 1))
    assert [one.name for one in find_files(tmp_path)] == ["model.safetensors"]
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert len(find_files(tmp_path)) == 2


def test_an_index_says_which_file_has_what(tmp_path):
    one, other = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    write(one, a=("F32", [1], 4), b=("F32", [1], 4))
    write(other, b=("F16", [2], 4), c=("F16", [2], 4))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {"a": one.name, "b": one.name, "c": other.name}}))
    assert read_headers([one, other])["b"] == FileTensor("F32", (1,))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {"b": other.name}}))
    assert read_headers([one, other]) == {
        "a": FileTensor("F32", (1,)), "b": FileTensor("F16", (2,)),
        "c": FileTensor("F16", (2,))}


def test_nothing_there_is_not_found(tmp_path):
    with pytest.raises(hoist.NotFound, match="neither a file nor a folder"):
        find_files(tmp_path / "nowhere")
    with pytest.raises(hoist.NotFound, match="holds no"):
        find_files(tmp_path)


def test_a_pickled_checkpoint_is_refused_with_what_would_do(tmp_path):
    pickled = tmp_path / "pytorch_model.bin"
    pickled.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(hoist.NotFound,
                       match=r"pytorch_model\.bin.*save_pretrained"):
        find_files(tmp_path)
    for text in (b"PK\x03\x04" + bytes(100), pickle.dumps({"a": 1})):
        pickled.write_bytes(text)
        with pytest.raises(hoist.InvalidArgument, match="pickled.*attach"):
            find_files(pickled)
    # Its name is not what it is.
    write(pickled, a=("U8", [128], 128))
    assert find_files(pickled) == [pickled]
    assert read_headers([pickled])["a"] == FileTensor("U8", (128,))


@pytest.mark.parametrize("header, length", [
    (b"no json", None), (b"[1, 2]", None), (b'{"a": {"dtype": "F32"}}', None),
    (b'{"a": 3}', None), (b'{"a": {"dtype": "F32", "shape": 3}}', None),
    (b"\xff\xfe", None), (b"{}", 1 << 40), (b'{"a":', 100), (b"", 8),
    *((json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8],
                         **wrong}}).encode(), None) for wrong in (
        {"dtype": ["F32"]}, {"shape": ["2"]}, {"shape": [-2]},
        {"shape": [2.0]}, {"data_offsets": [8, 0]},
        {"data_offsets": [-8, 0]}, {"data_offsets": None}))],
    ids=repr)
def test_what_is_no_safetensors_file_is_data_loss(tmp_path, header, length):
    file = tmp_path / "m.safetensors"
    raw(file, header, length=length)
    with pytest.raises(hoist.DataLoss, match="no safetensors file"):
        read_headers([file])


def test_a_file_of_less_than_a_length_is_data_loss(tmp_path):
    file = tmp_path / "m.safetensors"
    file.write_bytes(b"abc")
    with pytest.raises(hoist.DataLoss):
        read_headers([file])
    file.write_bytes(b"")
    with pytest.raises(hoist.DataLoss):
        read_headers([file])


def test_bytes_are_compared_as_they_lie_in_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr("hoist.checkpoint._safetensors._CHUNK", 4)
    files = [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    for file, name, dtype, last in (
            (files[0], "same", "U8", b"g"), (files[1], "last", "U8", b"x")):
        header = {"one": 0, name: 7, "typed": 14}
        raw(file, json.dumps({
            f"{tensor}.{file.stem}": {
                "dtype": "I8" if tensor == "typed" else dtype, "shape": [7],
                "data_offsets": [at, at + 7]}
            for tensor, at in header.items()}).encode(),
            b"abcdefg" + b"abcdef" + last + b"abcdefg")
    found = Bytes(files)
    assert found.same("one.1", "one.2")
    assert found.same("same.1", "one.2")
    assert not found.same("one.1", "last.2")
    assert not found.same("one.1", "typed.1")


@pytest.mark.parametrize("index", ["no json", "[]", '{"weight_map": 3}'])
def test_an_index_that_is_none_is_data_loss(tmp_path, index):
    files = [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    for file in files:
        write(file, x=("U8", [1], 1))
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(hoist.DataLoss, match="index"):
        read_headers(files)


def test_identity_changes_with_the_file_and_with_the_rule(tmp_path):
    file = tmp_path / "m.safetensors"
    write(file, x=("U8", [1], 1))
    os.utime(file, ns=(1, 1))
    first = identity([file], "rule")
    assert len(first) == 8 and identity([file], "rule") == first
    assert identity([file], "other") != first
    # Replaced by a file of the same size and time.
    write(tmp_path / "new", x=("U8", [1], 1))
    os.utime(tmp_path / "new", ns=(1, 1))
    os.replace(tmp_path / "new", file)
    replaced = identity([file], "rule")
    assert replaced != first
    # Written in place: another time.
    os.utime(file, ns=(2, 2))
    assert identity([file], "rule") not in (first, replaced)


def test_several_files_have_one_path_for_as_long_as_it_is_used(tmp_path):
    files = []
    for at, name in enumerate(("z.safetensors", "a.safetensors")):
        (tmp_path / str(at)).mkdir()
        files.append(tmp_path / str(at) / name)
        write(files[-1], **{f"t{at}": ("U8", [1], 1)})
    with one_path(files) as folder:
        found = find_files(folder)
        assert [one.resolve() for one in found] == files  # In their order.
        assert set(read_headers(found)) == {"t0", "t1"}
        before = identity(found, "rule")
    assert not os.path.exists(folder)
    with one_path(files) as folder:
        assert identity(find_files(folder), "rule") == before


def test_one_path_stands_for_itself(tmp_path):
    with one_path(tmp_path) as found:
        assert found == str(tmp_path)
    with one_path("some/path") as found:
        assert found == "some/path"


def test_no_files_and_files_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(hoist.InvalidArgument):
        with one_path([]):
            pass
    with pytest.raises(FileNotFoundError):
        with one_path([tmp_path / "nowhere.safetensors"]):
            pass
