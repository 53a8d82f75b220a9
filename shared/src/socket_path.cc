#include "hoist/shared/socket_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace hoist {
namespace {

constexpr char kSessionSocketName[] = "/hoistd.sock";
constexpr mode_t kWritableByOthers = 022;
constexpr mode_t kOpenToOthers = 077;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// A runtime folder that nobody else can put anything into.
bool IsRuntimeFolder(const std::string& path) {
  struct stat info;
  return !path.empty() && path.front() == '/' &&
         stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
         info.st_uid == geteuid() && (info.st_mode & kWritableByOthers) == 0;
}

// What is wrong with a folder for a user's own sockets; nullopt: nothing. Not
// followed if it is a link, which its maker can turn elsewhere.
std::optional<std::string> Unsafe(const std::string& folder) {
  struct stat info;
  if (lstat(folder.c_str(), &info) != 0) {
    return ErrnoStatus(errno, folder).message();
  }
  if (!S_ISDIR(info.st_mode)) return folder + " is not a folder";
  if (info.st_uid != geteuid()) {
    return folder + " belongs to uid " + std::to_string(info.st_uid) +
           ", not to " + std::to_string(geteuid());
  }
  if ((info.st_mode & kOpenToOthers) != 0) {
    return folder + " is open to other users";
  }
  return std::nullopt;
}

// Best first. The last lies in /tmp, which is sticky: what is ours there nobody
// else can move away.
std::vector<std::string> UserFolders() {
  const std::string uid = std::to_string(geteuid());
  const std::string named = Variable("XDG_RUNTIME_DIR");
  const std::string usual = "/run/user/" + uid;
  std::vector<std::string> folders;
  if (IsRuntimeFolder(named)) folders.push_back(named + "/hoist");
  // A shell without the variable (sudo, cron) finds what another one started.
  if (named != usual && IsRuntimeFolder(usual)) {
    folders.push_back(usual + "/hoist");
  }
  folders.push_back("/tmp/hoist-" + uid);
  return folders;
}

}  // namespace

std::vector<std::string> SessionSocketsToTry() {
  if (std::string named = Variable(kSocketPathVariable); !named.empty()) {
    return {std::move(named)};
  }
  std::vector<std::string> sockets;
  for (const std::string& folder : UserFolders()) {
    if (!Unsafe(folder).has_value()) {
      sockets.push_back(folder + kSessionSocketName);
    }
  }
  sockets.push_back(kDefaultSocketPath);
  return sockets;
}

std::string GrpcSocketBeside(const std::string& session_socket) {
  constexpr std::string_view kEnding = ".sock";
  std::string stem = session_socket;
  if (stem.size() > kEnding.size() &&
      stem.compare(stem.size() - kEnding.size(), kEnding.size(), kEnding) ==
          0) {
    stem.resize(stem.size() - kEnding.size());
  }
  return stem + ".grpc.sock";
}

Result<std::string> MakeUserSocketFolder() {
  const std::string folder = UserFolders().front();
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, "make " + folder);
  }
  if (const auto why = Unsafe(folder); why.has_value()) {
    return Status(Code::kFailedPrecondition,
                  *why +
                      "; remove it or close it to others (chmod 700), or "
                      "name a folder of your own in XDG_RUNTIME_DIR");
  }
  return folder;
}

}  // namespace hoist
