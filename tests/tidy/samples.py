"""A bad tree for each rule, each complaint of which the rule must find.

CASES maps a rule to [(files, number of complaints)]. A rule that finds fewer
has gone blind; one that finds more complains of good code.
"""


def guarded(path, body=""):
    guard = f"HOIST_{path}_H_"
    return f"#ifndef {guard}\n#define {guard}\n{body}\n#endif  // {guard}\n"


def include(*names):
    return "".join(f"#include {name}\n" for name in names)


def link(target, *libs):
    return f"target_link_libraries({target}\n  PUBLIC {' '.join(libs)})\n"


def big_class(name, lines, members=0):
    """Of so many lines in all."""
    data = "".join(f"  int a{number}_ = 0;\n" for number in range(members))
    return (f"class {name} {{\n{data}" + "  void F();\n" * (lines - 2 - members) +
            "};\n")


def said(count, begin="", width=9):
    """A sentence of so many words, so many a line; lines after the first begin
    so."""
    words = ["Words", *["word"] * (count - 1)]
    return f"\n{begin}".join(" ".join(words[at:at + width])
                             for at in range(0, count, width)) + "."


PYTHON = "client/python/hoist/"

CASES = {
    "Includes": [
        ({"shared/src/a.cc": include('"absl/status/status.h"', "<string>",
                                     "<sys/mman.h>", '"hoist/shared/wire.h"')},
         1),
        ({"client/src/a.h": include('"hoist/v1/session.pb-c.h"'),
          "client/src/a.cc": include('"hoist/v1/session.pb-c.h"')}, 1),
        ({"client/include/hoist/a.h": include('"client/src/a.h"')}, 1),
        ({"client/ctl/a.cc": include('"daemon/types/tier.h"',
                                     "<grpcpp/grpcpp.h>")}, 1),
        ({"daemon/core/a.h": include("<thread>", "<unistd.h>", "<stdint.h>",
                                     '"daemon/base/clock.h"',
                                     '"hoist/v1/types.pb.h"',
                                     '"daemon/base/status.h"')}, 4),
        ({"daemon/io/a.cc": include('"daemon/store/a.h"', "<liburing.h>",
                                    "<grpcpp/grpcpp.h>")}, 2),
        ({"daemon/engine/a.cc": include('"daemon/session/a.h"',
                                        '"daemon/device/emulated_device.h"',
                                        '"daemon/mover/mover.h"')}, 2),
        ({"daemon/mover/a.cc": include('"daemon/io/uring_engine.h"',
                                       '"daemon/io/source_file.h"')}, 1),
        ({"daemon/novel/a.cc": ""}, 1),
        ({"daemon/store/a.cc": include('"spill.h"', "<unheard/of.h>")}, 2),
        ({"daemon/app/main.cc": include('"daemon/io/uring_engine.h"',
                                    '"tests/support/fake.h"')}, 1),
    ],
    "CoreIsPure": [
        ({"daemon/core/a.cc": 'int a = getenv("A");\n'
                              "// getenv is only spoken of here.\n"
                              "std::mutex b;\n",
          "daemon/io/a.cc": 'int a = getenv("A");\n'}, 2),
    ],
    "Links": [
        ({"shared/CMakeLists.txt": link("hoist_shared", "absl::status",
                                        "hoist_rules")}, 1),
        ({"daemon/core/CMakeLists.txt": link(
            "hoist_core", "hoist_base", "absl::status", "hoist_io",
            "PkgConfig::GRPCPP")}, 2),
        ({"client/CMakeLists.txt": "", "client/src/CMakeLists.txt": link(
            "hoist", "$<BUILD_INTERFACE:hoist_shared>", "hoist_proto_c",
            "hoist_proto", "mystery::lib")}, 3),
        ({"daemon/io/CMakeLists.txt": "# " + link("hoist_io", "hoist_core") +
          link("hoist_io", "hoist_store", "PkgConfig::LIBURING")}, 1),
    ],
    "Imports": [
        ({PYTHON + "__init__.py": "from .nn import attach\n",
          PYTHON + "_plan.py": "from ._tensor import Tensor\n",
          PYTHON + "_tensor.py": "def f():\n    from . import _plan\n",
          PYTHON + "novel/__init__.py": ""}, 2),
        ({PYTHON + "__init__.py": "", PYTHON + "_c.py": "",
          PYTHON + "checkpoint/__init__.py": "from .. import _c\n",
          PYTHON + "nn/__init__.py": "from ._api.attach import attach\n",
          PYTHON + "nn/_api/attach.py": "from ..._c import call\n"
                                        "from .._tree.layout import lay_out\n",
          PYTHON + "nn/_tree/layout.py": "from ...checkpoint import names\n",
          PYTHON + "nn/_tree/casting.py": "from .._run import hooks\n",
          PYTHON + "nn/_run/hooks.py": "",
          PYTHON + "ray/a.py": "import torch\nfrom .._c import call\n"
                               "from ..nn._tree import layout\n"}, 2),
    ],
    "FileLength": [
        ({"daemon/core/a.cc": "\n" * 601, "daemon/core/b.cc": "\n" * 600,
          "tests/unit/core/a_test.cc": "\n" * 801,
          "tests/unit/core/b_test.cc": "\n" * 800}, 2),
    ],
    "FunctionLength": [
        ({"daemon/core/a.cc": "int Long(int a) {\n" + "  a++;\n" * 70 + "}\n" +
          "int Short(int a) {\n" + "  a++;\n" * 69 + "}\n" +
          "const Key kKeys[] = {\n" + "    {[](int a) {\n    }},\n" * 99 +
          "};\n"}, 1),
        ({"daemon/core/a.cc": "Status Wrapped::Long(\n    int a) {\n" +
          "  a++;\n" * 70 + "}\n"}, 1),
    ],
    "IncludeGuards": [
        ({"daemon/types/tier.h": guarded("DAEMON_TYPES_TIER"),
          "daemon/core/a.h": guarded("CORE_A"),
          "daemon/core/b.h": "#pragma once\n",
          "client/src/d.h": guarded("CLIENT_D"),
          "client/src/e.h": guarded("CLIENT_SRC_E"),
          "shared/include/hoist/shared/c.h": guarded("SHARED_C")}, 2),
    ],
    "WhiteSpace": [
        ({"daemon/core/a.cc": "int a; \nint b;\n",
          "daemon/core/b.cc": "\tint b;\n", "daemon/core/c.cc": "int c;",
          "scripts/d.sh": "true\n\n"}, 4),
    ],
    "LineWidth": [
        ({"daemon/core/a.cc": "x" * 81 + "\n" + "x" * 80 + "\n"}, 1),
    ],
    "NoMarkers": [
        ({"daemon/core/a.cc": "// TODO: later\n// Todos are fine.\n",
          "scripts/a.sh": "# FIXME\n"}, 2),
    ],
    "NoSleepsInTests": [
        ({"tests/unit/core/a_test.cc": "usleep(1);\n// sleep(1) is spoken of.\n"
                                       "absl::SleepFor(x);\n",
          "tests/component/b.py": "time.sleep(1)\n",
          "daemon/core/c.cc": "usleep(1);\n"}, 3),
    ],
    "LinesHavePlaces": [
        ({"daemon/core/a.cc": "spdlog::info(\"a\");\nspdlog::warn (x);\n"
                              "// spdlog::error(\"spoken of\");\n"
                              "SPDLOG_INFO(\"b\");\nspdlog::should_log(l);\n",
          "daemon/keeper/b.cc": "spdlog::info(\"c\");\n"}, 2),
    ],
    "ThreadsCanBeRefused": [
        ({"daemon/io/a.cc": "thread_ = std::thread([this] { Run(); });\n"
                            "std::thread worker([] {});\n"
                            "threads_.emplace_back(&A::Work, this);\n"
                            "// std::thread(x) is spoken of.\n"
                            "std::thread thread_;\n"
                            "F(threads_.emplace_back(), StartThread(x));\n"
                            "std::vector<std::thread> threads_;\n",
          "daemon/base/start_thread.cc": "return std::thread(x);\n",
          "client/src/base/start_thread.cc": "return std::thread(x);\n",
          "client/src/b.cc": "std::thread(x);\n"}, 4),
    ],
    "WaitsAreMonotonic": [
        ({"daemon/io/a.cc": "mu_.AwaitWithTimeout(c, t);\n"
                            "done.WaitForNotificationWithTimeout(t);\n"
                            "absl::CondVar changed_;\n"
                            "// absl::CondVar is spoken of.\n"
                            "mu_.Await(c);\nTimedCondVar changed_;\n"
                            "changed_.WaitWithTimeout(&mu_, t);\n",
          "tests/unit/io/a_test.cc": "mu_.AwaitWithTimeout(c, t);\n"}, 3),
    ],
    "NoDisabledTests": [
        ({"tests/unit/core/a_test.cc": "TEST(A, DISABLED_B) {}\n"}, 1),
    ],
    "ThreadSafetyIsOn": [
        ({"daemon/io/a.h": "void F() ABSL_NO_THREAD_SAFETY_ANALYSIS;\n"}, 1),
    ],
    "ProtoShape": [
        ({"proto/hoist/v1/a.proto":
          "enum A {\n  A_UNSPECIFIED = 0;\n  A_B = 1;\n}\n"
          "enum C {\n  C_D = 0;\n}\n"}, 1),
    ],
    "ClangFormat": [
        ({"daemon/core/a.cc": "int  a;\n", "daemon/core/b.cc": "int b;\n"}, 1),
    ],
    "HeadersStandAlone": [
        ({"shared/include/hoist/shared/a.h": guarded(
            "SHARED_A", "inline std::string a;"),
          "client/include/hoist/b.h": guarded(
              "B", "#include <string>\ninline std::string b;")}, 1),
    ],
    "Counts": [
        # A class, its members, a field and a verb, each over its bound by one;
        # and a class as large as may be.
        ({"daemon/a/big.h": big_class("Big", 400, members=2),
          "daemon/a/big.cc": "void Big::F() {\n" + "  G();\n" * 398 + "}\n",
          "daemon/a/at.h": big_class("At", 600),
          "daemon/a/use.cc": "a.budget_bytes = 1;\nAsk(SetPlanRequest{});\n"
                             "++n.slow_events;\n",
          "daemon/core/counters.h":
              "struct Counters {\n  uint64_t slow_events = 0;\n};\n",
          "proto/hoist/v1/session.proto":
              "message ClientMessage {\n  SetPlanRequest set_plan = 1;\n}\n"
              "message SetPlanRequest {\n  uint64 budget_bytes = 1;\n}\n",
          "tests/tidy/counts.json":
              '{"lines of a class": {"daemon Big": 799},'
              ' "members of a class": {"daemon Big": 1},'
              ' "files of a field": {"budget_bytes": 1},'
              ' "files of a verb": {"set_plan": 1},'
              ' "files of a counter": {"slow_events": 1}}'}, 5),
        # A new field is held to the widest that is there.
        ({"proto/hoist/v1/session.proto":
              "message SetPlanRequest {\n  uint64 stage_deadline = 1;\n}\n",
          "daemon/a/use.cc": "a.stage_deadline = 1;\n",
          "tests/tidy/counts.json": '{"files of a field": {"budget_bytes": 2}}'},
         0),
        # A new counter has three files, and this one a fourth.
        ({"daemon/core/counters.h":
              "struct Counters {\n  uint64_t late_stages = 0;\n};\n",
          "proto/hoist/v1/status.proto": "uint64 late_stages = 1;\n",
          "daemon/a/use.cc": "++n.late_stages;\n",
          "client/ctl/a.cc": "out << counters.late_stages();\n",
          "tests/tidy/counts.json": '{"files of a counter": {"slow_events": 9}}'},
         1),
    ],
    "Prose": [
        # Each 31 words: a paragraph, list items, a cell, comments, docstrings.
        ({"a.md": f"# Title\n\n{said(31)}\n\n- {said(31, '  ')}\n"
                  f"  1. {said(31, '     ')}\n\n| a | {said(31, width=31)} |\n"
                  f"\nShort: **{said(31)}** Short.\n"}, 5),
        ({"daemon/a.cc": f"// {said(31, '// ')}\nint a;  // {said(31, '        // ')}"
                         f"\n// Threads:  {said(31, '//           ')}\n"
                         f"//   - {said(31, '//     ')}\n",
          "client/a.h": f"/* {said(31, ' * ')} */\n",
          "proto/a.proto": f"  // {said(31, '  // ')}\n"}, 6),
        ({"client/python/a.py": f'"""{said(31)}"""\n\ndef f():\n'
                                f'    """Short.\n\n    name: {said(31, " " * 8)}'
                                f'\n    """\n    # {said(31, "    # ")}\n',
          "scripts/a.sh": f"#!/bin/sh\n# {said(31, '# ')}\n",
          "cmake/a.cmake": f"# {said(31, '# ')}\n"}, 5),
        # A line of 101 columns, in each.
        ({"a.md": "a" * 101 + "\n", "scripts/a.sh": "# " + "a" * 99 + "\n"}, 2),
        # All of it may be so.
        ({"a.md": f"{said(30)} {said(30)[:-1]}: {said(30)[:-1]}; (`{said(40)}`.)\n\n"
                  f"```\nWord\n\n{said(99, width=99)}\n```\n\n    {said(99, width=99)}\n\n"
                  f"| a | {said(30, width=30)} |\n\n[a](http://{'a' * 99})\n",
          "daemon/a.cc": 'auto a = "// ' + said(31, width=31) + '";\n'
                         f"// {said(30, '// ')}\n// {said(30, '// ')}\n"
                         f"int a;  // {said(16, width=16)[:-1]}\n"
                         f"int b;  // {said(16, width=16)[:-1]}\n",
          "daemon/b.h": "// Words:\n//\n" + "// word  a word\n" * 20,
          "client/python/a.py": "a = \"\"\"" + said(31) + "\"\"\"\n",
          "scripts/a.sh": "# Use:\n#   " + said(40, "#   ") + "\n",
          "deploy/SCREENS.md": "a" * 101 + "\n"}, 0),
    ],
}
