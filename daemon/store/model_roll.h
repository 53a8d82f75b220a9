#ifndef HOIST_DAEMON_STORE_MODEL_ROLL_H_
#define HOIST_DAEMON_STORE_MODEL_ROLL_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/terms/user.h"

namespace hoistd {

// How many groups each published model had, written or not: by this a start
// sees what it lacks. Images alone do not tell, since those that were published
// last are those that no disk had.
//
// A log beside the catalogue, since that changes with images alone. A record is
// the XXH3-128 of what follows; u32 its bytes, u32 groups (0: it is forgotten),
// u32 the owner's uid, u32 bytes of the tenant, the tenant, the model. The last
// of a model counts, and damage ends what is read.
//
// Threads:  one at a time.
// Owns:     the file; there is none before the first Set.
// Bounds:   a record a model, and a mebibyte of those that no longer count.
// Restart:  what was answered with OK is there after a power cut.
class ModelRoll {
 public:
  using Models = std::map<std::pair<User, std::string>, uint32_t>;

  // Reads `path`, in the folder of a store that is locked. Says in `notes`
  // what could not be read; the rest is there.
  static ModelRoll Open(const std::string& path,
                        std::vector<std::string>& notes);

  const Models& models() const { return models_; }
  // The model has so many groups by now, or had more once: what is missing is
  // missed until it is there, or the model is forgotten (0). After an error
  // it counts here, and is written with the next.
  absl::Status Set(const User& owner, const std::string& model,
                   uint32_t groups);

 private:
  explicit ModelRoll(std::string path) : path_(std::move(path)) {}

  void Read(std::vector<std::string>& notes);
  absl::Status Append(const std::string& record);
  // All that counts, in place of what is there.
  absl::Status WriteAnew();

  std::string path_;
  Models models_;
  uint64_t bytes_ = 0;   // Of the file.
  bool broken_ = false;  // It is to be written anew.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_MODEL_ROLL_H_
