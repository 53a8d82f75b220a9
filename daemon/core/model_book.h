// Models by name and by content, their readers and sharing.
#ifndef HOIST_DAEMON_CORE_MODEL_BOOK_H_
#define HOIST_DAEMON_CORE_MODEL_BOOK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/quota.h"
#include "daemon/core/requests.h"
#include "daemon/model/model_name.h"
#include "daemon/types/ids.h"

namespace hoistd {

// AlreadyExists: the name has other weights; the text says so.
absl::Status OtherWeights(const ModelSpec& has, const Fingerprint& wanted);
// AlreadyExists if the model has other readers than `wanted`, if given.
absl::Status CheckReaders(const Model& has, std::optional<Readers> wanted);

// A user has at most one model of a name. A model is indexed by its name, and
// has an entry for each group of its spec. In `quota` it counts for its owner
// as one model, with its header's memory and its files.
//
// Threads:  one at a time.
// Owns:     names. Borrows `copies`, where the models are, and
//           `quota`; both must outlive this object.
// Bounds:   as many models as quotas allow; one number per tenant that ever
//           had a model.
class ModelBook {
 public:
  // users_share_devices: as in NodeOptions.
  ModelBook(CopyTable& copies, QuotaBook& quota, bool users_share_devices);
  ModelBook(const ModelBook&) = delete;
  ModelBook& operator=(const ModelBook&) = delete;

  // ResourceExhausted: the model exceeds its owner's quota.
  absl::Status CheckMore(User owner, const ModelSpec& spec) const;
  // The same for one more group of a published model, perhaps its first.
  absl::Status CheckAppend(User owner, const std::string& model,
                           const Group& group) const;

  // A model read from files. The owner has none of that name.
  ModelEntry& Add(ModelId id, std::shared_ptr<const ModelSpec> spec, User owner,
                  Readers readers);
  // A published model without groups.
  ModelEntry& AddPublished(ModelId id, const std::string& name, User owner,
                           Readers readers);
  // Adds its group at `place`. Errors as WithGroup; then nothing has changed.
  absl::Status Put(ModelEntry& entry, GroupIndex place,
                   std::shared_ptr<const Group> group, const Content& content);
  // The published model has `groups` groups; those past its end are missing.
  void LeavePlaces(ModelEntry& entry, uint32_t groups);
  // Removes the model and its copies; nothing uses it.
  void Remove(ModelId id);

  // nullptr: the user has no model of that name.
  ModelEntry* Named(User owner, const std::string& name);
  const ModelEntry* Named(User owner, const std::string& name) const;
  // A model of this content that the user may share. nullptr: none.
  ModelPtr Shared(User asker, const Content& content, bool published) const;
  // The model that the name means to the asker (MeantBy). NotFound: none, or
  // not readable by the asker.
  absl::StatusOr<ModelPtr> Find(const Peer& asker,
                                const std::string& name) const;
  // NotFound: no such model, or not readable by the asker.
  absl::StatusOr<ModelPtr> Find(const Peer& asker, ModelId id) const;

  static bool MayRead(const Peer& peer, const Model& model);
  // FailedPrecondition: another user's model, and users share no device memory.
  absl::Status CheckShares(const Peer& peer, const Model& model) const;
  // The number of the model's readers, for Zone; constant for hoistd's life.
  uint64_t ReadersOf(const Model& model) const;
  // The same for one user, perhaps without a model yet; nullopt: everyone.
  uint64_t ReadersOf(const std::optional<User>& reader);
  // The inverse of ReadersOf.
  std::optional<User> ReaderOf(uint64_t readers) const;

  // Checks that the index matches the models; a mismatch is our bug. For tests.
  void Check() const;

 private:
  ModelEntry& Enlist(ModelId id, std::shared_ptr<const ModelSpec> spec,
                     User owner, Readers readers);
  void SetSpec(ModelEntry& entry, std::shared_ptr<const ModelSpec> spec);

  CopyTable& copies_;
  QuotaBook& quota_;
  const bool users_share_devices_;
  std::map<OwnedName, ModelId> named_;
  std::map<User, uint64_t> tenant_numbers_;  // Of tenants that ever had a
                                             // model.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_MODEL_BOOK_H_
