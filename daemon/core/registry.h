// Registry: adds models from files and from clients, and removes them.
#ifndef HOIST_DAEMON_CORE_REGISTRY_H_
#define HOIST_DAEMON_CORE_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/effects.h"
#include "daemon/core/id_source.h"
#include "daemon/core/incoming_book.h"
#include "daemon/core/model_book.h"
#include "daemon/core/node_options.h"
#include "daemon/core/persisted.h"
#include "daemon/core/quota.h"
#include "daemon/core/requests.h"
#include "daemon/core/space.h"
#include "daemon/core/supply.h"
#include "daemon/core/tenure.h"
#include "daemon/types/ids.h"

namespace hoistd {

class NodePicture;

// A model that ends with its session has a name that says so (EndsWith in
// model_name.h), which no client can give. So each hoistd that finds it knows,
// whatever else is lost.
//
// Threads:  one at a time.
// Owns:     images being received, and the set of ending models. Borrows the
//           rest, which must outlive this object.
// Bounds:   as IncomingBook and quotas.
class Registry {
 public:
  Registry(const NodeOptions& options, CopyTable& copies, ModelBook& models,
           QuotaBook& quota, Space& space, Supply& supply, Tenure& tenure,
           PersistedLog& persisted, IdSource& ids);
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // --- Additions ----------------------------------------------------------

  // Adds a model read from files. Returns an existing model instead if the user
  // has that name with the same weights, or if any user has the same files
  // readable by everyone. AlreadyExists: the user has that name with other
  // weights or other readers. ResourceExhausted: the user has too many models.
  absl::StatusOr<ModelPtr> AddModel(SessionId session,
                                    std::shared_ptr<const ModelSpec> spec,
                                    std::optional<Readers> readers,
                                    Effects& effects);
  // A group of the last hoistd; a model's groups in order. InvalidArgument: it
  // lies nowhere, or where it cannot.
  absl::Status Restore(const RestoredGroup& restored);
  // The published model had `groups` groups. Those left have been restored; the
  // others are missing.
  void HadGroups(const User& owner, const std::string& model, uint32_t groups);

  // An error refuses the request. Else it is answered once the image has been
  // received and verified; DataLoss: not as expected.
  absl::Status Publish(Incoming incoming, std::optional<Readers> readers);
  // Starts to receive the image once there is space for it. If the group
  // exists, its bytes are only compared. True: call again once TakeWork has
  // been handled.
  bool Advance(RequestId request, absl::Time now, Effects& effects);
  // Refuses requests past their deadline.
  void Expire(absl::Time now, const NodePicture& picture, Effects& effects);
  // Ends all waits of the session.
  void Leave(SessionId session);
  // The transfer that received an image has ended.
  void Received(TransferId id, const absl::Status& status,
                const Content& content, absl::Time now, Effects& effects);
  const IncomingBook& incoming() const { return incoming_; }

  // --- Removals -----------------------------------------------------------

  // A model that the session may forget. PermissionDenied: another user's, and
  // the session is no admin's.
  absl::StatusOr<ModelPtr> FindOwn(SessionId session, ModelId model) const;
  // Host copies of groups of a model that ends with the session.
  // PermissionDenied: it does not.
  absl::StatusOr<std::vector<CopyRef>> FindParked(
      SessionId session, const Model& model,
      const std::vector<GroupIndex>& groups) const;
  // Ends models of absent sessions, now or after their last use. To be called
  // at a session's end, and after all sessions are restored.
  void EndOfGone();
  // Ends a model of the session's user after its last use, unless a session
  // asks for it before, or an admin has pinned it.
  void EndUnused(SessionId session, ModelId model);
  // Ending models that are no longer in use, each once.
  std::vector<ModelId> TakeEnded(const NodePicture& picture);
  // Its copies are gone, and nothing waits for it.
  void Remove(const ForgottenModel& gone, const std::string& why,
              Effects& effects);

 private:
  // By a session, or by an admin who pinned it.
  bool IsWanted(const ModelEntry& entry) const;
  bool GoesOnPublishing(SessionId session, const std::string& model) const;
  bool ForgetUnreferenced(const Incoming& incoming, uint64_t bytes,
                          absl::Time now);
  absl::StatusOr<bool> MakeRoom(const Incoming& incoming, absl::Time now,
                                Effects& effects);
  bool IsThere(const Incoming& incoming) const;
  bool Place(const Incoming& incoming, uint64_t bytes, absl::Time now);
  absl::StatusOr<ModelPtr> Adopt(const Incoming& incoming,
                                 const Content& content, absl::Time now,
                                 Effects& effects);
  static void Repair(ModelEntry& model, GroupIndex index, Effects& effects);
  void Drop(const Incoming& incoming);

  const NodeOptions& options_;
  CopyTable& copies_;
  ModelBook& models_;
  QuotaBook& quota_;
  Space& space_;
  Supply& supply_;
  Tenure& tenure_;
  PersistedLog& persisted_;
  IdSource& ids_;
  IncomingBook incoming_;
  std::set<ModelId> ending_;  // Nobody asks for them; still in use.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_REGISTRY_H_
