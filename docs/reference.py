#!/usr/bin/env python3
"""Renders the reference: what is public of hoist, out of its own comments.

reference.py MAN HOISTCTL OUT VERSION

MAN: where the manual pages are (they are made with the programs). HOISTCTL: the
program, which has the schemas of what it prints. OUT: gets html/index.html; html/cpp is
Doxygen's. Ends with 1 if anything public is not described, or a reference leads
nowhere; all complaints are on stderr.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = pathlib.Path(os.environ.get("HOIST_ROOT", HERE.parent))  # Of what.
PAGES = ("hoistctl.1", "hoistd.8", "hoist-keeper.8", "hoistd.toml.5")
# What a field of a struct is, its name says as a rule.
MAY_BE_SILENT = re.compile(r"Member \w+ \(variable\) of .* is not documented")


def render_headers(out, version):
    """Doxygen's pages; returns its complaints."""
    config, log = out / "Doxyfile", out / "doxygen.log"
    (out / "html").mkdir(parents=True)
    values = {"ROOT": ROOT, "OUT": out, "VERSION": version,
              "PYTHON": sys.executable}
    config.write_text(re.sub(r"@(\w+)@", lambda name: str(values[name[1]]),
                             (HERE / "Doxyfile.in").read_text()))
    subprocess.run(["doxygen", str(config)], check=True)
    return [line for line in log.read_text().splitlines()
            if not MAY_BE_SILENT.search(line)]


def page_of_manual(page):
    """A manual page, within a page of Sphinx's."""
    body = subprocess.run(
        ["mandoc", "-T", "html", "-O", "fragment,man=%N.%S.html", str(page)],
        check=True, capture_output=True, text=True).stdout
    name, _, section = page.name.rpartition(".")
    title = f"{name}({section})"
    lines = [title, "=" * len(title), "", ".. raw:: html", ""]
    return "\n".join(lines + ["   " + line for line in body.splitlines()]) + "\n"


def page_of_schemas(hoistctl):
    """What `hoistctl --json` prints, as JSON Schemas."""
    def ask(*words):
        return subprocess.run([hoistctl, *words], check=True, text=True,
                              capture_output=True).stdout

    title = "hoistctl --json"
    lines = [title, "=" * len(title), "",
             "What ``hoistctl schema COMMAND`` prints.", ""]
    for name in ask("__complete", "schema", "").split():
        lines += [name, "-" * len(name), "", ".. code-block:: json", ""]
        lines += ["   " + line for line in ask("schema", name).splitlines()]
        lines.append("")
    return "\n".join(lines)


def gather(out, manual, hoistctl):
    """What Sphinx reads."""
    source = out / "source"
    source.mkdir()
    for page in [*HERE.glob("*.rst"), HERE / "conf.py"]:
        shutil.copy(page, source)
    for name in PAGES:
        (source / f"{name}.rst").write_text(page_of_manual(manual / name))
    (source / "hoistctl-json.rst").write_text(page_of_schemas(hoistctl))
    described = out / "hoist_v1.pb"
    subprocess.run(
        ["protoc", f"-I{ROOT / 'proto'}", "--include_imports",
         "--include_source_info", f"--descriptor_set_out={described}",
         "hoist/v1/worker.proto", "hoist/v1/admin.proto",
         "hoist/v1/trace.proto"], check=True)
    (source / "grpc.rst").write_text(subprocess.run(
        [sys.executable, "-B", str(HERE / "proto_pages.py"), str(described)],
        check=True, capture_output=True, text=True).stdout)
    return source


def main(manual, hoistctl, out, version):
    out = pathlib.Path(out).resolve()
    shutil.rmtree(out, ignore_errors=True)
    complaints = render_headers(out, version)
    source = gather(out, pathlib.Path(manual), hoistctl)
    done = subprocess.run(
        [sys.executable, "-B", "-m", "sphinx", "-q", "-E", "-W", "--keep-going",
         "-b", "html", "-d", str(out / "doctrees"), str(source),
         str(out / "html")],
        env={**os.environ, "HOIST_ROOT": str(ROOT), "HOIST_VERSION": version,
             "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"}, check=False)
    if complaints:
        print(*complaints, sep="\n", file=sys.stderr)
    if complaints or done.returncode:
        sys.exit(1)
    print(f"reference: {out / 'html' / 'index.html'}")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
