// What Admin asks of the daemon itself, beside its engine.
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
  std::vector<std::string> changed;        // They are so from now on.
  std::vector<std::string> needs_restart;  // They differ, and stay till then.
};

struct Setting {
  std::string key;
  std::string value;     // That runs, as TOML has it.
  std::string source;    // "default", "/etc/hoist/hoistd.toml:12", "--set".
  std::string comes_to;  // Of "auto" and the like, where it is one; else "".
  std::string pending;   // What was read since, and needs a restart; else "".
};

// Threads:  thread-safe. Reload reads a file.
class NodeControl {
 public:
  virtual ~NodeControl() = default;

  // Reads the configuration again. An error changes nothing.
  virtual absl::StatusOr<Reloaded> Reload() = 0;
  virtual std::vector<Setting> Settings() = 0;
  // Until it is set again, or log.level is read again. InvalidArgument: there
  // is no such level.
  virtual absl::Status SetLogLevel(absl::string_view level) = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_NODE_CONTROL_H_
