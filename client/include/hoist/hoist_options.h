// Options of hoist.h's calls. Part of hoist.h, which includes this.
#ifndef HOIST_HOIST_OPTIONS_H_
#define HOIST_HOIST_OPTIONS_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "hoist/hoist_c.h"
#include "hoist/hoist_types.h"

namespace hoist {
inline namespace v0 {

// hoistd's SHA-256 of a published group or model; see hoist_find_content.
using Content = std::array<uint8_t, HOIST_CONTENT_BYTES>;

enum class Readers {  // Who may read a model.
  kDefault = HOIST_READERS_DEFAULT,
  kOwner = HOIST_READERS_OWNER,
  kEveryone = HOIST_READERS_EVERYONE,
};

struct ConnectOptions {     // Of Session::Connect.
  std::string socket_path;  // Empty: $HOIST_SOCKET, else as hoist_c.h says.
  std::string client_name;  // Empty: the program's.
  uint64_t device_budget_bytes = 0;  // Leased at once, a device; 0: no limit.
  std::chrono::milliseconds connect_deadline{0};  // 0: one try.
  std::chrono::milliseconds call_deadline{0};     // 0: 10 minutes.
};

enum class Grouping {  // How tensors are grouped; see hoist_c.h.
  kBlock = HOIST_GROUPS_BLOCK,
  kModule = HOIST_GROUPS_MODULE,
  kWhole = HOIST_GROUPS_WHOLE,
};

struct GroupSpec {  // A group of RegisterOptions.
  std::string name;
  std::vector<std::string> tensors;  // In image order.
};

struct JoinedPart {    // Bytes of a tensor in the files: a run, or several.
  std::string tensor;  // In the files.
  uint64_t offset_bytes = 0;  // Of the first run.
  uint64_t size_bytes = 0;    // Of each. 0, for one run: to its end.
  uint64_t count = 0;         // Runs; 0: one.
  uint64_t stride_bytes = 0;  // From a run's first byte to the next one's.
};

// A tensor that the files hold in parts: the parts' bytes, end to end.
struct JoinedTensor {
  std::string name;  // Not a name in the files. Groups name it, not its parts.
  std::vector<int64_t> shape;
  std::vector<JoinedPart> parts;
};

struct RegisterOptions {  // A model in files.
  std::string name;
  std::string path;  // A safetensors or GGUF file, or a folder of them.
  Grouping grouping = Grouping::kBlock;
  std::vector<GroupSpec> groups = {};  // If any: replace `grouping`.
  Readers readers = Readers::kDefault;
  std::vector<JoinedTensor> joined = {};
};

// Where a model is found, now and by later hoistds: by its name, in files, or
// by its content.
using ModelSource = std::variant<std::string, RegisterOptions, Content>;

namespace internal {

// With the socket of the environment, if none is given.
inline ConnectOptions Resolved(ConnectOptions options) {
  const char* set = std::getenv("HOIST_SOCKET");
  if (options.socket_path.empty() && set != nullptr) options.socket_path = set;
  return options;
}

// The C API's form of options; points into them.
inline hoist_connect_options InC(const ConnectOptions& options) {
  auto given = Sized<hoist_connect_options>();
  given.socket_path = options.socket_path.c_str();
  if (!options.client_name.empty()) {
    given.client_name = options.client_name.c_str();
  }
  given.device_budget_bytes = options.device_budget_bytes;
  given.connect_deadline_ms = Count(options.connect_deadline);
  given.call_deadline_ms = Count(options.call_deadline);
  return given;
}

// As above, with arrays of its own.
class Registration {
 public:
  explicit Registration(const RegisterOptions& options)
      : names_(options.groups.size()), parts_(options.joined.size()) {
    for (const GroupSpec& group : options.groups) {
      auto& names = names_[groups_.size()];
      for (const std::string& tensor : group.tensors) {
        names.push_back(tensor.c_str());
      }
      groups_.push_back({group.name.c_str(), names.data(), names.size()});
    }
    for (const JoinedTensor& tensor : options.joined) {
      auto& parts = parts_[joined_.size()];
      for (const JoinedPart& part : tensor.parts) {
        parts.push_back({part.tensor.c_str(), part.offset_bytes,
                         part.size_bytes, part.count, part.stride_bytes});
      }
      joined_.push_back({tensor.name.c_str(),
                         static_cast<int>(tensor.shape.size()),
                         tensor.shape.data(), parts.data(), parts.size()});
    }
    given_.name = options.name.c_str();
    given_.path = options.path.c_str();
    given_.grouping = groups_.empty() ? static_cast<int>(options.grouping)
                                      : int{HOIST_GROUPS_EXPLICIT};
    given_.groups = groups_.data();
    given_.group_count = groups_.size();
    given_.readers = static_cast<int>(options.readers);
    given_.joined = joined_.data();
    given_.joined_count = joined_.size();
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  const hoist_register_options* get() const { return &given_; }

 private:
  std::vector<std::vector<const char*>> names_;
  std::vector<std::vector<hoist_joined_part>> parts_;
  std::vector<hoist_group_spec> groups_;
  std::vector<hoist_joined_tensor> joined_;
  hoist_register_options given_ = Sized<hoist_register_options>();
};

}  // namespace internal

}  // namespace v0
}  // namespace hoist

#endif  // HOIST_HOIST_OPTIONS_H_
