#!/usr/bin/env python3
"""Python packages that travel to a machine that has no network.

carried_python.py pack OUT.tar.xz    packs what the tests need beside torch,
                                     each distribution in a folder of its own:
                                     without tests, and without extensions
carried_python.py use FOLDER [NAME]...
                                     unpacked there: prints the folders, joined
                                     by ':', of those (all, or these and their
                                     needs) that this machine lacks

What a machine has is used as it is, unless a package that it lacks needs
another version of it.
"""

from __future__ import annotations

import importlib.metadata
import io
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

WANTED = ("pytest", "pytest-xdist", "diffusers", "torchao", "peft", "gguf",
          "bitsandbytes")
# And what they need that such a machine may lack.
NEEDED = ("execnet", "iniconfig", "pluggy", "packaging", "pygments",
          "importlib-metadata", "zipp", "lazy-importer")
LEFT_OUT = re.compile(r"(^|/)(tests?|docs|__pycache__|csrc)/|"
                      r"\.(pyc|so|cu|cuh)$")
PURE = re.compile(r"-(py2\.)?py3-none-any\.whl$")
# What is not pure Python, and the libraries of it that travel: of torchao none,
# which does without; bitsandbytes' know neither Python nor torch, and there is
# one for each CUDA.
IMPURE = {"torchao": re.compile(r"$^"),
          "bitsandbytes": re.compile(r"libbitsandbytes_(cpu|cuda130)\.so$")}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def wheel_of(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Downloads the version that is installed here."""
    version = importlib.metadata.version(name).split("+")[0]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-qq", "--no-deps",
         "--only-binary=:all:", "-d", str(folder), f"{name}=={version}"],
        check=True)
    found = [path for path in folder.glob("*.whl")
             if canonical(path.name.split("-")[0]) == name]
    return found[0]


def pack(out: pathlib.Path) -> None:
    total = 0
    with tempfile.TemporaryDirectory() as folder, \
            tarfile.open(out, "w:xz") as packed:
        for name in (*WANTED, *NEEDED):
            wheel = wheel_of(name, pathlib.Path(folder))
            taken = IMPURE.get(name)
            if taken is None and not PURE.search(wheel.name):
                sys.exit(f"{wheel.name} is not pure Python")
            size = 0
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.infolist():
                    path = member.filename
                    if member.is_dir() or (LEFT_OUT.search(path) and not (
                            taken and taken.search(path))):
                        continue
                    entry = tarfile.TarInfo(f"{name}/{path}")
                    entry.size, entry.mode = member.file_size, 0o644
                    packed.addfile(entry, io.BytesIO(archive.read(member)))
                    size += member.file_size
            total += size
            print(f"{wheel.name}: {size >> 10} KiB")
    print(f"{out}: {out.stat().st_size >> 10} KiB, {total >> 10} unpacked")


def use(folder: pathlib.Path, wanted: list[str]) -> list[str]:
    """The folders to take: what is missing, and what that needs."""
    carried = {path.name: path for path in folder.iterdir() if path.is_dir()}
    try:
        from packaging.requirements import Requirement
    except ImportError:
        sys.path.insert(0, str(carried["packaging"]))
        from packaging.requirements import Requirement

    def installed(name: str) -> str | None:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    taken: dict[str, None] = {}
    asked = [Requirement(name) for name in wanted or WANTED]
    while asked:
        one = asked.pop(0)
        name = canonical(one.name)
        if name in taken or (one.marker and not one.marker.evaluate(
                {"extra": ""})):
            continue
        version = installed(name)
        if version and one.specifier.contains(version, prereleases=True):
            continue
        if name not in carried:
            print(f"carried_python: {one} is neither here ({version}) nor "
                  "carried", file=sys.stderr)
            continue
        taken[name] = None
        (about,) = carried[name].glob("*.dist-info/METADATA")
        found = importlib.metadata.PathDistribution(about.parent)
        asked += [Requirement(text) for text in found.requires or ()]
    return [str(carried[name]) for name in taken]


def main() -> int:
    if len(sys.argv) == 3 and sys.argv[1] == "pack":
        pack(pathlib.Path(sys.argv[2]))
    elif len(sys.argv) >= 3 and sys.argv[1] == "use":
        print(":".join(use(pathlib.Path(sys.argv[2]), sys.argv[3:])))
    elif sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
    else:
        print("carried_python.py: wants pack or use; see --help",
              file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
