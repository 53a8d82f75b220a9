// Models by name and by content, and who may read and share them.
#ifndef HOIST_DAEMON_CORE_MODEL_BOOK_H_
#define HOIST_DAEMON_CORE_MODEL_BOOK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/quota.h"
#include "daemon/core/requests.h"
#include "daemon/model/model_name.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// AlreadyExists, in words: what the name has is something else.
absl::Status OtherWeights(const ModelSpec& has, const Fingerprint& wanted);
// The same if it is there for others than those `wanted`, if any are.
absl::Status CheckReaders(const Model& has, std::optional<Readers> wanted);

// A user has one model of a name. A model is found by its name and its content,
// as they are now, has an entry for each group of its spec, and counts for its
// owner in `quota`: as one, with the memory of its header, and its files.
//
// Threads:  one at a time.
// Owns:     names and contents. Borrows `copies`, where the models are, and
//           `quota`; both must outlive this object.
// Bounds:   as many models as quotas allow; a number for each tenant that ever
//           had one.
class ModelBook {
 public:
  // users_share_devices: as in NodeOptions.
  ModelBook(CopyTable& copies, QuotaBook& quota, bool users_share_devices);
  ModelBook(const ModelBook&) = delete;
  ModelBook& operator=(const ModelBook&) = delete;

  // ResourceExhausted: it is more than its owner may have.
  absl::Status CheckMore(User owner, const ModelSpec& spec) const;
  // The same of one more group of a published model, the first one perhaps.
  absl::Status CheckAppend(User owner, const std::string& model,
                           const Group& group) const;

  // A model read from files. The owner has none of that name.
  ModelEntry& Add(ModelId id, std::shared_ptr<const ModelSpec> spec, User owner,
                  Readers readers);
  // A published one, which has no groups yet.
  ModelEntry& AddPublished(ModelId id, const std::string& name, User owner,
                           Readers readers);
  // Its next group. As hoistd::AppendGroup says; then nothing has changed.
  absl::Status Append(ModelEntry& entry, std::shared_ptr<const Group> group,
                      const Content& content);
  // With its copies: nothing uses it.
  void Remove(ModelId id);

  // nullptr: this user has none of that name.
  ModelEntry* Named(User owner, const std::string& name);
  const ModelEntry* Named(User owner, const std::string& name) const;
  // nullptr: none of this content that the user may share.
  ModelPtr Shared(User asker, const Content& content, bool published) const;
  // The model that a name means (MeantBy) for who asks. NotFound: there is
  // none, or they may not read it.
  absl::StatusOr<ModelPtr> Find(const Peer& asker,
                                const std::string& name) const;
  // NotFound: there is none, or they may not read it.
  absl::StatusOr<ModelPtr> Find(const Peer& asker, ModelId id) const;

  static bool MayRead(const Peer& peer, const Model& model);
  // FailedPrecondition: another user's, and users share no device memory.
  absl::Status CheckShares(const Peer& peer, const Model& model) const;
  // Stands for who may read the model, as long as hoistd lives: for Zone.
  uint64_t ReadersOf(const Model& model) const;
  // The same for one user, who may have no model yet; nullopt: for everyone.
  uint64_t ReadersOf(const std::optional<User>& reader);
  // Whom that stands for. It came from ReadersOf.
  std::optional<User> ReaderOf(uint64_t readers) const;

  // Puts what the models' owners hold into `counted`, anew.
  void CountInto(QuotaBook& counted) const;
  // That each model is found as said above, and no other; what is not so is our
  // bug. For tests.
  void Check() const;

 private:
  ModelEntry& Enlist(ModelId id, std::shared_ptr<const ModelSpec> spec,
                     User owner, Readers readers);
  void Unfile(const Content& content, ModelId id);

  CopyTable& copies_;
  QuotaBook& quota_;
  const bool users_share_devices_;
  std::map<OwnedName, ModelId> named_;
  absl::flat_hash_map<Content, std::set<ModelId>> by_content_;
  std::map<User, uint64_t> tenant_numbers_;  // Of who ever had a model.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_MODEL_BOOK_H_
