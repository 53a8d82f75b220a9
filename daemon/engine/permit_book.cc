#include "daemon/engine/permit_book.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace hoistd {

void PermitBook::AddDevice(Link& link, Threads* threads) {
  const bool copied_to = link.device().info().kind != DeviceKind::kInPlace;
  desks_.push_back(copied_to ? std::make_unique<PermitDesk>(link, threads)
                             : nullptr);
}

absl::Status PermitBook::Check(SessionId session, User user,
                               DeviceIndex device) const {
  if (device.number() >= desks_.size() || desks_[device.number()] == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("no device ", device.number(), " that is copied to"));
  }
  size_t of_session = 0;
  size_t of_user = 0;
  for (const auto& [id, permit] : permits_) {
    of_session += permit.session == session;
    of_user += permit.user == user;
  }
  if (of_session >= kMostOfSession) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the session has ", of_session,
                     " permits, which is the most; close "
                     "one, or use one of them on several streams"));
  }
  if (of_user >= kMostOfUser) {
    return absl::ResourceExhaustedError(
        absl::StrCat("uid ", user.number(), " has ", of_user,
                     " permits, which is the most; close some"));
  }
  return absl::OkStatus();
}

void PermitBook::Open(
    SessionId session, User user, DeviceIndex device, const ShareOptions& share,
    absl::AnyInvocable<void(absl::StatusOr<OpenedPermit>)> done) {
  absl::Status refused = Check(session, user, device);
  if (!refused.ok()) return done(std::move(refused));
  const PermitId id(++last_);
  const Entry& entry = permits_[id] = {session, user, device, share};
  auto opened = [this, id, done = std::move(done)](
                    absl::StatusOr<PermitShare> memory) mutable {
    post_([this, id, memory = std::move(memory),
           done = std::move(done)]() mutable {
      if (!permits_.contains(id)) {
        return done(absl::CancelledError("the session was closed"));
      }
      if (!memory.ok()) {
        permits_.erase(id);
        return done(memory.status());
      }
      done(
          OpenedPermit{id, std::move(memory->memory), std::move(memory->wake)});
    });
  };
  DeskOf(entry).Open({.id = id, .session = session, .share = share},
                     std::move(opened));
}

absl::Status PermitBook::Close(SessionId session, PermitId id) {
  const auto found = permits_.find(id);
  if (found == permits_.end() || found->second.session != session) {
    return absl::NotFoundError(
        absl::StrCat("the session has no permit ", id.number()));
  }
  DeskOf(found->second).Close(id);
  permits_.erase(found);
  return absl::OkStatus();
}

void PermitBook::CloseAllOf(SessionId session) {
  std::erase_if(permits_, [&](const auto& entry) {
    const auto& [id, permit] = entry;
    if (permit.session != session) return false;
    DeskOf(permit).Close(id);
    return true;
  });
}

absl::StatusOr<ShareChanged> PermitBook::SetShare(PermitId id,
                                                  const ShareChange& change) {
  const auto found = permits_.find(id);
  if (found == permits_.end()) {
    return absl::NotFoundError(absl::StrCat("no permit ", id.number(),
                                            "; `hoistctl status` lists them"));
  }
  ShareChanged changed;
  changed.before = found->second.share;
  found->second.share = changed.after = change.AppliedTo(changed.before);
  DeskOf(found->second).SetShare(id, changed.after);
  return changed;
}

std::vector<PermitStats> PermitBook::Stats(DeviceIndex device) const {
  const PermitDesk* desk = desks_[device.number()].get();
  return desk == nullptr ? std::vector<PermitStats>() : desk->Stats();
}

PermitDesk::Totals PermitBook::Totals(DeviceIndex device) const {
  const PermitDesk* desk = desks_[device.number()].get();
  return desk == nullptr ? PermitDesk::Totals() : desk->AllTotals();
}

}  // namespace hoistd
