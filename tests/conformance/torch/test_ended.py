"""`hoistctl end` of a module's session: what it has stays its own until it lets
go, and its next call attaches it again, bit for bit."""

from __future__ import annotations

import json
import pathlib
import subprocess
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

import hoist  # noqa: E402
from equal import same_bytes  # noqa: E402
from models import WIDTH, Stack, numbers  # noqa: E402
from real_daemon import RealDaemon, until  # noqa: E402

pytestmark = pytest.mark.real_time


def the_session(daemon: RealDaemon) -> dict[str, Any]:
    (one,) = json.loads(daemon.ctl("--json", "sessions"))["sessions"]
    return one


class Ending:
    """`hoistctl end`, which waits until the session has let go."""

    def __init__(self, daemon: RealDaemon) -> None:
        self.said = ""
        number = the_session(daemon)["id"]
        self.number = number

        def end() -> None:
            self.said = daemon.ctl("end", number, "--deadline", "120")

        self.thread = threading.Thread(target=end)
        self.thread.start()

    def over(self) -> str:
        self.thread.join()
        return self.said


def until_told(session: hoist.Session) -> None:
    """hoistd's word has come."""
    def told() -> str:
        try:
            session.check()
        except hoist.Unavailable as error:
            return str(error)
        return ""
    assert "has ended this session" in until(told)


def wide(daemon: RealDaemon, name: str) -> None:
    """Somebody else fills what is free of the device with other bytes."""
    with hoist.connect(daemon.socket, name="other") as other:
        size = 1 << 20
        for i in range(8):
            other.publish(name, f"g{i}", {"w": torch.full(
                (size,), 7, dtype=torch.uint8).numpy()}, deadline=30)
        model = other.model(name)
        for i in range(8):
            other.stage(model[f"g{i}"], deadline=30).release()


@torch.no_grad()
@pytest.mark.parametrize("budget", [0.5, None], ids=["streams", "resident"])
def test_a_module_goes_on(make_hoistd, device, tmp_path: pathlib.Path, budget):
    torch.manual_seed(0)
    model = Stack().eval()
    values = {key: value.detach().clone()
              for key, value in model.state_dict().items()}
    path = tmp_path / "model.safetensors"
    safetensors.save_model(model, str(path))
    x = numbers(2, 5, WIDTH).to(device)
    expected = model.to(device)(x)
    daemon = make_hoistd()
    session = hoist.connect(daemon.socket, name="worker")
    model = hoist.load(lambda: Stack().eval(), path, budget, session=session)
    assert torch.allclose(model(x), expected)
    first = model(x)
    before = the_session(daemon)
    ending = Ending(daemon)
    until_told(session)
    # Its memory is given to nobody meanwhile, and its session is there yet.
    wide(daemon, "other")
    sessions = json.loads(daemon.ctl("--json", "sessions"))["sessions"]
    assert before["id"] in [one["id"] for one in sessions]
    try:
        after = model(x)
    except hoist.Unavailable:  # Told once, where a GPU may have computed.
        after = model(x)
    assert same_bytes(after, first)
    if budget is None:
        # What is on the device as a whole needs no hoistd, and lets go of
        # nothing.
        hoist.detach(model)
    assert "ended session" in ending.over()
    if budget is not None:
        assert the_session(daemon)["id"] != before["id"]
        hoist.detach(model)
    for key, value in model.state_dict().items():
        assert same_bytes(value.cpu(), values[key]), key


def test_a_late_end_says_so(make_hoistd, tmp_path: pathlib.Path):
    daemon = make_hoistd()
    model = Stack().eval()
    path = tmp_path / "model.safetensors"
    safetensors.save_model(model, str(path))
    session = hoist.connect(daemon.socket, name="worker")
    model = hoist.load(lambda: Stack().eval(), path, None, session=session)
    number = the_session(daemon)["id"]
    with pytest.raises(subprocess.CalledProcessError) as late:
        daemon.ctl("end", number, "--deadline", "0.2")
    assert "has not let go" in late.value.stderr
    hoist.detach(model)
