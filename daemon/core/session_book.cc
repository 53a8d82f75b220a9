#include "daemon/core/session_book.h"

#include <algorithm>

#include "daemon/base/check.h"

namespace hoistd {

absl::Status SessionBook::CheckMore(User uid) const {
  return quota_.Check(uid, Quota::kSessions, 1);
}

void SessionBook::Open(SessionId id, const OpenSessionArgs& args,
                       absl::Time now) {
  quota_.Add(args.peer.uid, Quota::kSessions, 1);
  Session& session = sessions_[id];
  session.args = args;
  session.opened = now;
}

void SessionBook::Close(SessionId id) {
  const auto found = sessions_.find(id);
  const Session& session = found->second;
  HOIST_CHECK(session.leases.empty());
  // Of waiting stages.
  for (const auto& [copy, count] : session.claims) {
    quota_.Unuse(session.uid(), copy);
  }
  quota_.Remove(session.uid(), Quota::kSessions, 1);
  const std::set<ModelId> models = session.models;
  for (const ModelId model : models) DoneWith(id, model);
  sessions_.erase(found);
}

const SessionBook::Session* SessionBook::Find(SessionId id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

void SessionBook::Assume(SessionId id, const std::vector<ModelId>& models) {
  sessions_.at(id).assumed = true;
  for (const ModelId model : models) Use(id, model);
}

void SessionBook::Say(SessionId id,
                      const std::optional<std::vector<ModelId>>& models) {
  Session& session = sessions_.at(id);
  session.assumed = false;
  if (!models.has_value()) return;
  const std::set<ModelId> said(models->begin(), models->end());
  const std::set<ModelId> before = session.models;
  for (const ModelId model : before) {
    if (!said.contains(model)) DoneWith(id, model);
  }
}

bool SessionBook::Assumed(ModelId model) const {
  return std::ranges::any_of(sessions_, [&](const auto& entry) {
    return entry.second.assumed && entry.second.models.contains(model);
  });
}

void SessionBook::Use(SessionId id, ModelId model) {
  if (sessions_.at(id).models.insert(model).second) ++users_[model];
}

void SessionBook::DoneWith(SessionId id, ModelId model) {
  if (sessions_.at(id).models.erase(model) == 0) return;
  const auto users = users_.find(model);
  if (--users->second == 0) users_.erase(users);
}

void SessionBook::ForgetModel(ModelId model) {
  if (users_.erase(model) == 0) return;
  for (auto& [id, session] : sessions_) session.models.erase(model);
}

absl::Status SessionBook::CheckClaim(SessionId id, const CopyRef& copy,
                                     uint64_t bytes) const {
  const User uid = sessions_.at(id).uid();
  if (quota_.Uses(uid, copy)) return absl::OkStatus();
  return quota_.CheckDevice(uid, copy.place.at.device, bytes);
}

void SessionBook::Claim(SessionId id, const CopyRef& copy, uint64_t bytes) {
  Session& session = sessions_.at(id);
  if (++session.claims[copy] == 1) quota_.Use(session.uid(), copy, bytes);
  ++session.waiting;
}

void SessionBook::Unclaim(Session& session, const CopyRef& copy) {
  const auto claim = session.claims.find(copy);
  HOIST_CHECK(claim != session.claims.end());
  if (--claim->second > 0) return;
  session.claims.erase(claim);
  quota_.Unuse(session.uid(), copy);
}

void SessionBook::Grant(SessionId id, LeaseId lease, const CopyRef& copy) {
  Session& session = sessions_.at(id);
  HOIST_CHECK(session.waiting > 0 && session.claims.contains(copy));
  --session.waiting;
  session.leases.insert(lease);
  leases_[lease] = {id, copy};
}

void SessionBook::Refuse(SessionId id, const CopyRef& copy) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  HOIST_CHECK(found->second.waiting > 0);
  --found->second.waiting;
  Unclaim(found->second, copy);
}

bool SessionBook::Uses(SessionId id, ModelId model) const {
  const Session* session = Find(id);
  return session != nullptr && session->models.contains(model);
}

const SessionBook::Lease* SessionBook::FindLease(LeaseId id) const {
  const auto found = leases_.find(id);
  return found == leases_.end() ? nullptr : &found->second;
}

SessionBook::Lease SessionBook::EndLease(LeaseId id) {
  const auto found = leases_.find(id);
  HOIST_CHECK(found != leases_.end());
  const Lease lease = found->second;
  leases_.erase(found);
  Session& session = sessions_.at(lease.session);
  session.leases.erase(id);
  Unclaim(session, lease.copy);
  return lease;
}

void SessionBook::Check() const {
  size_t leases = 0;
  absl::flat_hash_map<ModelId, uint32_t> users;
  for (const auto& [id, session] : sessions_) {
    for (const ModelId model : session.models) ++users[model];
    std::map<CopyRef, uint32_t> leased;
    for (const LeaseId lease : session.leases) {
      HOIST_CHECK(leases_.at(lease).session == id);
      ++leased[leases_.at(lease).copy];
    }
    leases += session.leases.size();
    uint64_t claims = 0;
    for (const auto& [copy, count] : session.claims) {
      HOIST_CHECK(leased[copy] <= count);
      claims += count;
    }
    HOIST_CHECK(claims == session.leases.size() + session.waiting);
  }
  HOIST_CHECK(leases == leases_.size());
  HOIST_CHECK(users == users_);
}

}  // namespace hoistd
