"""When a pass's layers go and come back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hoist.activations._runs import Pass  # noqa: E402


class Device:
    """Which layers' bytes are there; as an Engine is told."""

    def __init__(self) -> None:
        self.there: set[int] = set()
        self.sent: list[int] = []
        self.most = 0

    def saved(self, run) -> None:
        self._add(run.position)

    def send(self, run, expected) -> bool:
        assert run.position in self.there and expected >= 1
        self.sent.append(run.position)
        return True

    def release(self, run) -> None:
        if run.position in self.sent:
            self.there.discard(run.position)

    def fetch(self, run) -> None:
        if run.position in self.sent:
            self._add(run.position)

    def set_aside(self, run) -> None:
        if run.position in self.sent:
            self.there.discard(run.position)

    def _add(self, position) -> None:
        self.there.add(position)
        self.most = max(self.most, len(self.there))


def forward(device, layers, kept):
    made = Pass(device, layers, kept)
    runs = []
    for _ in range(layers):
        run = made.begin()
        device.saved(run)
        made.end(run)
        runs.append(run)
    return made, runs


@pytest.mark.parametrize("layers", [1, 2, 3, 8, 24])
@pytest.mark.parametrize("kept", [0, 1, 2, 3, 7])
def test_no_more_than_the_window_is_there(layers, kept):
    device = Device()
    _, runs = forward(device, layers, kept)
    window = max(2, kept)
    assert device.sent == list(range(max(0, layers - kept)))
    assert device.most == min(layers, window)
    while runs:
        run = runs[-1]
        run.reached()
        # All that a backward ahead of the link may have ordered by now.
        assert device.there >= set(range(max(0, run.position - window + 1),
                                         run.position + 1))
        assert len(device.there) <= window
        runs.pop()
        device.there.discard(run.position)   # Its graph is freed.
    assert device.there == set()


def test_a_second_backward_is_as_the_first():
    device = Device()
    _, runs = forward(device, 10, 3)
    for _ in range(3):
        device.most = 0
        for run in reversed(runs):
            run.reached()
            run.reached()                    # For each of its tensors.
            assert run.position in device.there
        # The kept ones stay, with the graph.
        assert device.most <= 3 + 3 + 1


def test_what_ended_is_let_go_of():
    device = Device()
    made, runs = forward(device, 6, 0)
    assert device.there == {4, 5}
    made.finish()
    assert device.there == set()
    assert made.is_live and not made.has_come_back
    runs[-1].reached()
    assert made.has_come_back
    runs.clear()
    assert not made.is_live


def test_a_pass_of_unknown_length_sends_all():
    device = Device()
    made = Pass(device, None, 2)
    for _ in range(5):
        run = made.begin()
        device.saved(run)
        made.end(run)
    assert device.sent == list(range(5))
