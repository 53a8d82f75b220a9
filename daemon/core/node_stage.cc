// Staging, leases and order hints.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/node.h"
#include "daemon/model/model_name.h"

namespace hoistd {
void Node::Bring(const BringArgs& args, absl::Time now, Effects& effects) {
  if (delivery_.Bring(args, now, effects)) Tick(now, effects);
}

void Node::ReadImage(RequestId request, SessionId session, GroupKey key,
                     std::shared_ptr<hoist::UniqueFd> memfd,
                     uint64_t memfd_bytes, absl::Time deadline, absl::Time now,
                     Effects& effects) {
  const absl::Status may = tenure_.CheckRead(session, key, memfd_bytes);
  if (Refuses(effects, request, may)) return;
  BringArgs bring;
  bring.request = request;
  bring.session = session;
  bring.copy = {key, kHost};
  bring.deadline = deadline;
  bring.memfd = std::move(memfd);
  Bring(bring, now, effects);
}

void Node::ReleaseLease(LeaseId id, absl::Time now) {
  const CopyRef ref = tenure_.Release(id, now);
  audit_.DropDamaged(ref, copies_.At(ref));
}

absl::Status Node::Release(SessionId session, const std::vector<LeaseId>& ids,
                           absl::Time now, Effects& effects) {
  absl::Status status;
  for (const LeaseId id : ids) {
    const SessionBook::Lease* lease = tenure_.sessions().FindLease(id);
    if (lease == nullptr || lease->session != session) {
      status = absl::NotFoundError(
          absl::StrCat("lease ", id.number(),
                       " is not held by this session; it may have been "
                       "released before"));
      continue;
    }
    ReleaseLease(id, now);
  }
  Tick(now, effects);
  return status;
}

absl::Status Node::Prefetch(SessionId session, const PrefetchArgs& args,
                            absl::Time now, Effects& effects) {
  HOIST_ASSIGN_OR_RETURN(const ModelPtr model,
                         tenure_.Find(session, args.model));
  if (args.to.tier == Tier::kDisk)
    return Park(session, *model, args, now, effects);
  HOIST_RETURN_IF_ERROR(delivery_.Prefetch(session, args, now, effects));
  Tick(now, effects);
  return absl::OkStatus();
}

absl::Status Node::Park(SessionId session, const Model& model,
                        const PrefetchArgs& args, absl::Time now,
                        Effects& effects) {
  HOIST_ASSIGN_OR_RETURN(const std::vector<CopyRef> copies,
                         registry_.FindParked(session, model, args.groups));
  const auto parked = Evict(copies, now, effects, Leaving::Why::kByWorker);
  if (parked.kept == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(parked.kept, " of ", copies.size(),
                   " groups stay on the host: ", parked.kept_reason));
}

absl::Status Node::SetOrder(SessionId session, SetOrderArgs args,
                            absl::Time now, Effects& effects) {
  const bool ends = args.groups.empty();
  HOIST_RETURN_IF_ERROR(
      tenure_.Announce(session, args.model, std::move(args.groups)));
  if (ends) space_.Changed();  // The model may make room now.
  if (ends && args.forget) registry_.EndUnused(session, args.model);
  Tick(now, effects);
  return absl::OkStatus();
}

}  // namespace hoistd
