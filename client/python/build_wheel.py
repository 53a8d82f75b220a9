#!/usr/bin/env python3
"""Makes the wheel: the package with libhoist in it, for any Python 3.10+. If the
extension hoist._fast is beside libhoist, it comes along.

build_wheel.py LIBHOIST OUT_FOLDER

It is also what `pip install` calls (PEP 517), on a checkout's client/python or
an unpacked package's python. It takes libhoist from where the package finds it
(hoist/_library.py). No build tool and no network is needed: a wheel is a zip
file.
"""

import base64
import ctypes
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
PROJECT = (HERE / "pyproject.toml").read_text()
LIBRARY_NAME = "libhoist.so.0"
FAST_NAME = "_fast.abi3.so"
EPOCH = (1980, 1, 1, 0, 0, 0)  # The same input gives the same wheel.


def said(name: str) -> str:
    """A text in pyproject.toml. Python 3.10 has no parser of it."""
    return re.search(rf'^{name} = "(.*)"$', PROJECT, re.M).group(1)


NAME = said("name")


def version_of(library: str) -> str:
    """What it says itself: CMakeLists.txt told it, and nothing else is told."""
    try:
        ask = ctypes.CDLL(os.path.abspath(library)).hoist_version
    except OSError as error:
        sys.exit(f"{NAME} has its version from {library}, which does not load "
                 f"here: {error}")
    ask.restype = ctypes.c_char_p
    return ask().decode()


def tag(carried: bytes) -> str:
    """What the libraries ask of glibc, as pip names it."""
    minor = max(map(int, re.findall(rb"\0GLIBC_2\.(\d+)(?=[.\0])", carried)))
    return f"py3-none-manylinux_2_{max(minor, 17)}_{platform.machine()}"


def stripped(library: str) -> bytes:
    """Its bytes; as they are, where nobody can strip."""
    if shutil.which("strip") is None:
        return pathlib.Path(library).read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, LIBRARY_NAME)
        subprocess.run(["strip", "--strip-unneeded", "-o", out, library],
                       check=True)
        return pathlib.Path(out).read_bytes()


def metadata(version: str) -> str:
    extras = re.search(r"^\[project\.optional-dependencies\]\n((?:.+\n)+)",
                       PROJECT, re.M).group(1)
    lines = ["Metadata-Version: 2.1", f"Name: {NAME}", f"Version: {version}",
             f"Summary: {said('description')}", "License: Apache-2.0",
             f"Requires-Python: {said('requires-python')}"]
    for extra, needs in re.findall(r'^(\w+) = \["(.*)"\]$', extras, re.M):
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {need}; extra == '{extra}'"
                  for need in needs.split('", "')]
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "",
                      (HERE / "README.md").read_text()])


def entry_points() -> str:
    """As importlib.metadata reads them."""
    groups = re.findall(
        r'^\[project\.entry-points\."([\w.]+)"\]\n((?:\w+ = ".*"\n)+)',
        PROJECT, re.M)
    return "\n".join(f"[{group}]\n" + said_of.replace('"', "")
                     for group, said_of in groups)


def build(library: str, folder: str) -> str:
    """Returns the wheel's file name."""
    carried = {LIBRARY_NAME: stripped(library)}
    fast = os.path.join(os.path.dirname(library), FAST_NAME)
    if os.path.exists(fast):
        carried[FAST_NAME] = stripped(fast)
    tags = tag(b"".join(carried.values()))
    version = version_of(library)
    stem = f"{NAME.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    files = {str(path.relative_to(HERE)): path.read_bytes()
             for path in sorted((HERE / "hoist").rglob("*"))
             if path.suffix == ".py" or path.name == "py.typed"}
    for name, data in carried.items():
        files[f"hoist/{name}"] = data
    files[f"{info}/METADATA"] = metadata(version).encode()
    files[f"{info}/entry_points.txt"] = entry_points().encode()
    files[f"{info}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: hoist\nRoot-Is-Purelib: false\n"
        f"Tag: {tags}\n").encode()
    record = f"{info}/RECORD"
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
        lines.append(f"{name},sha256={digest.rstrip(b'=').decode()},"
                     f"{len(data)}")
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    wheel = f"{stem}-{tags}.whl"
    os.makedirs(folder, exist_ok=True)
    with zipfile.ZipFile(os.path.join(folder, wheel), "w",
                         zipfile.ZIP_DEFLATED) as out:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            out.writestr(entry, data)
    return wheel


def find_library() -> str:
    """Ends the process with one sentence where there is none."""
    # pip runs this in the package's folder; the caller's is another.
    for name in ("HOIST_LIBRARY", "HOIST_BUILD_DIR"):
        if os.environ.get(name):
            os.environ[name] = os.path.join(os.environ.get("PWD", ""),
                                            os.environ[name])
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(HERE))
    from hoist._library import how_to_build, library_path
    found = library_path()
    if not os.path.isfile(found):
        sys.exit(f"{NAME} carries libhoist, and there is no {found} yet: "
                 + how_to_build())
    return found


# PEP 517.
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return build(find_library(), wheel_directory)


def get_requires_for_build_wheel(config_settings=None):
    return []


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(os.path.join(sys.argv[2], build(sys.argv[1], sys.argv[2])))
