"""Who may know whom: the tables that the rules Includes, Links and Imports check.

A zone is a folder. A zone may always include itself. `sees` names other zones,
or single headers of theirs, `uses` third-party libraries; the standard library and libc
are open to all, but for what `bans` lists. The order of ZONES does not matter: a file
belongs to the zone with the longest matching prefix.
"""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Zone:
    sees: frozenset
    uses: frozenset
    header_sees: frozenset  # What its headers may include; by default `sees`.
    pure: bool


def zone(sees="", uses="", header_sees=None, pure=False):
    if header_sees is None:
        header_sees = sees
    return Zone(frozenset(sees.split()), frozenset(uses.split()),
                frozenset(header_sees.split()), pure)


# A pure zone is policy: what it needs of the world it is told. So no threads,
# locks, clocks, files or processes, and nothing of libc but its types.
IMPURE = (r"(thread|mutex|shared_mutex|condition_variable|future|semaphore|"
          r"latch|barrier|stop_token|chrono|ctime|fstream|iostream|filesystem|"
          r"random|csignal)$|absl/(synchronization|random)/|"
          r"absl/time/clock\.h|daemon/base/"
          r"(clock|inherited|start_thread|threads|task_threads|timed_cond_var)\.h")


def is_impure(kind, name):
    if re.match(IMPURE, name):
        return True
    return (kind == "system" and name.endswith(".h") and
            name not in ("stdint.h", "stddef.h"))


TYPES = "daemon/types daemon/base shared"
CORE = "daemon/core daemon/model daemon/plan " + TYPES

CLIENT = "shared client/include"
BELOW_SESSION = ("client/src/base client/src/device client/src/messages "
                 + CLIENT)
SESSION = "client/src/session client/src/model " + BELOW_SESSION

ZONES = {
    "shared": zone(),
    "proto": zone(),
    "client/include": zone("shared", "torch"),
    "client/src": zone("shared client/include proto-c", "protobuf-c",
                       header_sees="shared client/include"),
    "client/src/base": zone(CLIENT),
    "client/src/device": zone("client/src/base " + CLIENT),
    "client/src/messages": zone(
        "client/src/device proto-c " + CLIENT, "protobuf-c"),
    "client/src/model": zone(
        "client/src/base client/src/device client/src/messages " + CLIENT),
    "client/src/session": zone("client/src/model " + BELOW_SESSION),
    "client/src/plan": zone(SESSION),
    "client/src/in_place": zone(SESSION),
    "client/src/arena": zone(SESSION),
    "client/src/permit": zone(SESSION),
    "client/src/image": zone(SESSION),
    "client/src/attachment": zone("client/src/plan " + SESSION),
    "client/src/c_api": zone(
        "client/src/attachment client/src/plan client/src/in_place"
        " client/src/arena"
        " client/src/permit client/src/image " + SESSION),
    "client/examples": zone("client/include shared"),
    "client/examples/libtorch": zone("client/include", "torch"),
    "client/ctl": zone("proto shared",
                       "grpc protobuf cli11 nlohmann absl openssl"),
    "daemon/base": zone("shared", "absl openssl xxhash"),
    "daemon/types": zone("daemon/base shared", "absl", pure=True),
    "daemon/keeper": zone("daemon/base shared", "absl spdlog systemd cli11"),
    "daemon/model": zone(TYPES, "absl nlohmann xxhash", pure=True),
    "daemon/plan": zone(TYPES, "absl", pure=True),
    "daemon/core": zone("daemon/model daemon/plan " + TYPES, "absl",
                        pure=True),
    "daemon/convert": zone(CORE + " proto", "absl protobuf"),
    "daemon/config": zone(TYPES + " daemon/model", "absl toml++"),
    "daemon/log": zone(TYPES + " daemon/config daemon/model",
                       "absl spdlog systemd"),
    "daemon/device": zone(TYPES, "absl spdlog cuda"),
    "daemon/io": zone(TYPES + " daemon/model", "absl spdlog liburing"),
    "daemon/io_helper": zone(TYPES + " daemon/model daemon/io", "absl spdlog"),
    "daemon/doctor": zone(TYPES, "absl"),
    "daemon/host": zone(TYPES, "absl spdlog"),
    "daemon/store": zone(TYPES + " daemon/model daemon/io", "absl"),
    "daemon/trace": zone(TYPES, "absl"),
    "daemon/link": zone(TYPES + " daemon/plan daemon/trace", "absl spdlog"),
    "daemon/permit": zone(TYPES + " daemon/plan daemon/link daemon/trace",
                          "absl spdlog"),
    "daemon/mover": zone(
        CORE + " daemon/io_helper daemon/store daemon/host daemon/link daemon/trace"
        " daemon/io/source_file.h",
        "absl spdlog xxhash"),
    "daemon/stream": zone(TYPES + " daemon/plan daemon/link daemon/trace",
                          "absl spdlog"),
    "daemon/successor": zone(
        CORE + " daemon/convert/persisted_convert.h daemon/io_helper/parked_file.h"
        " daemon/keeper daemon/mover daemon/store daemon/stream"
        " daemon/io/open_files.h daemon/io/source_file.h", "absl"),
    "daemon/engine": zone(
        CORE + " daemon/convert/persisted_convert.h daemon/io_helper daemon/keeper/keep.h"
        " daemon/link daemon/mover daemon/store daemon/successor"
        " daemon/permit daemon/stream daemon/host daemon/trace"
        " daemon/io/open_files.h daemon/io/source_file.h",
        "absl spdlog"),
    "daemon/socket": zone(CORE, "absl"),
    "daemon/session": zone(CORE + " daemon/engine daemon/convert daemon/io_helper"
                           " daemon/socket proto",
                           "absl spdlog protobuf"),
    "daemon/rpc": zone(
        CORE + " daemon/engine daemon/convert daemon/io_helper daemon/socket"
        " daemon/trace proto",
        "absl spdlog protobuf grpc"),
    "daemon/metrics": zone(
        CORE + " daemon/engine/engine_api.h daemon/socket", "absl"),
    # main: the only place that builds concrete things.
    "daemon/app": zone(
        CORE + " daemon/config daemon/device daemon/io_helper daemon/io daemon/log"
        " daemon/keeper daemon/host daemon/store daemon/link daemon/mover daemon/stream"
        " daemon/successor daemon/engine daemon/session daemon/socket daemon/rpc"
        " daemon/doctor daemon/metrics daemon/trace",
        "absl cli11 spdlog systemd"),
}

# Python's folders, below PACKAGE. Each may import itself, the modules that lie
# in PACKAGE itself, and these.
PACKAGE = "client/python/hoist/"
_NN = ["nn/" + one for one in ("_tensors", "_tree", "_store", "_graph", "_show",
                               "_plan", "_run", "_api")]  # From the ground up.
PYTHON = {
    "": set(),
    "checkpoint": set(),
    **{one: {*_NN[:at], "checkpoint"} for at, one in enumerate(_NN)},
    "nn": {*_NN},
    "activations": {"nn", *_NN},
    "ray": set(),
    "serving": {"checkpoint"},
    "sglang": {"checkpoint", "serving"},
    "vllm": {"checkpoint", "serving", *_NN},
    "compat": {"activations", "checkpoint", "nn", *_NN},
}

# How third-party headers, and the targets that bring them, are recognised.
THIRD_HEADERS = {
    "absl": r"absl/", "nlohmann": r"nlohmann/", "xxhash": r"xxh(ash|3)\.h",
    "grpc": r"grpc(pp|\+\+)?/", "protobuf": r"google/protobuf/",
    "protobuf-c": r"protobuf-c/", "cuda": r"cuda[a-zA-Z_]*\.h",
    "openssl": r"openssl/", "liburing": r"liburing(/|\.h)",
    "spdlog": r"(spdlog|fmt)/", "toml++": r"toml\+\+/", "cli11": r"CLI/",
    "systemd": r"systemd/", "torch": r"(torch|c10|ATen)/",
    "test": r"(gtest|gmock|benchmark)/", "curses": r"n?curses\.h",
}
THIRD_TARGETS = {
    "absl": r"absl::", "nlohmann": r"nlohmann_json", "xxhash": r".*xxhash",
    "grpc": r"(PkgConfig::GRPC|gRPC::)", "protobuf-c": r".*protobuf[-_]?c$",
    "protobuf": r"(PkgConfig::PROTOBUF$|protobuf::)", "cuda": r"CUDA::",
    "openssl": r"OpenSSL::", "liburing": r".*uring", "spdlog": r"spdlog::|fmt::",
    "toml++": r".*toml(plusplus|\+\+)", "cli11": r"CLI11::",
    "systemd": r".*systemd",
    "test": r"GTest::|benchmark::", "curses": r".*curses",
}
OPEN_TARGETS = r"(hoist_rules|Threads::Threads|pthread|dl|rt|m|-.*|PUBLIC|" \
    r"PRIVATE|INTERFACE)$"

SYSTEM_FOLDERS = r"(sys|linux|netinet|arpa|net|asm)/"
SYSTEM_HEADERS = frozenset("""
assert cpuid ctype dirent dlfcn elf endian errno fcntl features fnmatch ftw getopt
glob grp immintrin inttypes limits link locale malloc math mntent netdb poll pthread pwd
sched semaphore setjmp signal spawn stdalign stdarg stdatomic stdbool stddef
stdint stdio stdlib string strings sysexits syslog termios threads time ucontext
unistd utime wchar
""".split())


def zone_of(path):
    """The zone a file lies in, or None (tests, scripts, ...)."""
    best = None
    for name in ZONES:
        if path.startswith(name + "/") and (best is None or
                                            len(name) > len(best)):
            best = name
    if best is None and path.startswith("daemon/") and path.count("/") > 1:
        return "?" + path.rsplit("/", 1)[0]  # A folder the table lacks.
    return best


def classify(name, quoted):
    """Returns (kind, what) of an included header.

    kind is 'zone', 'third', 'system' or 'unknown'.
    """
    if re.match(r"(daemon|client|tests)/", name):
        if name.startswith("tests/"):
            return "zone", "tests"
        return "zone", zone_of(name)
    if name.startswith("hoist/v1/"):
        return "zone", "proto-c" if name.endswith(".pb-c.h") else "proto"
    if name.startswith("hoist/shared/"):
        return "zone", "shared"
    if re.match(r"hoist/", name):
        return "zone", "client/include"
    for lib, pattern in THIRD_HEADERS.items():
        if re.match(pattern, name):
            return "third", lib
    if not quoted:
        stem = name[:-2] if name.endswith(".h") else None
        if stem in SYSTEM_HEADERS or re.match(SYSTEM_FOLDERS, name):
            return "system", name
        if stem is None and "/" not in name and "." not in name:
            return "system", name
    return "unknown", name


def target_zones(target):
    """The zones and libraries that linking `target` brings, or None."""
    target = re.sub(r"^\$<(BUILD_INTERFACE|LINK_ONLY):(.*)>$", r"\2", target)
    if re.match(OPEN_TARGETS, target) or "$" in target:
        return [], []
    named = {
        "hoist_shared": (["shared"], []), "hoist::shared": (["shared"], []),
        "hoist_proto_c": (["proto-c"], ["protobuf-c"]),
        "hoist_proto": (["proto"], ["protobuf"]),
        "hoist_proto_grpc": (["proto"], ["protobuf", "grpc"]),
        "hoist": (["client/include"], []),
        "hoist::hoist": (["client/include"], []),
        "hoist::client": (["client/include"], []),
        "hoist_client": (["client/include"], []),
    }
    if target in named:
        return named[target]
    if target.startswith("hoist_"):
        folder = target[len("hoist_"):]
        for prefix in ("daemon/", "client/"):
            if prefix + folder in ZONES:
                return [prefix + folder], []
        for name in sorted(ZONES, key=len, reverse=True):
            stem = name.split("/")[-1]
            if name != stem and folder.startswith(stem + "_"):
                return [name], []
        return None
    for lib, pattern in THIRD_TARGETS.items():
        if re.match(pattern, target, re.IGNORECASE):
            return [], [lib]
    return None
