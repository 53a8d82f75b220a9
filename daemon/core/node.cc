#include "daemon/core/node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/node_arenas.h"
#include "daemon/core/node_ending.h"

namespace hoistd {

Node::Node(const NodeOptions& options, std::vector<DeviceInfo> devices)
    : options_(options),
      devices_(std::move(devices)),
      names_(devices_),
      quota_(options.quota, names_),
      models_(copies_, quota_, options.users_share_devices),
      sessions_(quota_),
      arenas_(quota_),
      incoming_(quota_),
      plans_(devices_.size(), copies_, sessions_, quota_) {
  HOIST_CHECK(options_.device_capacity_bytes.size() == devices_.size());
  apart_descriptors_.most = options_.apart_descriptors;
  for (size_t i = 0; i < devices_.size(); ++i) {
    const DeviceInfo& device = devices_[i];
    DeviceSpaceOptions space;
    space.device = DeviceIndex(static_cast<uint32_t>(i));
    space.granularity = device.granularity;
    space.capacity_bytes = options_.device_capacity_bytes[i];
    space.slab_bytes = options_.slab_bytes;
    space.apart_descriptors = &apart_descriptors_;
    spaces_.push_back(std::make_unique<DeviceSpace>(space));
    HOIST_CHECK(DeviceSpace::SpanFor(spaces_[i]->capacity(),
                                     device.granularity) <= device.span_bytes);
  }
}

absl::StatusOr<SessionId> Node::OpenSession(const OpenSessionArgs& args,
                                            absl::Time now, Effects& effects) {
  if (draining_) {
    return absl::UnavailableError(
        "hoistd is draining and takes no new sessions; try another node, or "
        "wait for `hoistctl drain --resume`");
  }
  HOIST_RETURN_IF_ERROR(sessions_.CheckMore(args.peer.uid));
  const SessionId id(++last_id_);
  sessions_.Open(id, args, now);
  slabs_.AddSession(id, args.peer.uid, args.closes_slabs);
  if (args.socket != nullptr) Keep(KeptSession{id, args});
  NodeEvent event;
  event.kind = EventKind::kSessionOpened;
  event.session = id;
  event.detail = args.client_name;
  effects.events.push_back(std::move(event));
  return id;
}

void Node::CloseSession(SessionId id, absl::Time now, Effects& effects) {
  const SessionBook::Session* session = sessions_.Find(id);
  if (session == nullptr) return;
  const std::set<LeaseId> leases = session->leases;
  for (const LeaseId lease : leases) ReleaseLease(lease, now);
  std::vector<uint64_t> deserted;
  for (const uint64_t age : needs_.Ages()) {
    Need& need = needs_.At(age);
    const size_t gone = std::erase_if(
        need.waiters, [&](const Waiter& w) { return w.session == id; });
    if (gone == 0) continue;
    needs_.Changed(need);
    if (need.waiters.empty()) deserted.push_back(age);
  }
  // At once: the space that comes free now must not be spent on them.
  for (const uint64_t age : deserted) {
    if (Expire(needs_.At(age), now, effects)) needs_.Erase(age);
  }
  for (const RequestId request : incoming_.WaitingOf(id)) {
    DropIncoming(incoming_.Take(request));
  }
  const size_t plans = plans_.LiveOf(id).size();
  EndPlansOf(id, effects);
  const size_t arenas = NodeArenas(*this).CloseAllOf(id, effects);
  orders_.ForgetSession(id);
  if (session->args.socket != nullptr) Keep(KeptSession{id, std::nullopt});
  sessions_.Close(id);
  NodeEnding(*this).EndOfGone();
  slabs_.RemoveSession(id);
  ++space_epoch_;  // Its slabs are no longer open.
  NodeEvent event;
  event.kind = EventKind::kSessionClosed;
  event.session = id;
  event.detail =
      absl::StrCat("gave back ", leases.size(), " leases, ", plans, " plans");
  if (arenas > 0) absl::StrAppend(&event.detail, ", ", arenas, " arenas");
  effects.events.push_back(std::move(event));
  Tick(now, effects);
}

Resumed Node::Resume(SessionId id, const ResumeArgs& has, absl::Time now,
                     Effects& effects) {
  Resumed resumed;
  const SessionBook::Session* session = sessions_.Find(id);
  if (session == nullptr) return resumed;
  // First: who gets what its plans leave may have idle slabs closed.
  slabs_.Keep(id, std::set<OpenSlab>(has.slabs.begin(), has.slabs.end()));
  const std::set<LeaseId> leases(has.leases.begin(), has.leases.end());
  const std::set<LeaseId> granted = session->leases;
  for (const LeaseId lease : granted) {
    if (!leases.contains(lease)) ReleaseLease(lease, now);
  }
  for (const LeaseId lease : leases) {
    if (!granted.contains(lease)) resumed.lost_leases.push_back(lease);
  }
  const std::set<PlanId> plans(has.plans.begin(), has.plans.end());
  const std::vector<PlanId> live = plans_.LiveOf(id);
  for (const PlanId plan : live) {
    if (!plans.contains(plan)) EndPlan(id, plan, now, effects).IgnoreError();
  }
  for (const PlanId plan : plans) {
    if (std::find(live.begin(), live.end(), plan) == live.end()) {
      resumed.lost_plans.push_back(plan);
    }
  }
  resumed.lost_arenas = NodeArenas(*this).Resume(
      id, std::set<ArenaId>(has.arenas.begin(), has.arenas.end()), effects);
  ++space_epoch_;
  Tick(now, effects);
  return resumed;
}

const Peer* Node::PeerOf(SessionId id) const {
  const SessionBook::Session* session = sessions_.Find(id);
  return session == nullptr ? nullptr : &session->args.peer;
}

void Node::GrowHost(uint64_t ready_bytes, absl::Time now, Effects& effects) {
  uint64_t ready = std::min(ready_bytes, options_.host_capacity_bytes);
  // Nobody gets a piece of where something restored lies.
  for (const auto& [offset, extent] : restored_) {
    if (offset < ready && offset + extent.bytes > ready) {
      ready = offset;
    }
  }
  if (ready <= host_.bytes()) return;
  host_.Grow(ready - host_.bytes());
  PlaceRestored(now, effects);
  ++space_epoch_;
  Tick(now, effects);
}

void Node::Tick(absl::Time now, Effects& effects) {
  NodeEnding(*this).Remove(now, effects);
  if (!spill_failed_.ok() && now >= spill_retry_at_) {
    spill_failed_ = absl::OkStatus();
    ++space_epoch_;  // What could not be spilled may be tried again.
  }
  LookAtAsks(now, effects);
  Pump(now, effects);
  for (const uint64_t age : needs_.Due(now)) {
    if (!needs_.Has(age)) continue;  // Another's end was its end, too.
    if (Expire(needs_.At(age), now, effects)) needs_.Erase(age);
  }
  ExpireIncoming(now, effects);
  ExpirePlans(now, effects);
  NodeArenas(*this).Advance(now, effects);
  NodeArenas(*this).Expire(now, effects);
  // Space that the expired had reserved may do for others.
  Pump(now, effects);
  ExpireIncoming(now, effects);  // What nothing can make room for any more.
  // Those who wait for space had their turn.
  SaveSome(now, effects);
  TakeSlabWork(effects);
}

absl::Time Node::NextDeadline() const {
  absl::Time next = std::min({needs_.NextDeadline(), incoming_.NextDeadline(),
                              plans_.NextDeadline(), arenas_.NextDeadline()});
  if (!needs_.empty() || !plans_.waiting().empty() ||
      !arenas_.waiting().empty()) {
    next = std::min(next, slabs_.due());
  }
  if (!spill_failed_.ok() &&
      (!needs_.empty() || !incoming_.empty() || !to_save_.empty())) {
    next = std::min(next, spill_retry_at_);
  }
  return next;
}

void Node::CheckBooks() const {
  needs_.Check();
  models_.Check();
  sessions_.Check();
  slabs_.Check();
  host_.CheckTotals();
  parts_.Check();
  plans_.Check();
  arenas_.Check();
  for (const auto& space : spaces_) space->Check();
  std::vector<PromiseBook> counted = plans_.CountPromises();
  for (const auto& [id, model] : copies_.models()) {
    for (uint32_t g = 0; g < model->groups.size(); ++g) {
      for (const auto& [place, copy] : model->groups[g].copies) {
        if (place.at.tier != Tier::kDevice) continue;
        if (!Busy(copy)) continue;
        const CopyRef ref = {{id, GroupIndex(g)}, place};
        counted[place.at.device.number()].SetBusy(
            ref, ZoneOf(ref), SpaceOf(*model->groups[g].group));
      }
    }
  }
  for (uint32_t d = 0; d < counted.size(); ++d) {
    HOIST_CHECK(counted[d] == plans_.promises(DeviceIndex(d)));
  }
}

std::string Node::NameOf(GroupKey key) const {
  const ModelEntry* model = copies_.FindModel(key.model);
  const GroupEntry* group = copies_.FindGroup(key);
  if (model == nullptr || group == nullptr) return "?";
  return absl::StrCat(model->model->spec->name, "/", group->group->name);
}

void Node::Note(Effects& effects, EventKind kind, const CopyRef& ref,
                std::string detail) const {
  const ModelEntry* model = copies_.FindModel(ref.key.model);
  const GroupEntry* group = copies_.FindGroup(ref.key);
  NodeEvent event;
  event.kind = kind;
  if (model != nullptr) event.model = model->model->spec->name;
  if (group != nullptr) {
    event.group = group->group->name;
    event.bytes = group->group->image_bytes;
  }
  event.at = ref.place.at;
  event.detail = std::move(detail);
  effects.events.push_back(std::move(event));
}

}  // namespace hoistd
