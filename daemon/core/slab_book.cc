#include "daemon/core/slab_book.h"

#include <algorithm>

#include "daemon/base/check.h"

namespace hoistd {

void SlabBook::AddSession(SessionId id, User uid, bool closes_slabs) {
  sessions_[id] = {.uid = uid, .closes_slabs = closes_slabs, .slabs = {}};
}

void SlabBook::RemoveSession(SessionId id) {
  for (const auto& [where, given] : sessions_.at(id).slabs) NotOpen(id, where);
  sessions_.erase(id);
}

bool SlabBook::Use(SessionId id, DeviceIndex device, const SlabSpec& slab) {
  const Where where = {device, slab.id};
  const auto [it, is_new] = sessions_.at(id).slabs.try_emplace(where);
  Given& given = it->second;
  // After an ask it may have closed the slab already.
  const bool send = is_new || given.asked != 0 || given.unsent;
  given = {.bytes = slab.bytes, .uses = given.uses + 1};
  openers_[where].insert(id);
  return send;
}

void SlabBook::MayBeOpen(SessionId id, DeviceIndex device,
                         const SlabSpec& slab) {
  const Where where = {device, slab.id};
  sessions_.at(id).slabs.try_emplace(where, Given{.bytes = slab.bytes});
  openers_[where].insert(id);
}

void SlabBook::Keep(SessionId id, const std::set<OpenSlab>& slabs) {
  auto& given = sessions_.at(id).slabs;
  for (auto it = given.begin(); it != given.end();) {
    const Where& where = it->first;
    if (slabs.contains(where)) {
      ++it;
    } else if (it->second.uses > 0) {
      it->second.unsent = true;
      ++it;
    } else {
      NotOpen(id, where);
      it = given.erase(it);
    }
  }
}

bool SlabBook::Leave(SessionId id, DeviceIndex device, SlabId slab) {
  const Where where = {device, slab};
  auto& slabs = sessions_.at(id).slabs;
  const auto given = slabs.find(where);
  HOIST_CHECK(given != slabs.end() && given->second.uses > 0);
  if (--given->second.uses > 0) return false;
  if (given->second.unsent) {
    NotOpen(id, where);
    slabs.erase(given);
  }
  return true;
}

void SlabBook::NotOpen(SessionId id, const Where& where) {
  const auto found = openers_.find(where);
  found->second.erase(id);
  if (found->second.empty()) openers_.erase(found);
}

bool SlabBook::Ask(DeviceIndex device, const std::vector<SlabId>& slabs,
                   std::optional<User> uid, absl::Time now,
                   std::vector<SlabAsk>& asks) {
  bool keeps = false;
  const auto ask = [&](const Where& where) {
    for (const SessionId id : openers_.at(where)) {
      if (uid.has_value() && sessions_.at(id).uid != *uid) continue;
      keeps |= AskOne(id, where, now, asks);
    }
  };
  for (const SlabId slab : slabs) ask({device, slab});
  if (!AnswerIsLate(device)) return keeps;
  for (const auto& [where, openers] : openers_) {
    if (where.device == device && !IsUsed(where)) ask(where);
  }
  return keeps;
}

bool SlabBook::AnswerIsLate(DeviceIndex device) const {
  return std::ranges::any_of(sessions_, [&](const auto& session) {
    return std::ranges::any_of(session.second.slabs, [&](const auto& slab) {
      return slab.first.device == device && slab.second.late &&
             !slab.second.kept;
    });
  });
}

bool SlabBook::IsUsed(const Where& where) const {
  return std::ranges::any_of(
      openers_.at(where), [&](SessionId id) { return At(id, where).uses > 0; });
}

bool SlabBook::AskOne(SessionId id, const Where& where, absl::Time now,
                      std::vector<SlabAsk>& asks) {
  Session& session = sessions_.at(id);
  Given& given = session.slabs.at(where);
  HOIST_CHECK(given.uses == 0);
  if (given.asked != 0 || given.kept) return false;
  if (!session.closes_slabs) {
    given.kept = true;
    return true;
  }
  auto ask = std::find_if(asks.begin(), asks.end(), [&](const SlabAsk& other) {
    return other.session == id && other.device == where.device;
  });
  if (ask == asks.end()) {
    ask = asks.insert(ask, {id, where.device, ++last_ask_, {}});
  }
  ask->slabs.push_back(where.slab);
  given.asked = ask->number;
  given.late = false;
  given.look_at = now + kPrompt;
  LookNoLaterThan(given.look_at);
  return false;
}

bool SlabBook::Closed(SessionId id, const SlabsClosedArgs& closed,
                      absl::Time now) {
  const auto session = sessions_.find(id);
  if (session == sessions_.end() || closed.number == 0) return false;
  const std::set<SlabId> gone(closed.slabs.begin(), closed.slabs.end());
  auto& slabs = session->second.slabs;
  for (auto it = slabs.begin(); it != slabs.end();) {
    const Where& where = it->first;
    Given& given = it->second;
    // Given again since the ask: the answer is void.
    if (where.device != closed.device || given.asked != closed.number) {
      ++it;
    } else if (gone.contains(where.slab)) {
      NotOpen(id, where);
      it = slabs.erase(it);
    } else {
      given.asked = 0;
      given.late = false;
      given.kept = true;
      given.look_at = now + kAskAgain;
      LookNoLaterThan(given.look_at);
      ++it;
    }
  }
  return true;
}

SlabBook::Looked SlabBook::LookAt(absl::Time now) {
  Looked looked;
  if (now < due_) return looked;
  due_ = absl::InfiniteFuture();
  for (auto& [id, session] : sessions_) {
    Silent silent = {.session = id, .uid = session.uid, .device = {}};
    for (auto& [where, given] : session.slabs) {
      if (!Waits(session, given)) continue;
      if (given.look_at <= now && given.asked != 0 && !given.late) {
        given.late = looked.changed = true;
        given.look_at += kAnswerPatience - kPrompt;
      }
      if (given.look_at > now) {
        LookNoLaterThan(given.look_at);
        continue;
      }
      looked.changed = true;
      given.kept = given.asked != 0;
      if (!given.kept) continue;
      silent.device = where.device;
      silent.bytes += given.bytes;
    }
    if (silent.bytes > 0) looked.silent.push_back(silent);
  }
  return looked;
}

bool SlabBook::HasOpen(SessionId id, DeviceIndex device, SlabId slab) const {
  return sessions_.at(id).slabs.contains({device, slab});
}

Opened SlabBook::OpenedBy(DeviceIndex device, SlabId slab) const {
  const Where where = {device, slab};
  const auto found = openers_.find(where);
  if (found == openers_.end()) return Opened::kNobody;
  for (const SessionId id : found->second) {
    const Given& given = At(id, where);
    if (given.uses > 0 || given.kept) return Opened::kKept;
  }
  return Opened::kIdle;
}

bool SlabBook::Keeps(SessionId id, DeviceIndex device) const {
  return std::ranges::any_of(sessions_.at(id).slabs, [&](const auto& slab) {
    return slab.first.device == device && slab.second.kept;
  });
}

uint64_t SlabBook::KeptBytes(DeviceIndex device,
                             std::optional<User> uid) const {
  uint64_t bytes = 0;
  for (const auto& [where, openers] : openers_) {
    if (where.device != device) continue;
    const auto keeps = [&, &at = where](SessionId id) {
      return At(id, at).kept &&
             (!uid.has_value() || sessions_.at(id).uid == *uid);
    };
    const auto keeper = std::find_if(openers.begin(), openers.end(), keeps);
    if (keeper != openers.end()) bytes += At(*keeper, where).bytes;
  }
  return bytes;
}

std::vector<SlabBook::Idle> SlabBook::IdleOf(
    User uid, DeviceIndex device, const std::vector<SlabSpec>& but) const {
  std::vector<Idle> idle;
  for (const auto& [where, openers] : openers_) {
    if (where.device != device) continue;
    const auto is_this = [&, slab = where.slab](const SlabSpec& spec) {
      return spec.id == slab;
    };
    if (std::any_of(but.begin(), but.end(), is_this)) continue;
    Idle slab = {.slab = where.slab};
    bool used = false;
    for (const SessionId id : openers) {
      if (sessions_.at(id).uid != uid) continue;
      const Given& given = At(id, where);
      slab.bytes = given.bytes;
      slab.kept |= given.kept;
      used |= given.uses > 0;
    }
    if (!used && slab.bytes > 0) idle.push_back(slab);
  }
  return idle;
}

SlabBook::InUse SlabBook::UsedBy(User uid, DeviceIndex device,
                                 const std::vector<SlabSpec>& more) const {
  std::map<SlabId, uint64_t> used;
  for (const SlabSpec& slab : more) used[slab.id] = slab.bytes;
  for (const auto& [where, openers] : openers_) {
    if (where.device != device) continue;
    for (const SessionId id : openers) {
      const Given& given = At(id, where);
      if (given.uses > 0 && sessions_.at(id).uid == uid) {
        used[where.slab] = given.bytes;
      }
    }
  }
  InUse all;
  for (const auto& [slab, bytes] : used) {
    all.bytes += bytes;
    all.largest = std::max(all.largest, bytes);
  }
  return all;
}

void SlabBook::Check() const {
  size_t open = 0;
  for (const auto& [id, session] : sessions_) {
    open += session.slabs.size();
    for (const auto& [where, given] : session.slabs) {
      HOIST_CHECK(openers_.at(where).contains(id));
      HOIST_CHECK(given.uses == 0 || (given.asked == 0 && !given.kept));
      HOIST_CHECK(given.uses > 0 || !given.unsent);
      HOIST_CHECK(!Waits(session, given) || due_ <= given.look_at);
    }
  }
  for (const auto& [where, openers] : openers_) {
    HOIST_CHECK(!openers.empty());
    open -= openers.size();
  }
  HOIST_CHECK(open == 0);
}

}  // namespace hoistd
