#!/usr/bin/env python3
"""Draws figures as SVG, with the standard library alone.

plot.py [FILE.json...] [--out FOLDER]     (default: plots/ beside this file)

Without a file it draws the tables of docs/RESULTS.md, which compare hoist with
its peers. A file is hoist-bench's JSON, or a trace:

trace:     one pass of a file by one_pass.py: the link's copies, and the
           device's computation
stream:    rate over group size, the link as a line; pass time over the resident
           part of the model, the floor as a line
fairness:  each session's share, its fair share as a line
policy:    bytes a pass, planned, by LRU and by MIN, over the budget
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 50
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")


class Chart:
    """One SVG: an axis of names or numbers, a y axis from 0, a legend."""

    def __init__(self, title: str, x: str, y: str, labels: list[str],
                 top: float) -> None:
        self.labels, self.top, self.legend = labels, top * 1.1 or 1.0, 0
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
            f'height="{HEIGHT}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
        self.text(LEFT, 22, title, size=14)
        self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x, "middle")
        self.text(LEFT, TOP - 4, y, "end")
        for i in range(6):
            value = self.top * i / 5
            at = self.y(value)
            self.line(LEFT, at, WIDTH - RIGHT, at, "#ddd")
            self.text(LEFT - 6, at + 4, f"{value:.3g}", "end")
        for i, label in enumerate(labels):
            self.text(self.x(i), HEIGHT - BOTTOM + 18, label, "middle")

    def x(self, i: float) -> float:
        return LEFT + (i + 0.5) * (WIDTH - LEFT - RIGHT) / len(self.labels)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM)

    def text(self, x, y, what, anchor="start", size=12) -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" '
                          f'text-anchor="{anchor}">{escape(what)}</text>')

    def line(self, x1, y1, x2, y2, color, dash="") -> None:
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
            f'stroke="{color}" stroke-dasharray="{dash}"/>')

    def series(self, name: str, values: list, dash: str = "") -> None:
        """A line through the values; None leaves a gap."""
        color = COLORS[self.legend % len(COLORS)]
        before = None
        for i, value in enumerate(values):
            at = None if value is None else (self.x(i), self.y(value))
            if at and before:
                self.line(*before, *at, color, dash)
            if at and not dash:
                self.parts.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" '
                                  f'r="3" fill="{color}"/>')
            before = at
        self.name(name, color, dash)

    def bars(self, name: str, values: list) -> None:
        color, half = COLORS[self.legend % len(COLORS)], 0.3
        for i, value in enumerate(values):
            left, right = self.x(i - half), self.x(i + half)
            self.parts.append(
                f'<rect x="{left:.1f}" y="{self.y(value):.1f}" '
                f'width="{right - left:.1f}" '
                f'height="{self.y(0) - self.y(value):.1f}" fill="{color}"/>')
        self.name(name, color, "")

    def name(self, name: str, color: str, dash: str) -> None:
        at = TOP + 10 + 18 * self.legend
        left = WIDTH - RIGHT + 10
        self.line(left, at, left + 20, at, color, dash)
        self.text(left + 26, at + 4, name)
        self.legend += 1

    def write(self, path: pathlib.Path) -> None:
        write(path, self.parts)


class Rows:
    """One SVG: named rows below each other, with boxes along an x axis from 0."""

    LEFT, STEP = 370, 26

    def __init__(self, title: str, names: list[str], top: float,
                 unit: str) -> None:
        self.top, self.height = top, TOP + self.STEP * len(names) + 30
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 240}" '
            f'height="{self.height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH + 240}" height="{self.height}" '
            f'fill="white"/>',
            f'<text x="8" y="22" font-size="14">{escape(title)}</text>']
        step = next(one * 10 ** power for power in range(-3, 9)
                    for one in (1, 2, 5) if one * 10 ** power >= top / 6)
        for i in range(int(top / step) + 1):
            x = self.x(step * i)
            self.parts.append(
                f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" '
                f'y2="{self.height - 26}" stroke="#ddd"/>'
                f'<text x="{x:.1f}" y="{self.height - 10}" '
                f'text-anchor="middle">{step * i:g} {unit}</text>')
        for i, name in enumerate(names):
            self.parts.append(
                f'<text x="{self.LEFT - 8}" y="{TOP + self.STEP * i + 17}" '
                f'text-anchor="end">{escape(name)}</text>')

    def x(self, value: float) -> float:
        return self.LEFT + value / self.top * (WIDTH + 160 - self.LEFT)

    def box(self, row: int, begin: float, end: float, color: str,
            said: str = "", inside: bool = False) -> None:
        y, x = TOP + self.STEP * row, self.x(begin)
        width = self.x(end) - x
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y + 3}" width="{max(width, 0.5):.1f}" '
            f'height="{self.STEP - 6}" fill="{color}" stroke="white"/>')
        if said and not (inside and width < 8 * len(said)):
            at = (f'x="{x + width / 2:.1f}" text-anchor="middle" fill="white"'
                  if inside else f'x="{self.x(end) + 4:.1f}"')
            self.parts.append(f'<text {at} y="{y + 17}">{escape(said)}</text>')


def write(path: pathlib.Path, parts: list[str]) -> None:
    path.write_text("\n".join(parts + ["</svg>", ""]))
    print(path)


def named(stem: pathlib.Path, what: str) -> pathlib.Path:
    words = re.sub(r"[^a-z0-9]+", "-", what.lower()).strip("-")
    return stem.with_name(f"{stem.name}-{words}.svg")


def stream(report: dict, stem: pathlib.Path) -> None:
    rows = report["rows"]
    sizes = sorted({row["group_mib"] for row in rows})
    parts = sorted({row["resident_wanted"] for row in rows})
    found = {(r["group_mib"], r["resident_wanted"]): r for r in rows}
    chart = Chart("Streamed passes: " + report["machine"]["device"],
                  "MiB a group", "GB/s", [f"{size:g}" for size in sizes],
                  max(max(r["link_gb_per_s"], r["gb_per_s"]) for r in rows))
    get = lambda size, part, key: found.get((size, part), {}).get(key)
    for part in parts:
        values = [get(size, part, "gb_per_s") or None for size in sizes]
        if any(values):
            chart.series(f"{part:.0%} may stay", values)
    chart.series("link", [get(size, parts[0], "link_gb_per_s")
                          for size in sizes], "6 3")
    chart.write(stem.with_name(stem.name + "-rate.svg"))
    for size in sizes:
        mine = [row for row in rows if row["group_mib"] == size]
        mine.sort(key=lambda row: row["resident"])
        chart = Chart(f"{mine[0]['groups']} groups of {size:g} MiB, compute: "
                      + mine[0]["compute"], "resident part of the model",
                      "ms a pass", [f"{row['resident']:.0%}" for row in mine],
                      max(max(r["pass_ms"], r["floor_ms"]) for r in mine))
        chart.series("measured, median", [row["pass_ms"] for row in mine])
        chart.series("floor: max(compute,", [r["floor_ms"] for r in mine],
                     "6 3")
        chart.text(WIDTH - RIGHT + 36, TOP + 46, "streamed bytes / link)")
        chart.write(stem.with_name(f"{stem.name}-pass-{size:g}MiB.svg"))


def fairness(report: dict, stem: pathlib.Path) -> None:
    rows = [row for row in report["rows"] if "share" in row]
    cases = list(dict.fromkeys(row["what"] for row in rows))
    for case in cases:
        mine = [row for row in rows if row["what"] == case]
        chart = Chart("Shares of the link: " + case, "session (weight)",
                      "share", [f"{row['session']} ({row['weight']})"
                                for row in mine], 1.0 / 1.1)
        chart.bars("measured", [row["share"] for row in mine])
        chart.series("fair", [row["fair_share"] for row in mine], "6 3")
        chart.write(named(stem, case))


def policy(report: dict, stem: pathlib.Path) -> None:
    rows = report["rows"]
    for trace in dict.fromkeys(row["trace"] for row in rows):
        mine = [row for row in rows if row["trace"] == trace]
        chart = Chart(trace, "budget, part of the model", "GiB a pass",
                      [f"{row['budget']:.0%}" for row in mine],
                      max(row["pass_gib"] for row in mine))
        for name, key, dash in (("plan", "planned_gib", ""),
                                ("LRU", "lru_gib", "6 3"),
                                ("MIN (Belady)", "min_gib", "2 2")):
            chart.series(name, [row[key] for row in mine], dash)
        chart.write(named(stem, trace))


RESULTS = pathlib.Path(__file__).resolve().parents[2] / "docs/RESULTS.md"
# By the second column's name in RESULTS.
COMPARED = {
    "pass": "A pass of 24 blocks, 15.1 GB, on one H200 (PCIe 5 x16)",
    "a token": "A token of a mixture of experts, 10.0 GB, on one H200",
    "a step": "A training step, 24 blocks' activations offloaded, on one H200",
}


def results(out: pathlib.Path) -> None:
    """Each table that compares times `under` several libraries."""
    for table in re.findall(r"^\| under \|.*\n(?:\|.*\n)+", RESULTS.read_text(),
                            re.M):
        head, _, *lines = [[cell.strip() for cell in line.split("|")[1:-1]]
                           for line in table.splitlines()]
        rows = [(line[0].replace("`", ""), line[1],
                 float(line[1].removesuffix(" ms").replace(",", "")))
                for line in lines if line[1]]
        chart = Rows(COMPARED[head[1]], [name for name, _, _ in rows],
                     max(ms for _, _, ms in rows), "ms")
        for i, (name, said, ms) in enumerate(rows):
            ours = name.startswith("hoist")
            chart.box(i, 0, ms, COLORS[0] if ours else "#999", said)
        write(named(out / "results", head[1]), chart.parts)


def trace(recorded: dict, stem: pathlib.Path) -> None:
    """The last whole pass: from one computation of the first block to the next
    one."""
    slices = {row: [(one["name"], one["ts"] / 1e3, (one["ts"] + one["dur"]) / 1e3)
                    for one in recorded["traceEvents"] if one["tid"] == row]
              for row in ("copies", "computes")}
    first = slices["computes"][0][0]
    *_, begin, end = [at for name, at, _ in slices["computes"] if name == first]
    chart = Rows("One pass of an attached module, half of it streamed, on "
                 + recorded["otherData"]["device"],
                 ["link copies", "device computes"], end - begin, "ms")
    for row, (found, color) in enumerate(zip(slices.values(), COLORS)):
        for name, a, b in found:
            if a < end and b > begin:
                chart.box(row, max(a, begin) - begin, min(b, end) - begin, color,
                          name.rpartition(".")[2], inside=True)
    write(stem.with_suffix(".svg"), chart.parts)
    for row, found in slices.items():
        busy = sum(max(0.0, min(b, end) - max(a, begin)) for _, a, b in found)
        print(f"{row}: {busy:.1f} of {end - begin:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).parent / "plots")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    draw = {"stream": stream, "fairness": fairness, "policy": policy}
    if not args.files:
        results(args.out)
    for file in args.files:
        report = json.loads(file.read_text())
        if "traceEvents" in report:
            trace(report, args.out / file.stem)
        elif report["bench"] in draw:
            draw[report["bench"]](report, args.out / file.stem)


if __name__ == "__main__":
    main()
