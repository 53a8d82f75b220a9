"""The rules. Each takes a Tree and returns the complaints, "path:line: text".

A rule's docstring is its claim. SELF_TESTS in samples.py holds a bad tree for
each, so that a rule that has gone blind fails.
"""

import ast
import graphlib
import pathlib
import re
import subprocess
import tempfile

import layers

CODE = (".cc", ".h", ".c")
TOP = ("client", "cmake", "daemon", "deploy", "docs", "proto", "scripts", "shared",
       "tests", ".ci")


class Skip(Exception):
    """The rule cannot run here; its text says why."""


class Tree:
    """Files by path relative to the repository, text alone."""

    def __init__(self, files, tools=None):
        self.files = files
        self.tools = tools or {}

    @classmethod
    def of_folder(cls, root, tools):
        files = {}
        inner = [p for top in TOP for p in (root / top).rglob("*")]
        for path in sorted([*root.glob("*.md"), *inner]):
            name = path.relative_to(root).as_posix()
            if not path.is_file() or "__pycache__" in name:
                continue
            try:
                files[name] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # Binary test data.
        return cls(files, tools)

    def code(self, *prefixes, ends=CODE):
        for path, text in self.files.items():
            if path.endswith(ends) and (not prefixes or
                                        path.startswith(prefixes)):
                yield path, text


def lines_matching(files, pattern, complaint):
    found = []
    for path, text in files:
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{path}:{number}: {complaint}: {line.strip()}")
    return found


def without_comments(text):
    """Blanks comments and strings, keeping the lines."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', blank, text,
                  flags=re.S)


def includes(tree):
    """An include never points back in the order of the parts."""
    found = []
    for path, text in tree.code("shared/", "client/", "daemon/"):
        own = layers.zone_of(path)
        if own is None:
            continue
        if own.startswith("?"):
            found.append(f"{path}:1: folder {own[1:]} is not in "
                         "tests/tidy/layers.py: say there whom it may know")
            continue
        zone = layers.ZONES[own]
        sees = zone.header_sees if path.endswith(".h") else zone.sees
        pattern = r'^\s*#\s*include\s*(["<])([^">]+)[">]'
        for number, line in enumerate(text.splitlines(), 1):
            match = re.match(pattern, line)
            if not match:
                continue
            name = match.group(2)
            kind, what = layers.classify(name, match.group(1) == '"')
            where = f"{path}:{number}: "
            if kind == "unknown":
                found.append(f"{where}{name}: a header that tests/tidy/"
                             "layers.py does not know, or not named from the "
                             "repository's root")
            elif (kind == "zone" and what != own and
                  not {what, name} & sees):
                found.append(f"{where}{own} may not see {what}: {name}")
            elif kind == "third" and what not in zone.uses:
                found.append(f"{where}{own} may not use {what}: {name}")
            if zone.pure and layers.is_impure(kind, name):
                found.append(f"{where}{own} is pure and may not include {name}")
    return found


PURE = tuple(name + "/" for name, zone in layers.ZONES.items() if zone.pure)


def pure_asks_nothing(tree):
    """What is pure asks the world nothing: no environment, clock or random."""
    pattern = (r"\b(getenv|secure_getenv|std::this_thread|absl::Now|random_device"
               r"|std::thread|std::mutex|absl::Mutex|fopen|std::chrono"
               r"|thread_local)\b")
    code = ((p, without_comments(t)) for p, t in tree.code(*PURE))
    return lines_matching(code, pattern, "this folder is pure")


def links(tree):
    """A link line never points back in the order of the parts."""
    found = []
    for path, text in tree.code("shared/", "client/", "daemon/", "proto/",
                                ends=("CMakeLists.txt", ".cmake")):
        own = layers.zone_of(path)
        if own is None or own.startswith("?"):
            continue
        zone = layers.ZONES[own]
        text = re.sub(r"#[^\n]*", "", text)
        call = r"target_link_libraries\s*\(\s*(\S+)\s+([^)]*)\)"
        for match in re.finditer(call, text):
            number = text[:match.start()].count("\n") + 1
            where = f"{path}:{number}: {match.group(1)}"
            for target in match.group(2).split():
                brought = layers.target_zones(target)
                if brought is None:
                    found.append(f"{where} links {target}, which tests/tidy/"
                                 "layers.py does not know")
                    continue
                if own == "proto":
                    continue  # It generates the bindings themselves.
                for what in brought[0]:
                    if what != own and not any(
                            seen == what or seen.startswith(what + "/")
                            for seen in zone.sees):
                        found.append(f"{where}: {own} may not link {target}")
                for lib in brought[1]:
                    if lib not in zone.uses:
                        found.append(f"{where}: {own} may not link {target}")
    return found


def imported(text, package, modules):
    """(line, module) of those that the text of a module of `package` imports,
    also for type checkers or within functions."""
    for one in ast.walk(ast.parse(text)):
        if isinstance(one, ast.Import):
            names = [name.name for name in one.names]
        elif isinstance(one, ast.ImportFrom):
            base = package.split(".")[:len(package.split(".")) + 1 - one.level]
            source = ".".join([*(base if one.level else []),
                               *filter(None, [one.module])])
            # A module of a package, or what a module has.
            names = [whole if (whole := f"{source}.{name.name}") in modules
                     else source for name in one.names]
        else:
            continue
        yield from ((one.lineno, name) for name in names if name in modules)


def imports(tree):
    """A Python import points back neither in the order of folders nor in a circle."""
    modules, folders, found, below = {}, {}, [], {}
    for path, _ in tree.code(layers.PACKAGE, ends=".py"):
        parts = ("hoist/" + path[len(layers.PACKAGE):-len(".py")]).split("/")
        name = ".".join(parts).removesuffix(".__init__")
        modules[name], folders[name] = path, "/".join(parts[1:-1])
    modules.pop("hoist", None)  # It has all of the package's names, imported late.
    for name, path in modules.items():
        own = folders[name]
        if own not in layers.PYTHON:
            found.append(f"{path}:1: folder {own} is not in tests/tidy/"
                         "layers.py: say there whom it may know")
            continue
        package = ".".join(filter(None, ["hoist", own.replace("/", ".")]))
        seen = list(imported(tree.files[path], package, modules))
        below[name] = {other for _, other in seen}
        found += [f"{path}:{line}: {own} may not import {other}"
                  for line, other in seen
                  if folders[other] not in {"", own, *layers.PYTHON[own]}]
    try:
        graphlib.TopologicalSorter(below).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1]
        found.append(f"{modules[circle[0]]}:1: a circle of imports: "
                     + " <- ".join(circle))
    return found


def file_length(tree):
    """No file is longer than 600 lines, no test longer than 800."""
    found = []
    for path, text in tree.code(ends=CODE + (".py", ".sh", ".proto")):
        limit = 800 if path.startswith("tests/") or "/tests/" in path else 600
        count = text.count("\n")
        if count > limit:
            found.append(f"{path}:{count}: {count} lines, the limit is {limit}")
    return found


def function_length(tree):
    """No function is longer than 70 lines."""
    found = []
    for path, text in tree.code("shared/", "client/", "daemon/"):
        start = None
        head = ""  # The last line that began in the first column.
        for number, line in enumerate(text.splitlines(), 1):
            if re.match(r"[A-Za-z~]", line):
                head = line
            if start is None:
                other = re.match(r"(inline )?(namespace|class|struct|union|"
                                 r"enum|extern)\b|.*= ?\{$", head)
                if line.endswith("{") and "(" in head + line and not other:
                    start = number
            elif line.startswith("}"):
                if number - start > 70:
                    found.append(f"{path}:{start}: {number - start} lines in "
                                 "one function, the limit is 70")
                start = None
    return found


def include_guards(tree):
    """A header's guard is HOIST_<PATH>_H_."""
    found = []
    for path, text in tree.code(ends=".h"):
        inner = re.sub(r"^.*?/?include/hoist/", "", path)
        guards = ["HOIST_" + re.sub(r"\W", "_", name.upper()) + "_"
                  for name in (inner, inner.replace("/src/", "/"))]
        if not any(f"#ifndef {guard}\n#define {guard}\n" in text and
                   text.endswith((f"#endif  // {guard}\n",
                                  f"#endif /* {guard} */\n"))
                   for guard in guards):
            found.append(f"{path}:1: its guard should be {guards[-1]}, closed "
                         f"by '#endif  // {guards[-1]}'")
    return found


def white_space(tree):
    """No tab, no trailing white space, one newline at the end."""
    ends = CODE + (".py", ".sh", ".proto", ".txt", ".cmake", ".md", ".toml")
    files = list(tree.code(ends=ends))
    found = lines_matching(files, r"[ \t]+$", "trailing white space")
    found += lines_matching(files, r"\t", "a tab")
    for path, text in files:
        if text and (not text.endswith("\n") or text.endswith("\n\n")):
            found.append(f"{path}:{text.count(chr(10))}: should end in one "
                         "newline")
    return found


def line_width(tree):
    """No line of code is wider than 80."""
    return [f"{path}:{number}: {len(line)} columns, the limit is 80"
            for path, text in tree.code(ends=CODE + (".proto",))
            for number, line in enumerate(text.splitlines(), 1)
            if len(line) > 80 and "://" not in line]


def no_markers(tree):
    """Nothing is left for later in a comment."""
    ends = CODE + (".py", ".sh", ".proto", ".txt", ".cmake")
    files = ((p, t) for p, t in tree.code(ends=ends)
             if not p.startswith("tests/tidy/"))
    return lines_matching(files, r"\b(TODO|FIXME|XXX|HACK)\b", "a marker")


def no_sleeps(tree):
    """Tests wait for what they want, not for a time."""
    pattern = (r"\b(usleep|nanosleep|sleep_for|sleep_until|SleepFor|"
               r"time\.sleep|(?<!hoist\.)sleep)\s*\(")
    files = ((p, without_comments(t)) for p, t in tree.code(
        "tests/", "client/python/tests/", ends=CODE + (".py",))
        if not p.startswith(("tests/tidy/", "tests/bench/", "tests/vllm/gpu/")))
    return lines_matching(files, pattern, "a sleep in a test")


def lines_have_places(tree):
    """hoistd's log lines are written by the SPDLOG_ macros (daemon/log)."""
    files = ((p, without_comments(t)) for p, t in tree.code("daemon/")
             if not p.startswith("daemon/keeper/"))
    return lines_matching(
        files, r"\bspdlog::(trace|debug|info|warn|error|critical|log)\s*\(",
        "a line without its place in the code; use SPDLOG_INFO and its like")


def threads_can_be_refused(tree):
    """Threads begin in base/start_thread.cc, which returns an error."""
    files = ((p, without_comments(t)) for room in ("daemon/", "client/src/")
             for p, t in tree.code(room)
             if not p.endswith("/base/start_thread.cc"))
    return lines_matching(
        files, r"\bstd::(jthread\b|async\b|thread\s*[({]|thread\s+\w+[({])|"
               r"\b(pthread_create|thrd_create)\b|thread\w*_?\.emplace_back\([^)]",
        "a thread whose refusal throws; use StartThread")


def waits_are_monotonic(tree):
    """hoistd's waits with a timeout are base/timed_cond_var.h's."""
    files = ((p, without_comments(t)) for p, t in tree.code("daemon/"))
    return lines_matching(
        files, r"\b(absl::CondVar|condition_variable(_any)?|AwaitWith\w+|"
               r"LockWhenWith\w+|ReaderLockWhenWith\w+|"
               r"WaitForNotificationWith\w+|WaitWithDeadline|sem_timedwait|"
               r"pthread_cond_timedwait)\b",
        "a wait by a clock that is set; use TimedCondVar")


def no_disabled_tests(tree):
    """No test is switched off."""
    files = ((p, t) for p, t in tree.code("tests/", ends=CODE + (".py", ".txt"))
             if not p.startswith("tests/tidy/"))
    return lines_matching(files, r"\bDISABLED_|\bDISABLED (TRUE|ON)\b",
                          "a disabled test")


def safety_is_on(tree):
    """Nothing switches the thread-safety analysis off."""
    return lines_matching(tree.code(), r"NO_THREAD_SAFETY_ANALYSIS",
                          "the analysis is off")


def proto_shape(tree):
    """Every enum's zero says UNSPECIFIED."""
    found = []
    for path, text in tree.code("proto/", ends=".proto"):
        for match in re.finditer(r"enum\s+(\w+)\s*\{(.*?)\}", text, re.S):
            zero = re.search(r"(\w+)\s*=\s*0\s*;", match.group(2))
            if not zero or not zero.group(1).endswith("_UNSPECIFIED"):
                number = text[:match.start()].count("\n") + 1
                found.append(f"{path}:{number}: enum {match.group(1)}: its "
                             "zero should be ..._UNSPECIFIED")
    return found


def run_tool(command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False)


def written(tree, folder, paths):
    for path in paths:
        target = pathlib.Path(folder) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(tree.files[path], encoding="utf-8")


def clang_format(tree):
    """clang-format 14 would change nothing."""
    tool = tree.tools.get("clang-format")
    if not tool:
        raise Skip("clang-format 14 is not installed; "
                   "other versions format differently")
    paths = [path for path, _ in tree.code(ends=(".cc", ".h"))]
    with tempfile.TemporaryDirectory() as folder:
        written(tree, folder, paths)
        style = pathlib.Path(__file__).parents[2] / ".clang-format"
        (pathlib.Path(folder) / ".clang-format").write_text(style.read_text())
        done = run_tool([tool, "--dry-run", "-Werror"] +
                        [f"{folder}/{path}" for path in paths])
        wrong = [line.replace(folder + "/", "").split(":")[0]
                 for line in done.stdout.splitlines() if "error:" in line]
        return [f"{path}:1: {wrong.count(path)} places; clang-format-14 -i "
                "corrects them" for path in sorted(set(wrong))]


def headers_stand_alone(tree):
    """Each public header compiles by itself, as C++20."""
    compiler = tree.tools.get("cxx") or "c++"
    bases = ("shared/include/", "client/include/")
    paths = [path for path, _ in tree.code(*bases, ends=".h")]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        written(tree, folder, paths)
        flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
        flags += [f"-I{folder}/{base}" for base in bases]
        for path in paths:
            if "/hoist/torch" in path:
                continue  # Needs LibTorch; its own test compiles it.
            source = pathlib.Path(folder) / "alone.cc"
            source.write_text(
                f'#include "{re.sub(r"^.*?/include/", "", path)}"\n')
            done = run_tool([compiler, *flags, str(source)])
            if done.returncode:
                found.append(f"{path}:1: does not stand alone:\n" +
                             done.stdout[:2000])
    return found


RULES = {
    "Includes": includes,
    "CoreIsPure": pure_asks_nothing,
    "Links": links,
    "Imports": imports,
    "FileLength": file_length,
    "FunctionLength": function_length,
    "IncludeGuards": include_guards,
    "WhiteSpace": white_space,
    "LineWidth": line_width,
    "NoMarkers": no_markers,
    "NoSleepsInTests": no_sleeps,
    "LinesHavePlaces": lines_have_places,
    "ThreadsCanBeRefused": threads_can_be_refused,
    "WaitsAreMonotonic": waits_are_monotonic,
    "NoDisabledTests": no_disabled_tests,
    "ThreadSafetyIsOn": safety_is_on,
    "ProtoShape": proto_shape,
    "ClangFormat": clang_format,
    "HeadersStandAlone": headers_stand_alone,
}
