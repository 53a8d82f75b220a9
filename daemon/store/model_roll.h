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

// How many groups each published model had, written or not: by this a start
// sees what it lacks. Images alone do not tell, since those that were published
// last are those that no disk had.
//
// One file a model, models/HASH, HASH being the SHA-256 of what names the
// model: the XXH3-128 of what follows; u32 groups, u32 the owner's uid, u32
// bytes of the tenant, the tenant, the model. It is replaced whole, by rename.
//
// Threads:  one at a time.
// Owns:     the directory's descriptor.
// Bounds:   a file a model, until it is forgotten.
// Restart:  what was answered with OK is there after a power cut; what was not
//           is there, or what was there before.
class ModelRoll {
 public:
  using Models = std::map<std::pair<User, std::string>, uint32_t>;

  // Reads the directory `path`, of a store that is locked. Says in `notes`
  // what could not be read; the rest is there.
  static absl::StatusOr<ModelRoll> Open(const std::string& path,
                                        std::vector<std::string>& notes);

  const Models& models() const { return models_; }
  // The model has so many groups by now, or had more once: what is missing is
  // missed until it is there, or the model is forgotten (0). After an error
  // it counts here, and is written with the next.
  absl::Status Set(const User& owner, const std::string& model,
                   uint32_t groups);

 private:
  using Model = Models::key_type;

  explicit ModelRoll(hoist::UniqueFd dir) : dir_(std::move(dir)) {}

  absl::Status Read(std::vector<std::string>& notes);
  absl::Status ReadOne(const std::string& name);
  // Brings the file of `model` to what counts.
  absl::Status Write(const Model& model);

  hoist::UniqueFd dir_;
  Models models_;
  std::set<Model> unwritten_;
};

// A model's file. nullopt: bytes that no EncodeRollFile makes.
using RollEntry = ModelRoll::Models::value_type;
std::string EncodeRollFile(const RollEntry& entry);
std::optional<RollEntry> DecodeRollFile(absl::string_view bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_MODEL_ROLL_H_
