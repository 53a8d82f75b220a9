#include "daemon/host/host_limits.h"

#include <algorithm>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "daemon/base/machine_files.h"

namespace hoistd {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kStep = 2 * kMiB;
constexpr uint64_t kUnknownBytes = 4096 * kMiB;
// cgroup v1 has no "no limit" value: it shows the largest number of pages.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

std::optional<uint64_t> Least(std::optional<uint64_t> a,
                              std::optional<uint64_t> b) {
  if (!a) return b;
  return b ? std::min(*a, *b) : a;
}

std::optional<uint64_t> ReadLimit(const std::string& file) {
  uint64_t bytes = 0;
  // "max" is not a number, and so no limit.
  if (!absl::SimpleAtoi(ReadKernelFile(file), &bytes) || bytes >= kNoLimit) {
    return std::nullopt;
  }
  return bytes;
}

// The value in line "NAME VALUE" or "NAME: VALUE kB"; in bytes.
std::optional<uint64_t> ReadLine(const std::string& file,
                                 absl::string_view name) {
  const std::string text = ReadKernelFile(file);
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    uint64_t value = 0;
    if (!absl::ConsumePrefix(&line, name)) continue;
    const bool kib = absl::ConsumeSuffix(&line, "kB");
    if (absl::SimpleAtoi(line, &value)) return kib ? value << 10 : value;
  }
  return std::nullopt;
}

// Of a cgroup's folder.
using FolderFn = absl::FunctionRef<std::optional<uint64_t>(const std::string&)>;

// The least value of `mount`/`path` and all its parents. Directories may be
// missing: a container sees its own cgroup at the mount's root, but perhaps the
// host's path.
std::optional<uint64_t> LeastUpwards(const std::string& mount,
                                     absl::string_view path, FolderFn value) {
  std::vector<std::string> parts = absl::StrSplit(path, '/', absl::SkipEmpty());
  // A process outside its namespace's root is shown as "/../x".
  parts.erase(std::remove(parts.begin(), parts.end(), ".."), parts.end());
  std::optional<uint64_t> least;
  while (true) {
    std::string folder = mount;
    for (const std::string& part : parts) absl::StrAppend(&folder, "/", part);
    least = Least(least, value(folder));
    if (parts.empty()) return least;
    parts.pop_back();
  }
}

bool HasController(absl::string_view controllers, absl::string_view name) {
  for (const absl::string_view one : absl::StrSplit(controllers, ',')) {
    if (one == name) return true;
  }
  return false;
}

// For a refusal: the available memory, and the remedy.
std::string TooMuch(const HostMemory& memory, absl::string_view what) {
  if (memory.cgroup_is_less()) {
    return absl::StrCat("this process's cgroup allows ", *memory.cgroup_limit,
                        "; lower ", what,
                        " or raise the cgroup's memory limit (systemd: "
                        "MemoryHigh and MemoryMax)");
  }
  return absl::StrCat("this machine has ", memory.machine.value_or(0),
                      "; lower ", what);
}

// Over this process's groups of both versions.
std::optional<uint64_t> LeastOfGroups(const std::string& root, FolderFn v2,
                                      FolderFn v1) {
  const std::string groups = ReadKernelFile(root + "/proc/self/cgroup");
  const std::string base = absl::StrCat(root, "/sys/fs/cgroup");
  std::optional<uint64_t> least;
  for (const absl::string_view line : absl::StrSplit(groups, '\n')) {
    // "0::/system.slice/hoistd.service" or "5:cpu,memory:/docker/1f2e".
    const std::vector<absl::string_view> fields =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[0] == "0" && fields[1].empty()) {
      for (const char* mount : {"", "/unified"}) {
        least = Least(least,
                      LeastUpwards(absl::StrCat(base, mount), fields[2], v2));
      }
    } else if (HasController(fields[1], "memory")) {
      least = Least(least,
                    LeastUpwards(absl::StrCat(base, "/memory"), fields[2], v1));
    }
  }
  return least;
}

// memory.high counts, too: beyond it the kernel throttles every process.
std::optional<uint64_t> LimitV2(const std::string& folder) {
  return Least(ReadLimit(folder + "/memory.max"),
               ReadLimit(folder + "/memory.high"));
}

std::optional<uint64_t> LimitV1(const std::string& folder) {
  return ReadLimit(folder + "/memory.limit_in_bytes");
}

// What is left of `limit`. The kernel reclaims an inactive page cache first.
std::optional<uint64_t> Left(std::optional<uint64_t> limit,
                             std::optional<uint64_t> used,
                             std::optional<uint64_t> cache) {
  if (!limit.has_value() || !used.has_value()) return std::nullopt;
  const uint64_t kept = *used - std::min(*used, cache.value_or(0));
  return *limit - std::min(*limit, kept);
}

}  // namespace

std::optional<uint64_t> CgroupMemoryLimit(const std::string& root) {
  return LeastOfGroups(root, LimitV2, LimitV1);
}

std::optional<uint64_t> AvailableMemory(const std::string& root) {
  const auto v2 = [](const std::string& folder) {
    return Left(LimitV2(folder), ReadLimit(folder + "/memory.current"),
                ReadLine(folder + "/memory.stat", "inactive_file "));
  };
  const auto v1 = [](const std::string& folder) {
    return Left(LimitV1(folder), ReadLimit(folder + "/memory.usage_in_bytes"),
                ReadLine(folder + "/memory.stat", "total_inactive_file "));
  };
  return Least(ReadLine(root + "/proc/meminfo", "MemAvailable:"),
               LeastOfGroups(root, v2, v1));
}

std::optional<uint64_t> HostMemory::Limit() const {
  return Least(cgroup_limit, machine);
}

bool HostMemory::cgroup_is_less() const {
  return cgroup_limit.has_value() && cgroup_limit <= machine.value_or(kNoLimit);
}

HostMemory ReadHostMemory(const std::string& root) {
  HostMemory memory;
  memory.cgroup_limit = CgroupMemoryLimit(root);
  memory.machine = ReadLine(root + "/proc/meminfo", "MemTotal:");
  return memory;
}

absl::StatusOr<HostPoolSize> ChooseHostPoolSize(
    std::optional<uint64_t> configured_bytes, const HostMemory& memory) {
  HostPoolSize size;
  const std::optional<uint64_t> limit = memory.Limit();
  if (configured_bytes) {
    if (limit && *configured_bytes > *limit) {
      return absl::InvalidArgumentError(
          absl::StrCat("host.pool is ", *configured_bytes, " bytes, but ",
                       TooMuch(memory, "host.pool")));
    }
    size.bytes = *configured_bytes;
  } else if (memory.cgroup_is_less() &&
             *limit / 2 < memory.machine.value_or(kNoLimit) / 4) {
    size.bytes = *limit / 2;
    size.note = absl::StrCat("host pool: ", size.bytes / kMiB,
                             " MiB, half of the cgroup's memory limit; set "
                             "host.pool to choose another size");
  } else if (memory.machine) {
    size.bytes = *memory.machine / 4;
    size.note = absl::StrCat("host pool: ", size.bytes / kMiB,
                             " MiB, a quarter of this machine's memory; set "
                             "host.pool to what it can spare");
  } else {
    size.bytes = kUnknownBytes;
    size.note =
        "host pool: 4 GiB, since /proc/meminfo does not say how much memory "
        "there is; set host.pool to what this machine can spare";
  }
  size.bytes -= size.bytes % kStep;
  if (size.bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a host pool of less than 2 MiB holds nothing (host.pool ",
                     configured_bytes.value_or(0), ", memory ",
                     limit.value_or(0), "); set host.pool"));
  }
  return size;
}

absl::StatusOr<uint64_t> ChooseInPlaceSize(
    std::optional<uint64_t> configured_bytes, uint64_t pool_bytes,
    const HostMemory& memory) {
  uint64_t bytes = configured_bytes.value_or(pool_bytes);
  if (const std::optional<uint64_t> limit = memory.Limit()) {
    if (!configured_bytes) {
      const uint64_t most = *limit / 4 * 3;
      bytes = std::min(bytes, most - std::min(most, pool_bytes));
    } else if (bytes > *limit - std::min(*limit, pool_bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("host.in_place is ", bytes, " bytes and the host pool ",
                       pool_bytes, ", but ", TooMuch(memory, "one of them")));
    }
  }
  return bytes - bytes % kStep;
}

absl::StatusOr<uint64_t> ChoosePageableSize(uint64_t configured_bytes,
                                            uint64_t pool_bytes,
                                            const HostMemory& memory) {
  const std::optional<uint64_t> limit = memory.Limit();
  if (limit && configured_bytes > *limit - std::min(*limit, pool_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "host.pageable is ", configured_bytes, " bytes and the host pool ",
        pool_bytes, ", but ", TooMuch(memory, "one of them")));
  }
  return configured_bytes - configured_bytes % kStep;
}

}  // namespace hoistd
