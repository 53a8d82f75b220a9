// The requests of Admin to the daemon itself, not to its engine.
#ifndef HOIST_DAEMON_RPC_NODE_CONTROL_H_
#define HOIST_DAEMON_RPC_NODE_CONTROL_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace hoistd {

// Names of keys of hoistd.toml.
struct Reloaded {
  std::vector<std::string> changed;        // In effect from now on.
  std::vector<std::string> needs_restart;  // Differ; unchanged until a restart.
};

struct Setting {
  std::string key;
  std::string value;     // In effect, in TOML's notation.
  std::string source;    // "default", "/etc/hoist/hoistd.toml:12", "--set".
  std::string comes_to;  // The resolved value of "auto" and the like; else "".
  std::string pending;   // A newer value that needs a restart; else "".
};

// Threads:  thread-safe. Reload reads a file.
class NodeControl {
 public:
  virtual ~NodeControl() = default;

  // Reloads the configuration. On an error nothing changes.
  virtual absl::StatusOr<Reloaded> Reload() = 0;
  virtual std::vector<Setting> Settings() = 0;
  // In effect until it is set again, or log.level is reloaded. InvalidArgument:
  // no such level.
  virtual absl::Status SetLogLevel(absl::string_view level) = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_NODE_CONTROL_H_
