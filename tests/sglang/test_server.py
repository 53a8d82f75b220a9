"""SGLang's servers over hoistd's memory, asked over HTTP."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest

pytest.importorskip("sglang")

from clients import prompts  # noqa: E402
from served import Failed, Served  # noqa: E402

ASKED = prompts([7, 5, 40])


@pytest.fixture(scope="module")
def want(llama, tmp_path_factory) -> list[list[int]]:
    """The tokens of a server that has loaded the files itself."""
    log = tmp_path_factory.mktemp("plain") / "log"
    with Served(log, llama) as plain:
        return plain.ready().generate(ASKED, 24)


@pytest.fixture(scope="module")
def first(begin, want) -> Served:
    return begin().ready()


def test_the_first_server_says_what_sglangs_own_loader_says(
        first, hoistd, llama, want):
    assert first.generate(ASKED, 24) == want
    weights = sum(one.stat().st_size for one in llama.glob("*.safetensors"))
    read = hoistd.counters()["file_read_bytes"]
    assert 0.9 * weights < read <= weights


def test_a_second_server_reads_and_copies_nothing(first, begin, hoistd, want):
    hoistd.count_anew()
    assert begin().ready().generate(ASKED, 24) == want
    counted = hoistd.counters()
    assert counted["file_read_bytes"] == 0
    assert counted["host_to_device_bytes"] == 0


def test_an_update_of_weights_is_refused_and_nothing_changes(first, llama,
                                                             want):
    with pytest.raises(ValueError, match="read-only, for other servers as well"):
        first.ask("/update_weights_from_disk", model_path=str(llama))
    assert first.generate(ASKED, 24) == want


def test_hoistds_death_changes_no_answer(first, hoistd, want):
    os.kill(hoistd.kept_pid(), signal.SIGKILL)
    assert first.generate(ASKED, 24) == want
    hoistd.until_served()
    assert first.generate(ASKED, 24) == want


def test_quantized_weights_are_refused_by_name(begin, llama, tmp_path):
    model = tmp_path / "fp8"
    shutil.copytree(llama, model)
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128]}
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(Failed, match=r"Unimplemented: model\.layers\.0\.\S+ "
                                     r"\(\w+\) converts the files' weights"):
        begin(model).ready()


def test_a_server_without_hoistd_says_so(begin, tmp_path):
    with pytest.raises(Failed, match="Unavailable"):
        begin(daemon=str(tmp_path / "nobody"), model_loader_extra_config={
            "deadline": 1}).ready()
