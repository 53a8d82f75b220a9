// Copiers: who has which, and what they have copied.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine.h"

namespace hoistd {
namespace {

// One for each stream that copies at the same time is enough; each costs hoistd
// a page, an eventfd and a look a turn of its link.
constexpr size_t kMostOfSession = 8;
constexpr size_t kMostOfUser = 256;

}  // namespace

absl::Status Engine::CheckCopier(SessionId session, DeviceIndex device) const {
  const Peer* peer = node_.PeerOf(session);
  if (peer == nullptr) return absl::NotFoundError("the session is closed");
  const std::vector<Link*>& links = parts_.mover.links;
  if (device.number() >= links.size() ||
      links[device.number()]->device().info().kind == DeviceKind::kInPlace) {
    return absl::NotFoundError(
        absl::StrCat("no device ", device.number(), " that is copied to"));
  }
  size_t of_session = 0;
  size_t of_user = 0;
  for (const auto& [id, copier] : copiers_) {
    of_session += copier.session == session;
    of_user += copier.user == peer->uid;
  }
  if (of_session >= kMostOfSession) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the session has ", of_session,
                     " copiers, which is the most; close "
                     "one, or use one of them on several streams"));
  }
  if (of_user >= kMostOfUser) {
    return absl::ResourceExhaustedError(
        absl::StrCat("uid ", peer->uid.number(), " has ", of_user,
                     " copiers, which is the most; close some"));
  }
  return absl::OkStatus();
}

void Engine::OpenCopier(SessionId session, OpenCopierArgs args,
                        Done<OpenedCopier> done) {
  Post([this, session, args, done = std::move(done)](Effects&) mutable {
    if (absl::Status s = CheckCopier(session, args.device); !s.ok()) {
      Refused(s);
      return done(std::move(s));
    }
    const CopierId id(++last_copier_);
    copiers_[id] = {session, node_.PeerOf(session)->uid, args.device,
                    args.share};
    desks_[args.device.number()]->Open(
        {.id = id, .session = session, .share = args.share},
        [this, id,
         done = std::move(done)](absl::StatusOr<CopierShare> share) mutable {
          Post([this, id, share = std::move(share),
                done = std::move(done)](Effects&) mutable {
            if (!copiers_.contains(id)) {
              return done(absl::CancelledError("the session was closed"));
            }
            if (!share.ok()) {
              copiers_.erase(id);
              return done(share.status());
            }
            done(OpenedCopier{id, std::move(share->memory),
                              std::move(share->wake)});
          });
        });
  });
}

void Engine::CloseCopier(SessionId session, CopierId copier, DoneStatus done) {
  Post([this, session, copier, done = std::move(done)](Effects&) mutable {
    const auto found = copiers_.find(copier);
    if (found == copiers_.end() || found->second.session != session) {
      return done(absl::NotFoundError(
          absl::StrCat("the session has no copier ", copier.number())));
    }
    desks_[found->second.device.number()]->Close(copier);
    copiers_.erase(found);
    done(absl::OkStatus());
  });
}

void Engine::CloseCopiersOf(SessionId session) {
  std::erase_if(copiers_, [&](const auto& entry) {
    const auto& [id, copier] = entry;
    if (copier.session != session) return false;
    desks_[copier.device.number()]->Close(id);
    return true;
  });
}

absl::StatusOr<ShareChanged> Engine::SetCopierShare(CopierId copier,
                                                    const ShareChange& change) {
  const auto found = copiers_.find(copier);
  if (found == copiers_.end()) {
    return absl::NotFoundError(absl::StrCat("no copier ", copier.number(),
                                            "; `hoistctl status` lists them"));
  }
  ShareChanged changed;
  changed.before = found->second.share;
  found->second.share = changed.after = change.AppliedTo(changed.before);
  desks_[found->second.device.number()]->SetShare(copier, changed.after);
  return changed;
}

void Engine::AddCopiers(DeviceIndex device, LinkSnapshot& link) const {
  const CopierDesk& desk = *desks_[device.number()];
  const CopierDesk::Totals totals = desk.AllTotals();
  link.own_bytes = totals.copied_bytes;
  link.own_read_bytes = totals.read_bytes;
  for (const CopierStats& stats : desk.Stats()) {
    link.copiers.push_back({.id = stats.id,
                            .session = stats.session,
                            .client_name = {},
                            .share = stats.share,
                            .copied_bytes = stats.copied_bytes,
                            .read_bytes = stats.read_bytes,
                            .grants = stats.grants,
                            .late_grants = stats.late});
  }
}

}  // namespace hoistd
