"""Parts of hoist.vllm over vLLM's own classes, without an engine."""

from __future__ import annotations

import types

import pytest

pytest.importorskip("vllm")

import hoist  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
from hoist.serving import _weights  # noqa: E402
from hoist.serving._trace import Trace  # noqa: E402
from hoist.vllm import _finding, _loader  # noqa: E402
from hoist.vllm._cpu import kernels_over_shared_memory  # noqa: E402
from hoist.vllm._headers import HeaderLoader  # noqa: E402
from hoist.vllm._processing import why_not_shared  # noqa: E402
from torch import nn  # noqa: E402
from vllm.config.load import LoadConfig  # noqa: E402
from vllm.model_executor.layers import utils  # noqa: E402
from vllm.model_executor.model_loader import (  # noqa: E402
    utils as loader_utils)
from vllm.model_executor.model_loader.default_loader import (  # noqa: E402
    DefaultModelLoader)
from vllm.model_executor.model_loader.reload.layerwise import (  # noqa: E402
    LAYERWISE_INFO)
from vllm.model_executor.utils import (  # noqa: E402
    weights_already_processed)


class Model(nn.Module):
    """Of one folder, and of another one."""

    def __init__(self, second):
        super().__init__()
        self.secondary_weights = [DefaultModelLoader.Source(
            str(second), revision=None, prefix="second.")]

    def load_weights(self, weights):
        for _, tensor in weights:
            tensor.tolist()


@pytest.fixture
def folders(tmp_path):
    made = [tmp_path / "first", tmp_path / "second"]
    for folder in made:
        folder.mkdir()
        safetensors.torch.save_file({folder.name: torch.ones(4)},
                                    folder / "model.safetensors")
    return made


@pytest.fixture
def loader(folders):
    """Whose model's code has looked at values."""
    made = HeaderLoader(LoadConfig(), Trace())
    config = types.SimpleNamespace(
        model=str(folders[0]), revision=None, quantization=None,
        multimodal_config=None)
    made._init_ep_weight_filter = lambda config: None
    with pytest.raises(Exception):
        made.load_weights(Model(folders[1]), config)
    return made


def test_files_are_known_that_the_loading_code_did_not_come_to(loader, folders):
    assert [one.parent for one in loader.files] == folders
    assert set(loader.headers) == {"first", "second"}


def test_the_time_that_vllm_logs_is_since_loading_began(loader):
    assert loader.counter_before_loading_weights > 0


def test_layers_are_noted_for_reloads_only_where_hoist_makes_no_module():
    ours, theirs = nn.Linear(1, 1), nn.Linear(1, 1)
    with pytest.raises(KeyError), _loader._without_metadata_for_reloading():
        loader_utils.record_metadata_for_reloading(ours)
        raise KeyError
    loader_utils.record_metadata_for_reloading(theirs)
    assert ours not in LAYERWISE_INFO and theirs in LAYERWISE_INFO


@pytest.mark.parametrize("change", [
    lambda path: path.write_bytes(path.read_bytes()),
    lambda path: path.unlink()])
def test_files_that_change_while_an_engine_starts_are_told(loader, folders,
                                                           change):
    loader.check_unchanged()
    change(folders[1] / "model.safetensors")
    with pytest.raises(hoist.DataLoss, match="second.*has changed"):
        loader.check_unchanged()


def test_files_that_changed_while_they_were_loaded_are_not_published(
        loader, folders, monkeypatch):
    def load(*_):
        path = folders[0] / "model.safetensors"
        path.write_bytes(path.read_bytes())
        return nn.Linear(1, 1)

    monkeypatch.setattr(_finding.DefaultModelLoader, "load_model", load)
    monkeypatch.setattr(_finding._published, "publish",
                        lambda *_: pytest.fail("it was published"))
    finding = finding_of_nothing()
    with pytest.raises(hoist.DataLoss, match="has changed"):
        finding._publish(None, "name", {}, loader, nn.Linear(1, 1))


def finding_of_nothing():
    config = types.SimpleNamespace(compilation_config=types.SimpleNamespace(
        static_forward_context={}, static_all_moe_layers=[]))
    return _finding.Finding(_finding.Options(), LoadConfig(), config, None, "",
                            torch.device("cpu"))


def test_what_came_early_and_is_not_taken_is_given_back(monkeypatch):
    monkeypatch.setitem(_finding._early, b"of other files", object())
    finding = finding_of_nothing()
    monkeypatch.setattr(finding, "_find", lambda *_, **__: "weights")
    assert finding.weights_of(nn.Linear(1, 1)) == "weights"
    assert not _finding._early


def test_an_engine_that_cannot_sleep_stays_awake(monkeypatch):
    from hoist.vllm._sleep import CuMemBackend, HoistSleepBackend

    class Planned:
        def check_suspend(self):
            raise hoist.FailedPrecondition("it has a budget")

    monkeypatch.setattr(_weights, "_all", {Planned()})
    monkeypatch.setattr(CuMemBackend, "suspend",
                        lambda *_: pytest.fail("its KV cache is gone"))
    with pytest.raises(hoist.FailedPrecondition, match="budget"):
        HoistSleepBackend().suspend()


def test_convolutions_are_packed_by_who_computes_and_not_published_packed(
        monkeypatch):
    packed = []
    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm",
                        lambda layer, remove_weight: packed.append(layer))
    layer = nn.Conv1d(8, 8, 4, groups=8)
    with kernels_over_shared_memory():
        utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
        assert not packed
        with weights_already_processed():
            utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
            utils.dispatch_cpu_unquantized_gemm(nn.Linear(1, 1), True)
    assert packed == [layer]


def test_experts_that_vllm_moves_are_not_shared():
    model = nn.Linear(1, 1)
    assert why_not_shared(model, balanced=False) is None
    assert "eplb" in (why_not_shared(model, balanced=True) or "")
