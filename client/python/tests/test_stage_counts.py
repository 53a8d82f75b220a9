"""How often groups were staged in a pass."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hoist._stage_counts import StageCounts  # noqa: E402


class NotStaged(Exception):
    pass


def refuse(staged):
    if not all(staged):
        raise NotStaged([at for at, one in enumerate(staged) if not one])


@pytest.fixture
def counts():
    return StageCounts(3, torch.device("cpu"), refuse)


def run(counts, *groups):
    begin = counts.begin_pass()
    for group in groups:
        counts.note(group)
    counts.end_pass(begin)


def test_a_pass_that_stages_all_is_right_in_any_order_and_number(counts):
    run(counts, 0, 1, 2)
    run(counts, 2, 0, 0, 1, 2)


def test_what_an_earlier_pass_has_staged_does_not_count_for_this_one(counts):
    run(counts, 0, 1, 2)
    with pytest.raises(NotStaged, match=r"\[1\]"):
        run(counts, 2, 0)
    with pytest.raises(NotStaged, match=r"\[0, 1, 2\]"):
        run(counts)
    run(counts, 0, 1, 2)


# Of CUDA graphs.


class Pass:
    """Stages its groups from a graph, or from one that was made without."""

    def __init__(self, counts, *groups):
        self.counts = counts
        self.graph = torch.cuda.CUDAGraph()
        self.x = torch.zeros(4, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            for group in groups:
                counts.note(group)
            self.x += 1

    def __call__(self, *beside):
        begin = self.counts.begin_pass()
        for group in beside:
            self.counts.note(group)
        self.graph.replay()
        self.counts.end_pass(begin)


@pytest.fixture
def on_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU: CUDA graphs are replayed there")
    return StageCounts(3, torch.device("cuda"), refuse)


def test_replays_of_a_graph_that_stages_count_without_the_host(on_gpu):
    replay = Pass(on_gpu, 0, 1, 2)
    for _ in range(5):
        replay()
    on_gpu.check()


def test_a_graph_may_stage_some_and_the_host_the_rest(on_gpu):
    replay = Pass(on_gpu, 0, 2)
    replay(1)
    on_gpu.check()


def test_a_replay_of_a_graph_that_stages_nothing_is_told(on_gpu):
    right, stale = Pass(on_gpu, 0, 1, 2), Pass(on_gpu)
    right()
    on_gpu.check()
    with pytest.raises(NotStaged, match=r"\[0, 1, 2\]"):
        stale()
        right()
        on_gpu.check()


def test_no_graph_at_all_is_told_at_once(on_gpu):
    stale = Pass(on_gpu)
    with pytest.raises(NotStaged):
        stale()


def test_a_pass_that_is_captured_counts_as_the_host_runs_it(on_gpu):
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        run(on_gpu, 0, 1, 2)
    with pytest.raises(NotStaged), torch.cuda.graph(torch.cuda.CUDAGraph()):
        run(on_gpu, 0)
