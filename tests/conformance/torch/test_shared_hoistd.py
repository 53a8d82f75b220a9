"""The tests' own rules: what one leaves in a hoistd that the next one gets, and
in the process."""

from __future__ import annotations

import gc

import conftest
import hoist
import pluggy
import pytest
from conftest import MIB, _Shelf
from real_daemon import block_model, write_safetensors

SIZES = {"pool": 16 * MIB, "host": 32 * MIB}


@pytest.fixture
def shelf():
    shelf = _Shelf()
    yield shelf
    shelf.close()


def test_the_next_test_has_it_with_no_model_and_with_counts_of_its_own(
        shelf, tmp_path):
    write_safetensors(tmp_path / "model.safetensors", block_model())
    sizes = {**SIZES, "extra": f'[models]\nroots = ["{tmp_path}"]\n'}
    first = shelf.take(sizes)
    first.ctl("load", str(tmp_path), "--name", "left")
    assert first.counters()["file_read_bytes"] > 0
    shelf.put(sizes, first, passed=True)
    assert shelf.take(sizes) is first
    assert int(first.status()["models"]) == 0
    assert first.counters()["file_read_bytes"] == 0
    assert first.log_text() == ""
    other = shelf.take(SIZES)
    assert other is not first
    shelf.put(SIZES, other, passed=True)
    shelf.put(sizes, first, passed=True)


def test_one_with_a_session_left_ends(shelf, monkeypatch):
    monkeypatch.setattr(conftest, "PATIENCE", 0.1)
    hoistd = shelf.take(SIZES)
    session = hoist.connect(hoistd.socket)
    shelf.put(SIZES, hoistd, passed=True)
    session.close()
    assert hoistd.process.poll() == 0, "and nobody else gets it"


def test_one_that_has_ended_is_the_failure_of_its_test(shelf):
    hoistd = shelf.take(SIZES)
    hoistd.kill()
    with pytest.raises(AssertionError, match="hoistd ended with -9"):
        shelf.put(SIZES, hoistd, passed=True)


def test_every_tenth_test_and_one_that_failed_end_theirs(shelf):
    hoistd = shelf.take(SIZES)
    for _ in range(shelf.EACH - 1):
        shelf.put(SIZES, hoistd, passed=True)
        assert shelf.take(SIZES) is hoistd
    shelf.put(SIZES, hoistd, passed=True)
    assert hoistd.process.poll() == 0
    hoistd = shelf.take(SIZES)
    shelf.put(SIZES, hoistd, passed=False)
    assert hoistd.process.poll() == 0


def test_a_module_that_is_still_attached_is_the_failure_of_its_test(
        request, hoistd):
    torch = pytest.importorskip("torch")
    module = hoist.attach(torch.nn.Linear(2, 2))
    assert conftest.still_attached() == ["Linear"]
    outcome = pluggy.Result.from_call(lambda: None)
    with pytest.raises(StopIteration):
        teardown = conftest.pytest_runtest_teardown(request.node)
        next(teardown)
        teardown.send(outcome)
    with pytest.raises(pytest.fail.Exception, match="still attached: Linear"):
        outcome.get_result()
    hoist.detach(module)
    assert not conftest.still_attached()


def test_an_error_holds_no_module_once_it_is_reported(hoistd):
    torch = pytest.importorskip("torch")

    def attach_and_fail():
        module = hoist.attach(torch.nn.Linear(2, 2))
        try:
            raise ValueError(module.in_features)
        finally:
            raise KeyError("another")

    with pytest.raises(KeyError) as failed:
        attach_and_fail()
    assert "in_features" in str(failed.getrepr(showlocals=True))
    gc.collect()
    assert len(conftest._attached()) == 1
    conftest._clear_frames(failed.value)
    gc.collect()
    assert not conftest._attached()
