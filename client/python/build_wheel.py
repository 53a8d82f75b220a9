#!/usr/bin/env python3
"""Makes the wheel: the package with libhoist in it, for any Python 3.10+.

build_wheel.py LIBHOIST OUT_FOLDER

It is also the package's PEP 517 backend, which takes libhoist from
$HOIST_LIBRARY or the nearest build (see hoist/_library.py). No build tool is
needed: a wheel is a zip file.
"""

import base64
import hashlib
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
VERSION = re.search(r'^version = "(.*)"$', (HERE / "pyproject.toml").read_text(),
                    re.M).group(1)
LIBRARY_NAME = "libhoist.so.0"
EPOCH = (1980, 1, 1, 0, 0, 0)  # The same input gives the same wheel.


def tag(library: str) -> str:
    """What the library asks of glibc, as pip names it."""
    symbols = subprocess.run(["objdump", "-T", library], check=True, text=True,
                             stdout=subprocess.PIPE).stdout
    minor = max(int(m) for m in re.findall(r"GLIBC_2\.(\d+)", symbols))
    return f"py3-none-manylinux_2_{max(minor, 17)}_{platform.machine()}"


def stripped(library: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, LIBRARY_NAME)
        subprocess.run(["strip", "--strip-unneeded", "-o", out, library],
                       check=True)
        return pathlib.Path(out).read_bytes()


def metadata() -> str:
    return (f"Metadata-Version: 2.1\nName: hoist\nVersion: {VERSION}\n"
            "Summary: Weights that live in hoistd, staged before they are "
            "used\nLicense: Apache-2.0\nRequires-Python: >=3.10\n"
            "Provides-Extra: numpy\nRequires-Dist: numpy>=1.24; extra == "
            "'numpy'\nProvides-Extra: torch\nRequires-Dist: torch>=2.4; "
            "extra == 'torch'\nDescription-Content-Type: text/markdown\n\n"
            + (HERE / "README.md").read_text())


def build(library: str, folder: str) -> str:
    """Returns the wheel's file name."""
    tags = tag(library)
    info = f"hoist-{VERSION}.dist-info"
    files = {str(path.relative_to(HERE)): path.read_bytes()
             for path in sorted((HERE / "hoist").rglob("*"))
             if path.suffix == ".py" or path.name == "py.typed"}
    files[f"hoist/{LIBRARY_NAME}"] = stripped(library)
    files[f"{info}/METADATA"] = metadata().encode()
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
    wheel = f"hoist-{VERSION}-{tags}.whl"
    os.makedirs(folder, exist_ok=True)
    with zipfile.ZipFile(os.path.join(folder, wheel), "w",
                         zipfile.ZIP_DEFLATED) as out:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            out.writestr(entry, data)
    return wheel


# PEP 517.
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    sys.path.insert(0, str(HERE))
    from hoist import library_path
    return build(library_path(), wheel_directory)


def get_requires_for_build_wheel(config_settings=None):
    return []


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(os.path.join(sys.argv[2], build(sys.argv[1], sys.argv[2])))
