"""Nodes with a link of their own: what passes over which."""

from __future__ import annotations

import subprocess
import sys
from typing import Iterator

import hoist
import numpy as np
import pytest
from apart import MIB, Apart, why_not

GROUPS = 24
LOAD = f"""
import sys
import numpy as np
import ray
import hoist.ray

ray.init(address=sys.argv[1], log_to_driver=False)
here = ray.get_runtime_context().get_node_id()
others = [node["NodeID"] for node in ray.nodes() if node["NodeID"] != here]
random = np.random.default_rng(5)
groups = [(f"g{{at}}", {{"w": random.integers(0, 255, {MIB}, np.uint8)}})
          for at in range({GROUPS})]
hoist.ray.load(groups, "m", nodes=[here, *others])
"""


@pytest.fixture
def four() -> Iterator[Apart]:
    why = why_not()
    if why is not None:
        pytest.skip(why)
    cluster = Apart(4, 800, 80 * MIB, pool=16 * MIB, host=96 * MIB)
    yield cluster
    cluster.stop()


def test_each_link_carries_each_byte_once(four):
    """From the node that reads to the next, and so on; the last sends none."""
    before = [four.sent_bytes(at) for at in range(4)]
    done = subprocess.run(four.inside(0, sys.executable, "-c", LOAD, four.head),
                          text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    sent = sorted(four.sent_bytes(at) - then
                  for at, then in enumerate(before))
    model = GROUPS * MIB
    # Ray's own messages, and of network packets their heads, come on top.
    assert sent[0] < 0.3 * model
    assert all(model < one < 1.3 * model for one in sent[1:])
    random = np.random.default_rng(5)
    for at in range(GROUPS):
        want = random.integers(0, 255, MIB, np.uint8).tobytes()
        for hoistd in four.hoistds:
            with hoist.connect(hoistd.socket) as session, session.stage(
                    session.model("m")[f"g{at}"]) as lease:
                assert lease["w"].numpy().tobytes() == want
