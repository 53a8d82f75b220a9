"""client/examples/libtorch and hoist's own check of hoist/torch.h, built as a
user builds them: against the installed package and a Python's LibTorch.

libtorch_test.py --hoistd FILE (--build DIR | --prefix DIR) --work DIR
                 [--cxx COMPILER] [--sanitize KIND] [unittest's arguments]

--build is a build folder to install from, --prefix an installed package.
HOIST_TORCH_PYTHON is the Python whose torch is taken, by default the one that
runs this; skipped if it has none. HOIST_TEST_BACKEND=cuda: on a GPU.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from real_daemon import MIB, RealDaemon, beside  # noqa: E402

HERE = pathlib.Path(__file__).parent
BACKEND = os.environ.get("HOIST_TEST_BACKEND", "emulated")
PYTHON = os.environ.get("HOIST_TORCH_PYTHON") or sys.executable
FIND = ("import importlib.util as u; s = u.find_spec('torch'); "
        "print(s.submodule_search_locations[0] if s else '')")
# Two layers, by AOTInductor, for a device; for compiled.cc.
PACKAGE = """
import sys, torch
path, device = sys.argv[1:]
pair = torch.nn.Sequential()
pair.add_module("a", torch.nn.Linear(64, 64))
pair.add_module("relu", torch.nn.ReLU())
pair.add_module("b", torch.nn.Linear(64, 64))
with torch.no_grad():
    torch._inductor.aoti_compile_and_package(
        torch.export.export(pair.eval().to(device),
                            (torch.rand(4, 64, device=device),)),
        package_path=path)
"""
# The module of shared.cc, attached until the input ends.
SHARED = """
import sys, torch, hoist
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.arange(2100) / 2100)
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(
            torch.nn.Linear(2100, 2100), torch.nn.Linear(2100, 2100))
            for _ in range(3))
        with torch.no_grad():
            for i, block in enumerate(self.blocks):
                for j, one in enumerate(block):
                    one.weight.fill_(2 * i + j)
                    one.bias.copy_(torch.arange(2100) - i)
    def forward(self, x):
        for one in self.blocks:
            x = one(x) * self.scale
        return x
net = hoist.attach(Net(), budget="64MiB")
print("attached", flush=True)
sys.stdin.read()
"""
ARGS = argparse.Namespace()


def torch_prefix() -> str:
    found = subprocess.run([PYTHON, "-c", FIND], capture_output=True,
                           text=True, check=False)
    return found.stdout.strip()


class LibTorch(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        if ARGS.sanitize:
            raise unittest.SkipTest("LibTorch is not built with sanitizers")
        prefix = torch_prefix()
        if not prefix:
            raise unittest.SkipTest(f"{PYTHON} has no torch; see "
                                    "HOIST_TORCH_PYTHON")
        installed = ARGS.prefix
        if installed is None:
            installed = ARGS.work / "prefix"
            shutil.rmtree(installed, ignore_errors=True)
            for component in ("client", "dev"):
                cls.command("cmake", "--install", ARGS.build, "--component",
                            component, "--prefix", installed)
        cls.bin = ARGS.work / "build"
        try:
            cls.configure(installed, prefix, direct="OFF")
        except AssertionError:
            if BACKEND != "cuda":
                raise
            # LibTorch's CMake files want CUDA's whole toolkit.
            cls.configure(installed, prefix, direct="ON")
        # Each takes some GB of memory.
        cls.command("cmake", "--build", cls.bin, "--parallel", ARGS.parallel)

    @classmethod
    def configure(cls, installed: pathlib.Path, torch: str, direct: str) -> None:
        cls.command("cmake", "-S", ROOT / "client/examples/libtorch", "-B",
                    cls.bin, *(["-G", "Ninja"] if shutil.which("ninja") else []),
                    f"-DCMAKE_CXX_COMPILER={ARGS.cxx}",
                    "-DCMAKE_BUILD_TYPE=Release",
                    "-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DCMAKE_CXX_FLAGS=-Werror",
                    f"-DCMAKE_PREFIX_PATH={installed}",
                    f"-DHOIST_TORCH_PREFIX={torch}",
                    f"-DHOIST_TORCH_DIRECT={direct}", "-DHOIST_TORCH_CHECK=" +
                    ";".join(map(str, sorted(HERE.glob("*.cc")))))

    @staticmethod
    def command(*words: object) -> str:
        done = subprocess.run([str(word) for word in words], text=True,
                              stdout=subprocess.PIPE, check=False,
                              stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise AssertionError(f"{words}: {done.returncode}\n{done.stdout}")
        return done.stdout

    def daemon(self, pool: int, keeper: pathlib.Path | None = None,
               host: int = 256 * MIB) -> RealDaemon:
        daemon = RealDaemon(ARGS.hoistd, pool=pool, host=host, keeper=keeper,
                            backend=BACKEND)
        self.addCleanup(daemon.stop)
        daemon.until_served()
        return daemon

    def passes(self, program: str, pool: int = 64 * MIB,
               host: int = 256 * MIB, keeper: pathlib.Path | None = None,
               gpu_only: int = 0, cpu_only: int = 0) -> None:
        daemon = self.daemon(pool, keeper, host)
        said = self.command(self.bin / program, daemon.socket, ARGS.work,
                            daemon.process.pid, ARGS.hoistd,
                            beside(ARGS.hoistd, "hoistctl"),
                            daemon.path / "hoistd.toml")
        print(said)
        skipped = cpu_only if BACKEND == "cuda" else gpu_only
        self.assertRegex(said, re.compile(
            rf"^[1-9]\d* passed, 0 failed, {skipped} skipped$", re.MULTILINE))

    def test_check(self) -> None:
        self.passes("check", gpu_only=1)

    def test_what_somebody_keeps(self) -> None:
        self.passes("views", cpu_only=1)

    def test_a_budget_pays_for_a_part_of_each_large_block(self) -> None:
        self.passes("parts", pool=96 * MIB, host=384 * MIB)

    def test_attaches_that_fail(self) -> None:
        self.passes("undone", gpu_only=1)

    def test_what_is_read_in_place(self) -> None:
        self.passes("in_place")

    def test_what_libtorch_compiled(self) -> None:
        self.command(PYTHON, "-c", PACKAGE, ARGS.work / "pair.pt2",
                     "cuda" if BACKEND == "cuda" else "cpu")
        self.passes("compiled")

    def test_it_goes_on_after_hoistds_death(self) -> None:
        self.passes("death")

    def test_a_plan_that_the_next_hoistd_does_not_take_over(self) -> None:
        self.passes("kept", keeper=beside(ARGS.hoistd, "hoist-keeper"))

    def test_between_two_attached(self) -> None:
        self.passes("again")

    def test_a_pytorch_worker_has_the_same_model(self) -> None:
        daemon = self.daemon(pool=192 * MIB)
        python_path = filter(None, (str(ROOT / "client/python"),
                                    os.environ.get("PYTHONPATH")))
        environment = {**os.environ, "HOIST_SOCKET": str(daemon.socket),
                       "PYTHONPATH": os.pathsep.join(python_path)}
        if ARGS.build:
            environment["HOIST_BUILD_DIR"] = str(ARGS.build)
        with subprocess.Popen([PYTHON, "-B", "-c", SHARED], env=environment,
                              text=True, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as python:
            assert python.stdout is not None
            self.assertEqual(python.stdout.readline(), "attached\n")
            said = self.command(self.bin / "shared", daemon.socket)
            python.communicate()
        # As Python names it: its class, and the content.
        self.assertRegex(said, "^Net-[0-9a-f]{16}\n$")

    def test_transformer_in_a_device_smaller_than_its_weights(self) -> None:
        daemon = self.daemon(pool=16 * MIB)
        said = self.command(self.bin / "transformer", "--socket",
                            daemon.socket, "--passes", "3")
        self.assertEqual(said.count("equal to resident weights\n"), 3, said)
        self.assertIn("and given back", said)
        streamed = re.search(r"([\d.]+) MiB streamed a pass", said)
        self.assertGreater(float(streamed.group(1)), 10, said)
        bound = re.search(r"^(\d) of 8 blocks stay", said, re.MULTILINE)
        self.assertIn(int(bound.group(1)), range(1, 8), said)
        self.assertNotIn("without any scope", said)

    def test_transformer_that_fits_needs_no_scopes(self) -> None:
        daemon = self.daemon(pool=64 * MIB)
        said = self.command(self.bin / "transformer", "--socket",
                            daemon.socket, "--passes", "2", "--budget", "48")
        self.assertIn("8 of 8 blocks stay", said)
        self.assertIn("a pass without any scope: equal\n", said)
        self.assertIn("and given back", said)

    def test_minilm(self) -> None:
        folder = ROOT / "build/models/minilm"
        if not (folder / "model.safetensors").exists():
            self.skipTest(f"the model is not at {folder}; scripts/setup.sh "
                          "gets it")
        daemon = self.daemon(pool=64 * MIB)
        said = self.command(self.bin / "minilm", folder, "--socket",
                            daemon.socket, "--passes", "2")
        self.assertIn("ok    equal to resident weights", said)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("hoistd", "build", "prefix", "work"):
        parser.add_argument("--" + name, type=pathlib.Path)
    parser.add_argument("--cxx", default="c++")
    parser.add_argument("--sanitize", default="")
    # As many as ctest counts it for.
    parser.add_argument("--parallel", type=int, default=2)
    ARGS, rest = parser.parse_known_args()
    unittest.main(argv=sys.argv[:1] + rest)
