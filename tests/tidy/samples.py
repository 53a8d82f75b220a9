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


CASES = {
    "Includes": [
        ({"shared/src/a.cc": include('"absl/status/status.h"', "<string>",
                                     "<sys/mman.h>", '"hoist/shared/wire.h"')},
         1),
        ({"client/src/a.h": include('"hoist/v1/session.pb-c.h"'),
          "client/src/a.cc": include('"hoist/v1/session.pb-c.h"')}, 1),
        ({"client/include/hoist/a.h": include('"client/src/a.h"')}, 1),
        ({"client/ctl/a.cc": include('"daemon/terms/tier.h"',
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
        ({"daemon/main.cc": include('"daemon/io/uring_engine.h"',
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
        ({"daemon/terms/tier.h": guarded("DAEMON_TERMS_TIER"),
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
}
