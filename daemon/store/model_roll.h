#ifndef HOIST_DAEMON_STORE_MODEL_ROLL_H_
#define HOIST_DAEMON_STORE_MODEL_ROLL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/types/user.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Records the number of groups of each published model, spilled or not. By it a
// start detects missing groups. Images alone cannot show them: the groups that
// were published last may never have reached the disk.
//
// One file per model, models/HASH, where HASH is the SHA-256 of the model's
// owner and name. It has the XXH3-128 of the rest, then u32 groups, u32 owner's
// uid, u32 bytes of the tenant, the tenant, the model. A rename replaces it.
//
// Threads:  one at a time.
// Owns:     the directory's descriptor.
// Bounds:   one file per model, until it is forgotten.
// Restart:  a write that returned OK survives a power cut. After one that did
//           not, either the new or the old contents are there.
class ModelRoll {
 public:
  using Models = std::map<std::pair<User, std::string>, uint32_t>;

  // Reads the directory `path` of a locked store. `notes` gets the unreadable
  // files; the others are loaded.
  static absl::StatusOr<ModelRoll> Open(const std::string& path,
                                        std::vector<std::string>& notes);

  const Models& models() const { return models_; }
  // Raises the model's number of groups to `groups`; it never falls, so missing
  // groups count as missing until they are back. 0 forgets the model. After an
  // error the number counts in memory, and the next Set retries the write.
  absl::Status Set(const User& owner, const std::string& model,
                   uint32_t groups);

 private:
  using Model = Models::key_type;

  explicit ModelRoll(hoist::UniqueFd dir) : dir_(std::move(dir)) {}

  absl::Status Read(std::vector<std::string>& notes);
  absl::Status ReadOne(const std::string& name);
  // Updates the file of `model` to the number in memory.
  absl::Status Write(const Model& model);

  hoist::UniqueFd dir_;
  Models models_;
  std::set<Model> unwritten_;
};

// A model's file. nullopt: not an output of EncodeRollFile.
using RollEntry = ModelRoll::Models::value_type;
std::string EncodeRollFile(const RollEntry& entry);
std::optional<RollEntry> DecodeRollFile(absl::string_view bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_MODEL_ROLL_H_
