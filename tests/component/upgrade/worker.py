"""A worker that holds a lease and streams, and says how it fares.

worker.py SOCKET MODEL BUDGET GROUPS: reads commands, a line each, and answers
each with a line of JSON. HOIST_LIBRARY and PYTHONPATH say of which build it is.
"""

import json
import sys
import threading

import hoist
import numpy as np

SOCKET, MODEL, BUDGET, GROUPS = (sys.argv[1], sys.argv[2], int(sys.argv[3]),
                                 int(sys.argv[4]))


def bytes_of(group):
    return np.random.default_rng(group).integers(
        0, 256, (1 << 20) + 4096 * group, dtype=np.uint8)


WANTED = [bytes_of(group) for group in range(GROUPS)]


def told(error):
    return {"type": type(error).__name__, "text": str(error)}


class Streaming:
    """A plan, pass after pass, until it ends or is told to."""

    def __init__(self, session, model):
        self.session, self.model = session, model
        self.plan = session.set_plan(model, budget=BUDGET, order=list(model))
        self.addresses = {}
        self.passes = 0
        self.error = None
        self.over = False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            while not self.over:
                for group in range(GROUPS):
                    self.use(group)
                self.passes += 1
        except Exception as error:  # Whatever it is, the test hears it.
            self.error = told(error)

    def use(self, group):
        with self.plan.use(self.model[f"layers.{group}"]) as tensors:
            array = tensors[f"layers.{group}.w"].numpy()
            address = self.addresses.setdefault(group, array.ctypes.data)
            wrong = address != array.ctypes.data
            same = np.array_equal(array, WANTED[group])
            # What is void is told when the block ends, not by its bytes.
            del array
        if wrong or not same:
            raise AssertionError(f"group {group}: other bytes or address")

    def stop(self):
        self.over = True
        self.thread.join()


class Worker:
    def __init__(self):
        self.old = []  # What was mapped stays so.
        self.connect()

    def connect(self):
        """All of it, over a new session."""
        self.session = hoist.connect(SOCKET, connect_deadline=60)
        self.model = self.session.register(MODEL, "files")
        self.lease = self.session.stage(self.model["layers.0"])
        self.held = self.lease["layers.0.w"].numpy()
        self.address = self.held.ctypes.data
        self.plan()
        return {}

    def plan(self):
        """A plan, in the place of one that has ended."""
        self.streaming = Streaming(self.session, self.model)
        return {}

    def again(self):
        """As a worker does whose session has ended."""
        self.streaming.stop()
        self.old.append((self.session, self.lease, self.held, self.streaming))
        return self.connect()

    def plan_again(self):
        self.streaming.stop()
        self.streaming.plan.close()
        return self.plan()

    def passes(self):
        return {"passes": self.streaming.passes,
                "error": self.streaming.error}

    def check_lease(self):
        """The session, the lease and what it leases are as they were."""
        self.lease.check()
        now = self.lease["layers.0.w"].numpy()
        return {"same": bool(now.ctypes.data == self.address and
                             np.array_equal(now, WANTED[0]))}

    def check_held(self):
        """What was ever leased, by whatever session, has its bytes."""
        arrays = [self.held] + [held for _, _, held, _ in self.old]
        return {"same": all(np.array_equal(array, WANTED[0])
                            for array in arrays)}

    def stage_others(self):
        """Groups come and go beside."""
        for group in range(1, GROUPS):
            with self.session.stage(self.model[f"layers.{group}"]) as lease:
                if not np.array_equal(lease[f"layers.{group}.w"].numpy(),
                                      WANTED[group]):
                    return {"same": False}
        return {"same": True}

    def close(self):
        self.streaming.stop()
        if self.streaming.error is None:
            self.streaming.plan.close()
            self.lease.release()
        self.session.close()
        return {}


def main():
    def answer(call):
        try:
            found = call()
        except Exception as error:
            found = {"failed": told(error)}
        print(json.dumps(found), flush=True)

    worker = Worker.__new__(Worker)
    answer(lambda: worker.__init__() or {})
    for line in sys.stdin:
        answer(getattr(worker, line.strip()))
        if line.strip() == "close":
            return


if __name__ == "__main__":
    main()
