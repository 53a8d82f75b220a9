#include "daemon/app/preflight.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "daemon/app/open_devices.h"
#include "daemon/base/status.h"
#include "daemon/host/host_limits.h"
#include "daemon/socket/peer_process.h"

namespace hoistd {
namespace {

// The nearest existing ancestor, or the path itself.
std::string NearestThere(std::string path) {
  while (access(path.c_str(), F_OK) != 0 && errno == ENOENT) {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) break;
    path.resize(std::max<size_t>(slash, 1));
    if (path == "/") break;
  }
  return path;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return path.substr(0, std::max<size_t>(slash, 1));
}

absl::Status CheckFolder(const std::string& path, int may) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) return ErrnoToStatus(errno, path);
  if (!S_ISDIR(found.st_mode)) return ErrnoToStatus(ENOTDIR, path);
  if (access(path.c_str(), may) != 0) return ErrnoToStatus(errno, path);
  return absl::OkStatus();
}

// `path` is a file or a folder.
absl::Status CheckReadable(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) return ErrnoToStatus(errno, path);
  if (S_ISDIR(found.st_mode)) return CheckFolder(path, R_OK | X_OK);
  if (access(path.c_str(), R_OK) != 0) return ErrnoToStatus(errno, path);
  return absl::OkStatus();
}

class Faults {
 public:
  Faults(const ConfigPlaces& places, const std::string& file)
      : places_(places), file_(file) {}

  bool IsSet(const std::string& key) const { return places_.contains(key); }
  void Add(const std::string& key, absl::string_view why) {
    const auto place = places_.find(key);
    found_.push_back(absl::StrCat(
        place == places_.end() ? file_ : place->second, ": ", key, ": ", why));
  }
  // `cure`: the remedy.
  void Check(const std::string& key, const absl::Status& status,
             absl::string_view cure = "") {
    if (status.ok()) return;
    absl::string_view why = status.message();
    absl::ConsumePrefix(&why, absl::StrCat(key, " "));  // Not twice.
    Add(key, absl::StrCat(why, cure));
  }
  // Skips /run, whose folders are made at the start (RuntimeDirectory).
  void CheckSocket(const std::string& key, const std::string& socket) {
    if (socket.empty() || absl::StartsWith(socket, "/run/")) return;
    Check(key, CheckFolder(FolderOf(socket), W_OK | X_OK),
          "; the folder of the socket must be there and be hoistd's to write");
  }
  void CheckGroup(const std::string& key, const std::string& group) {
    if (group.empty()) return;
    Check(key, GroupByName(group).status(), ", or set it to \"\"");
  }
  std::vector<std::string> Take() { return std::move(found_); }

 private:
  const ConfigPlaces& places_;
  const std::string& file_;
  std::vector<std::string> found_;
};

void CheckMemory(const Config& all, Faults& faults) {
  const HostConfig& config = all.host;
  const HostMemory memory = ReadHostMemory("");
  const absl::StatusOr<HostPoolSize> pool =
      ChooseHostPoolSize(config.pool_bytes, memory);
  faults.Check("host.pool", pool.status());
  if (!pool.ok()) return;
  faults.Check(
      "host.in_place",
      ChooseInPlaceSize(config.in_place_bytes, pool->bytes, memory).status());
  faults.Check("host.pageable",
               PageableSize(all, pool->bytes, memory).status());
}

}  // namespace

std::vector<std::string> FindFaults(const Config& config,
                                    const ConfigPlaces& places,
                                    const std::string& file) {
  Faults faults(places, file);
  faults.CheckGroup("server.group", config.server.group);
  // The default group need not exist: then no group makes an admin.
  if (faults.IsSet("server.admin_group")) {
    faults.CheckGroup("server.admin_group", config.server.admin_group);
  }
  faults.CheckSocket("server.socket", config.server.socket);
  // Else in the folder of server.socket.
  if (faults.IsSet("server.grpc_socket")) {
    faults.CheckSocket("server.grpc_socket", config.server.grpc_socket);
  }
  if (faults.IsSet("metrics.socket")) {
    faults.CheckSocket("metrics.socket", config.metrics.socket);
  }
  for (const TenantConfig& tenant : config.tenants) {
    const std::string key = absl::StrCat("tenant ", tenant.name);
    faults.CheckGroup(key, tenant.group);
    faults.CheckSocket(key, tenant.socket);
    faults.CheckSocket(key, tenant.grpc_socket);
  }
  CheckMemory(config, faults);
  if (!config.disk.spill_dir.empty()) {
    faults.Check("disk.spill_dir",
                 CheckFolder(NearestThere(config.disk.spill_dir), W_OK | X_OK),
                 "; hoistd's user must be able to write there");
  }
  for (const std::string& root : config.models.roots) {
    faults.Check("models.roots", CheckFolder(root, R_OK | X_OK),
                 "; hoistd's user must be able to read it");
  }
  for (const PreloadConfig& model : config.models.preload) {
    faults.Check("models.preload", CheckReadable(model.path),
                 "; hoistd's user must be able to read it");
  }
  faults.Check("device.backend", OpenDevices(config.device).status());
  return faults.Take();
}

absl::StatusOr<uint64_t> PageableSize(const Config& config, uint64_t pool_bytes,
                                      const HostMemory& memory) {
  if (config.host.pageable_bytes > 0 && config.disk.spill_dir.empty()) {
    return absl::InvalidArgumentError(
        "host.pageable holds images that disk.spill_dir has, too: set that, or "
        "host.pageable to 0");
  }
  return ChoosePageableSize(config.host.pageable_bytes, pool_bytes, memory);
}

absl::StatusOr<uint64_t> SpillCapacity(const DiskConfig& config) {
  if (config.spill_capacity_bytes.has_value()) {
    return *config.spill_capacity_bytes;
  }
  const std::string there = NearestThere(config.spill_dir);
  struct statvfs disk;
  if (statvfs(there.c_str(), &disk) != 0) return ErrnoToStatus(errno, there);
  return uint64_t{disk.f_bavail} * disk.f_frsize / 10 * 9;
}

}  // namespace hoistd
