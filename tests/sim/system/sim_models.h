// The simulation's models: files in memory, and published ones.
#ifndef HOIST_TESTS_SIM_SYSTEM_SIM_MODELS_H_
#define HOIST_TESTS_SIM_SYSTEM_SIM_MODELS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/requests.h"
#include "daemon/model/tensor.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd::sim {

inline constexpr uint64_t kPage = 4096;

// The weights that a name stands for.
struct FileModel {
  uint32_t name = 0;     // Below kNames.
  uint32_t variant = 0;  // Below kVariants.

  auto operator<=>(const FileModel&) const = default;
};

// Made once per process, before its cases.
//
// Threads: immutable once made.
class SimModels {
 public:
  static constexpr uint32_t kNames = 3;
  static constexpr uint32_t kVariants = 2;
  static constexpr uint32_t kContents = 6;

  SimModels();

  static std::string NameOf(uint32_t name);  // Of files.
  RegisterModelArgs Files(FileModel model) const;
  static std::string ImageOf(FileModel model, const Group& group);

  // A group of a published model, with content number `content`.
  PublishArgs Publication(const std::string& model, const std::string& group,
                          uint32_t content) const;
  const std::string& Published(uint32_t content) const {
    return published_[content];
  }

 private:
  struct File {
    std::string name;
    hoist::UniqueFd fd;
  };

  std::map<FileModel, std::vector<File>> files_;
  std::vector<std::string> published_;
  std::vector<hoist::UniqueFd> memfds_;  // Likewise.
};

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_SIM_MODELS_H_
