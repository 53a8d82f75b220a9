"""The command line, and the table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
from typing import Any

from .models import SPECS, Spec, bytes_of, in_file, sized
from .parent import Failed, Parent
from .rows import SETS, options_of

ROOT = pathlib.Path(__file__).resolve().parents[3]
ABOUT = """\
The same model and inputs under hoist and its peers, on one device.

Each row is a process of its own (hoist's rows have a hoistd of their own, too),
and all take the same weights from one safetensors file. Rows that cannot be run
say why.

columns:
  pass     median of the steady passes, made one right after the other; of a
           pipeline, steps of its denoiser; of a decoder, a token of 16, their
           prompt included
  first    the first pass
  set-up   from the weights' file to a module that is ready; of N workers, the
           slowest of those after the first
  GPU      the most that the worker's tensors took, and what hoistd allocated
  used     what all processes came to use on the device, contexts but this one's
           included: the check of the column before
  RSS      what the process grew by since torch and its context were there
  pinned   page-locked host memory, of torch's allocator and of hoistd
  link     bytes streamed in a pass by its time, as a part of the link's rate,
           which this run measured
  floor    pass by the larger of the resident model's pass (with -static, that
           one's) and streamed / link
  disk     of rows with cold files: what was read from disks in a pass, before
           which no file is in the page cache
  touched  of a mixture's rows: bytes of experts that a token (a long prompt)
           touched, in device memory (hot) and over the link (cold), the latter
           by the link's rate; and pass by the resident model's and the cold
           bytes at 0.9 of that rate. Each pass has other tokens; rows whose hot
           experts follow them say after how many these were found, from none,
           and are measured once they are
  equal    output = the resident model's, bit for bit, first pass and last
"""


def default_bin() -> str:
    """hoistd's folder: $HOIST_BIN, what was carried, or the newest build."""
    if os.environ.get("HOIST_BIN"):
        return os.environ["HOIST_BIN"]
    if os.environ.get("HOIST_BUILD_DIR"):
        return os.environ["HOIST_BUILD_DIR"]
    carried = ROOT / ".gpu/hoist/bin"
    if (carried / "hoistd").exists():
        return str(carried)
    built = sorted(ROOT.glob("build/*/daemon/hoistd"), key=os.path.getmtime)
    return str(built[-1].parents[1]) if built else ""


def binaries(given: str, folder: pathlib.Path) -> str:
    """A folder with hoistd and hoistctl side by side, of a build's folder
    too."""
    found = pathlib.Path(given)
    if (found / "hoistd").exists():
        return str(found)
    for name, below in (("hoistd", "daemon"), ("hoistctl", "client/ctl")):
        program = found / below / name
        if not program.exists():
            sys.exit(f"no {name} in {given or 'any build'}; --bin names the "
                     "folder that holds it")
        (folder / name).symlink_to(program.resolve())
    return str(folder)


def cuda_here() -> bool:
    return any(pathlib.Path("/dev").glob("nvidia[0-9]*"))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench_peers.py", description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SPECS, default="blocks24",
                        help="blocks24: 24 transformer blocks of 629 MB, 16 "
                        "tokens; dit48: 48 DiT blocks, 15 GB, 4096 tokens; "
                        "llama32: a decoder of 32 layers, 3.1 GB, for the sets "
                        "decode and static; moe8, moe48: a mixture of 128 "
                        "experts in 8 or 48 layers, 10 or 60 GB, for the sets "
                        "moe, moe-static, moe-prefill and moe-full; tiny, "
                        "tinydit, tinyllama, tinymoe: to try this program "
                        "(default: blocks24)")
    parser.add_argument("--scale", type=float, default=1.0,
                        help="times the model's bytes (default: 1)")
    parser.add_argument("--blocks", type=int, help="instead of the model's")
    parser.add_argument("--tokens", type=int, help="instead of the model's")
    parser.add_argument("--routing", choices=("zipf", "uniform"),
                        default="zipf", help="which of a mixture's experts "
                        "tokens have (default: zipf, with exponent 1)")
    parser.add_argument("--experts", default="auto", help="how transformers "
                        "computes experts: grouped_mm, batched_mm, eager "
                        "(default: auto, which is grouped_mm for prompts and, "
                        "on a GPU, batched_mm for single tokens)")
    parser.add_argument("--sets", default="main",
                        help=f"of {', '.join(SETS)}; or all (default: main)")
    parser.add_argument("--rows", help="these rows instead, comma-separated; "
                        "hoist[.load|-in-place][-leaf][-fp8][-static|-prefill]"
                        "[-stagings]@BUDGET, "
                        "hoist-pipeline[-cold]@BUDGET, "
                        "N-workers@BUDGET, resident, two-slot, accelerate, "
                        "lru@0.4, uva, "
                        "diffusers-..., ... BUDGET: min, 0.5, 4GiB")
    parser.add_argument("--bin", default=default_bin(),
                        help="folder of hoistd and hoistctl, or of a build")
    parser.add_argument("--device", choices=("cuda", "cpu"),
                        default="cuda" if cuda_here() else "cpu",
                        help="cpu: hoist's emulated device")
    parser.add_argument("--folder", help="where weights and what is offloaded "
                        "to disk go (default: /dev/shm if it has the room)")
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=6.0,
                        help="that a row's steady passes may take; at least 2 "
                        "are made (default: 6)")
    parser.add_argument("--row-limit", type=float, default=90.0, metavar="S",
                        help="seconds after which a row fails (default: 90)")
    parser.add_argument("--limit", type=float, default=0.0, metavar="S",
                        help="seconds after which no row is begun "
                        "(default: none)")
    parser.add_argument("--stagings", type=int, default=1000,
                        help="of the -stagings rows (default: 1000)")
    parser.add_argument("--json", metavar="FILE", help="- is stdout, in the "
                        "table's place")
    return parser.parse_args(arguments)


def rows_of(options: argparse.Namespace) -> list[str]:
    if options.rows:
        return options.rows.split(",")
    mixture = SPECS[options.model].kind == "moe"
    names = ([name for name in SETS if name.startswith("moe") == mixture]
             if options.sets == "all" else options.sets.split(","))
    unknown = set(names) - set(SETS)
    if unknown:
        raise ValueError(f"no set {', '.join(unknown)}; there are: "
                         f"{', '.join(SETS)}")
    # A row of two sets is run once.
    return list(dict.fromkeys(row for name in names for row in SETS[name]))


def roomy_folder(needed: int) -> pathlib.Path:
    """/dev/shm if it has the room, so that no disk is measured."""
    for root in ("/dev/shm", tempfile.gettempdir()):
        if os.path.isdir(root) and shutil.disk_usage(root).free > needed:
            return pathlib.Path(tempfile.mkdtemp(prefix="hoist-peers-",
                                                 dir=root))
    sys.exit(f"no room for {needed >> 20} MiB in /dev/shm (mount -o "
             "remount,size=... /dev/shm) or the temporary folder; --folder "
             "names another")


def derive(row: dict[str, Any], facts: dict[str, Any],
           resident: float | None) -> None:
    """Adds what follows from the row's figures and the run's."""
    if "pass_seconds" not in row:
        return
    row["device_bytes"] = row["torch_peak_bytes"] + row["hoistd_device_bytes"]
    row["all_pinned_bytes"] = (row["pinned_bytes"] + row["hoistd_pinned_bytes"]
                               + row["says"].get("in_place_bytes", 0))
    row["used_bytes"] = row["device_used_bytes"] - facts["idle_bytes"]
    at_link = row["streamed_bytes"] / facts["link"]
    row["of_link"] = at_link / row["pass_seconds"]
    if resident is not None:
        row["of_floor"] = row["pass_seconds"] / max(resident, at_link)
    derive_touched(row, facts, resident)


def derive_touched(row: dict[str, Any], facts: dict[str, Any],
                   resident: float | None) -> None:
    """What follows from what a unit has touched."""
    if "touched_cold_bytes" not in row:
        return
    placed, hot = (row["says"].get(name, 0)
                   for name in ("in_place_bytes", "hot_bytes"))
    if row["prefill"] and placed:  # Of each expert once, for all tokens.
        row["touched_hot_bytes"] = min(hot, placed)
        row["touched_cold_bytes"] = placed - row["touched_hot_bytes"]
    row["cold_seconds"] = row["touched_cold_bytes"] / facts["link"]
    if resident is not None:
        row["of_touched_floor"] = row["pass_seconds"] / (
            resident + row["cold_seconds"] / 0.9)


def touched(row: dict[str, Any]) -> str:
    """As words of the last column."""
    said = (f"touched {row['touched_hot_bytes'] / 1e6:.1f} MB hot, "
            f"{row['touched_cold_bytes'] / 1e6:.1f} cold: "
            f"{row['cold_seconds'] * 1e3:.2f} ms of link")
    if "of_touched_floor" in row:
        said += f", {row['of_touched_floor']:.3f} x with resident"
    if "hits" in row:
        of = row["hits"] + row["misses"]
        said += f"; {row['hits'] / max(of, 1e-9):.1%} hits"
    if "settle_tokens" in row["says"]:
        after = row["says"]["settle_tokens"]
        said += f"; settled after {'?' if after is None else after} tokens"
    if row["equal"] is None or "hits" in row:
        said += f"; logits differ by {row['difference']:.4g}"
    return said


def cells(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    for why in ("failed", "left_out"):
        if why in row:
            return (name, f"{why.replace('_', ' ')}: {row[why]}"[:200])

    def size(field: str) -> str:
        return f"{row[field] / 1e6:.0f}"

    of_floor = f"{row['of_floor']:.3f}" if "of_floor" in row else "?"
    equal = {True: "yes", False: "NO", None: "?"}[row["equal"]]
    extra = ""
    if "stagings" in row:
        extra = (f"{row['stagings']} stagings: {row['weights_moved']} weights "
                 f"moved, RSS {row['rss_grew_bytes'] / 1e6:+.1f} MB, device "
                 f"{row['device_grew_bytes'] / 1e6:+.1f} MB")
    if "image_seconds" in row["says"]:
        extra = (f"an image, {row['says']['image_steps']} steps and two "
                 f"encodings: {row['says']['image_seconds'] * 1e3:.0f} ms")
    if "touched_cold_bytes" in row:
        extra = touched(row)
    if row["equal"] is False:
        extra += (f"; outputs up to {row['largest']:.4g} differ by up to "
                  f"{row['difference']:.4g}")
    if "disk_read_bytes" in row:
        extra += (f"; {row['disk_read_bytes'] / 1e6:.0f} MB of disk a pass, "
                  f"{row['disk_read_bytes'] / row['pass_seconds'] / 1e9:.2f} "
                  "GB/s")
    return (name, f"{row['pass_seconds'] * 1e3:.1f}",
            f"{row['first_seconds'] * 1e3:.0f}",
            f"{row['set_up_seconds']:.2f}", size("device_bytes"),
            size("used_bytes"), size("rss_bytes"), size("all_pinned_bytes"),
            f"{row['of_link']:.1%}" if row["streamed_bytes"] else "-",
            of_floor, equal, extra.removeprefix("; "))


HEAD = ("row", "pass ms", "first ms", "set-up s", "GPU MB", "used MB",
        "RSS+ MB", "pinned MB", "link", "floor", "equal", "")


def show(report: dict[str, Any]) -> None:
    print(f"{report['device_name']}, torch {report['torch']}: "
          f"{report['model']}, {report['model_bytes'] / 1e6:.0f} MB in "
          f"{report['blocks']} blocks, {report['tokens']} tokens; link "
          f"{report['link'] / 1e9:.1f} GB/s")
    lines = [HEAD, *(cells(name, row) for name, row in report["rows"].items())]
    # A reason is as long as it is, and no reason for wide columns.
    full = [line for line in lines if len(line) == len(HEAD)]
    widths = [max(len(line[i]) for line in full) for i in range(len(HEAD))]
    widths[0] = max(len(line[0]) for line in lines)
    for line in lines:
        padded = [cell.ljust(width) if i in (0, len(HEAD) - 1) or
                  len(line) < len(HEAD) else cell.rjust(width)
                  for i, (cell, width) in enumerate(zip(line, widths))]
        print("  ".join(padded).rstrip())


def measure(options: argparse.Namespace, spec: Spec,
            rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    size, written = (bytes_of(one.build()) for one in (spec, in_file(spec)))
    # The weights, an encoder's, and once more what a row offloads to disk.
    offloads, encodes = (any(how.get(what) or how.get("how") == what
                             for how in rows.values())
                         for what in ("disk", "pipeline"))
    needed = int(written * 1.05 * (1.45 if encodes else 1) * (1 + offloads))
    folder = (pathlib.Path(tempfile.mkdtemp(prefix="hoist-peers-",
                                            dir=options.folder))
              if options.folder else roomy_folder(needed))
    begin = time.monotonic()
    try:
        parent = Parent(
            spec=spec, device=options.device, folder=folder,
            binaries=binaries(options.bin, folder), passes=options.passes,
            seconds=options.seconds, limit=options.row_limit)
        facts = parent.prepare()
        found: dict[str, Any] = {}
        for row, how in rows.items():
            started = time.monotonic()
            if options.limit and started - begin > options.limit:
                found[row] = {"left_out": f"the {options.limit:.0f} s of "
                              "--limit were over"}
                continue
            found[row] = parent.run(row, how)
            found[row]["row_seconds"] = time.monotonic() - started
            passed = 1e3 * found[row].get("pass_seconds", float("nan"))
            print(f"{row}: {found[row]['row_seconds']:.1f} s, "
                  f"{passed:.2f} ms a pass", file=sys.stderr, flush=True)
        if options.device == "cuda":  # Has it drifted?
            facts["link_after"] = parent.prepare()["link"]
    finally:
        shutil.rmtree(folder)
    for name, row in found.items():
        plain = "resident" + "".join(f"-{what}" for what in
                                     ("static", "prefill")
                                     if rows[name].get(what))
        row["prefill"] = bool(rows[name].get("prefill"))
        derive(row, facts, found.get(plain, {}).get("pass_seconds"))
    return {**facts, "model": options.model, "model_bytes": size,
            "blocks": spec.blocks, "tokens": spec.tokens,
            "hidden": spec.hidden, "routing": spec.routing,
            "experts_computed": spec.computed,
            "seconds": time.monotonic() - begin,
            "rows": found}


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        rows = {row: options_of(row, options.stagings)
                for row in rows_of(options)}
    except ValueError as error:
        sys.exit(f"bench_peers.py: {error}")
    try:
        spec = dataclasses.replace(
            sized(options.model, options.scale, options.blocks, options.tokens),
            routing=options.routing, computed=options.experts)
        report = measure(options, spec, rows)
    except Failed as why:  # Before the first row; a row's failure is a row.
        sys.exit(f"bench_peers.py: {why}")
    if options.json == "-":
        print(json.dumps(report, indent=1))
    else:
        show(report)
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(report, indent=1))
    wrong = [name for name, row in report["rows"].items()
             if "failed" in row or row.get("equal") is False]
    return 1 if wrong else 0
