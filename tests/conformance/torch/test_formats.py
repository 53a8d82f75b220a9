"""Each cell of the guide's table of formats is held by a test that exists."""

from __future__ import annotations

import ast
import pathlib

HERE = pathlib.Path(__file__).parent
GUIDE = HERE.parents[2] / "client" / "python" / "README.md"
EQUAL = "test_it_equals_the_librarys_own"
COMPILED = "test_it_is_compiled_as_the_librarys_own"
ADAPTED = "test_adapters_go_on_top"
OUTLIVES = "test_it_outlives_hoistd"
UNSAVED = "test_what_diffusers_does_not_save_is_refused_as_by_it"

# By the table's columns, of files or of several: load, budgets, compile, LoRA,
# sharing, saving, restarts.
FOLDER = [("test_quantised_files", name) for name in (
    EQUAL, EQUAL, COMPILED, ADAPTED,
    "test_the_bytes_are_the_files_and_kept_once",
    "test_what_is_saved_is_what_was_loaded", OUTLIVES)]
DIFFUSERS = [("test_quantised_diffusers", name) for name in (
    EQUAL, EQUAL, COMPILED, ADAPTED, "test_another_worker_reads_nothing",
    "test_what_is_saved_is_what_was_loaded", OUTLIVES)]


def of_file(where: str, shares: str, saves: str) -> list[tuple[str, str]]:
    return [(where, EQUAL), (where, EQUAL), ("test_image_files_used", COMPILED),
            ("test_image_files_used", ADAPTED), (where, shares), (where, saves),
            (where, OUTLIVES)]


# By a row's first words: of its cells, or of its refusal.
TESTS = {
    "bitsandbytes 4 bit": FOLDER,
    "bitsandbytes 8 bit": FOLDER,
    "torchao": FOLDER,
    "`fp8` by blocks": FOLDER,
    "compressed-tensors' FP8": FOLDER,
    "plain weights": [
        (where, "test_what_was_unpacked_is_saved_as_plain_weights"
         if "saved" in name else name) for where, name in FOLDER],
    "diffusers' folders: torchao": DIFFUSERS,
    "diffusers' folders: bitsandbytes": DIFFUSERS,
    "MXFP4 as it is": [("test_quantised_files",
                        "test_mxfp4_is_unpacked_only_if_it_is_told")],
    "`fp8` where": [("test_quantised_files",
                     "test_weights_that_the_library_would_unpack_are_refused")],
    "compressed-tensors' other": [(
        "test_quantised_files",
        "test_weights_that_the_first_pass_would_unpack_are_refused")],
    "GPTQ, AWQ": [("test_quantised_files",
                   "test_another_quantiser_is_refused_by_name")],
    "a folder that quanto": [("test_quantised_files",
                              "test_a_folder_that_quanto_wrote_is_refused")],
    "diffusers' folders of other": [(
        "test_quantised_diffusers",
        "test_another_quantiser_is_refused_by_name")],
    "one safetensors file": of_file(
        "test_single_file", "test_workers_share_it",
        "test_it_saves_as_the_library"),
    "8-bit floats with scales in": of_file(
        "test_scaled_file", "test_workers_share_the_weights", UNSAVED),
    "8-bit floats with scales, into": [("test_scaled_text", name) for name in (
        EQUAL, EQUAL, COMPILED, ADAPTED,
        "test_workers_share_what_the_first_one_computed",
        "test_it_is_saved_as_plain_weights", OUTLIVES)],
    "int8, MXFP8": [("test_scaled_file",
                     "test_other_scales_are_refused_by_name")],
    "scales of other layers": [("test_scaled_file",
                                "test_a_scale_of_no_linear_layer_is_refused")],
    "a GGUF file, also of": of_file(
        "test_gguf_load", "test_workers_share_the_blocks", UNSAVED),
    "a GGUF file of several": [(
        "test_gguf_unpacked",
        "test_an_architecture_that_the_library_does_not_load_is_refused")],
    "a GGUF file, into transformers'": [("test_gguf_unpacked", name) for name in (
        EQUAL, EQUAL, COMPILED, ADAPTED,
        "test_workers_share_what_the_first_one_unpacked",
        "test_it_is_saved_as_plain_weights", OUTLIVES)],
}


def table() -> list[list[str]]:
    lines = GUIDE.read_text().splitlines()
    start = next(at for at, line in enumerate(lines)
                 if line.startswith("| format |"))
    found = []
    for line in lines[start + 2:]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def test_each_row_has_its_tests():
    rows = {row[0]: [cell for cell in row[1:] if cell] for row in table()}
    assert len(rows) == len(TESTS)
    for name, cells in rows.items():
        held = [tests for words, tests in TESTS.items()
                if name.startswith(words)]
        assert len(held) == 1, name
        assert len(cells) == len(held[0]), name
        refused = cells[0].startswith("refused: ")  # And what works instead.
        assert refused == (len(held[0]) == 1), name
        assert "not tried" not in cells, name


def test_each_named_test_exists():
    for where, name in {one for tests in TESTS.values() for one in tests}:
        tree = ast.parse((HERE / f"{where}.py").read_text())
        assert name in {one.name for one in tree.body
                        if isinstance(one, ast.FunctionDef)}, (where, name)
