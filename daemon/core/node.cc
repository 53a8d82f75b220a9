#include "daemon/core/node.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"

namespace hoistd {

Node::Node(const NodeOptions& options, std::vector<DeviceInfo> devices)
    : options_(options),
      devices_(std::move(devices)),
      names_(devices_),
      quota_(options.quota, names_),
      models_(copies_, quota_, options.users_share_devices),
      persisted_(options_.keeps),
      space_(options_, devices_, copies_, models_, spill_, *this, persisted_),
      tenure_(options_, devices_, names_, copies_, models_, quota_, space_,
              persisted_, counters_),
      arenas_(options_, devices_, copies_, models_, quota_, space_, tenure_,
              persisted_, counters_),
      supply_(options_, names_, copies_, models_, quota_, spill_, space_,
              persisted_, counters_),
      audit_(names_, copies_, quota_, space_, supply_, tenure_),
      registry_(options_, copies_, models_, quota_, space_, supply_, tenure_,
                persisted_, ids_) {}

absl::StatusOr<SessionId> Node::OpenSession(const OpenSessionArgs& args,
                                            absl::Time now, Effects& effects) {
  if (tenure_.draining()) {
    return absl::UnavailableError(
        "hoistd is draining and takes no new sessions; try another node, or "
        "wait for `hoistctl drain --resume`");
  }
  HOIST_RETURN_IF_ERROR(tenure_.sessions().CheckMore(args.peer.uid));
  const SessionId id(ids_.Next());
  tenure_.sessions().Open(id, args, now);
  space_.slabs().AddSession(id, args.peer.uid, args.closes_slabs);
  if (args.socket != nullptr) persisted_.Add(PersistedSession{id, args});
  NodeEvent event;
  event.kind = EventKind::kSessionOpened;
  event.session = id;
  event.detail = args.client_name;
  effects.events.push_back(std::move(event));
  return id;
}

void Node::CloseSession(SessionId id, absl::Time now, Effects& effects) {
  const SessionBook::Session* session = tenure_.sessions().Find(id);
  if (session == nullptr) return;
  const std::set<LeaseId> leases = session->leases;
  for (const LeaseId lease : leases) ReleaseLease(lease, now);
  supply_.Leave(id, now);
  registry_.Leave(id);
  const size_t plans = tenure_.plans().LiveOf(id).size();
  std::ranges::move(tenure_.EndPlansOf(id), std::back_inserter(effects.ended));
  const size_t arenas = arenas_.CloseAllOf(id, effects);
  tenure_.orders().ForgetSession(id);
  if (session->args.socket != nullptr) persisted_.Add(PersistedSession{id, {}});
  tenure_.sessions().Close(id);
  registry_.EndOfGone();
  space_.slabs().RemoveSession(id);
  space_.Changed();  // Its slabs are no longer open.
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
  const SessionBook::Session* session = tenure_.sessions().Find(id);
  if (session == nullptr) return resumed;
  // First: users of space that its plans free may have idle slabs closed.
  space_.slabs().Keep(id,
                      std::set<OpenSlab>(has.slabs.begin(), has.slabs.end()));
  const std::set<LeaseId> leases(has.leases.begin(), has.leases.end());
  const std::set<LeaseId> granted = session->leases;
  for (const LeaseId lease : granted) {
    if (!leases.contains(lease)) ReleaseLease(lease, now);
  }
  for (const LeaseId lease : leases) {
    if (!granted.contains(lease)) resumed.lost_leases.push_back(lease);
  }
  const std::set<PlanId> plans(has.plans.begin(), has.plans.end());
  const std::vector<PlanId> live = tenure_.plans().LiveOf(id);
  for (const PlanId plan : live) {
    if (!plans.contains(plan)) EndPlan(id, plan, now, effects).IgnoreError();
  }
  for (const PlanId plan : plans) {
    if (std::find(live.begin(), live.end(), plan) == live.end()) {
      resumed.lost_plans.push_back(plan);
    }
  }
  resumed.lost_arenas = arenas_.Resume(
      id, std::set<ArenaId>(has.arenas.begin(), has.arenas.end()), effects);
  space_.Changed();
  Tick(now, effects);
  return resumed;
}

void Node::LeaseArena(RequestId request, SessionId session,
                      const ArenaArgs& args, absl::Time now, Effects& effects) {
  const ArenaId id(ids_.Next());
  absl::Status opens = arenas_.Open(request, id, session, args, now);
  if (!opens.ok()) {
    effects.answers.push_back({request, std::move(opens)});
    return;
  }
  Tick(now, effects);
}

void Node::Publish(RequestId request, SessionId session,
                   const std::string& model, std::shared_ptr<const Group> group,
                   std::shared_ptr<hoist::UniqueFd> memfd,
                   std::optional<Readers> readers,
                   std::optional<Content> expected, absl::Time deadline,
                   absl::Time now, Effects& effects) {
  Incoming incoming;
  incoming.request = request;
  incoming.session = session;
  incoming.model = model;
  incoming.group = std::move(group);
  incoming.memfd = std::move(memfd);
  incoming.expected = expected;
  incoming.deadline = deadline;
  absl::Status s = registry_.Publish(std::move(incoming), readers);
  if (!s.ok()) {
    effects.answers.push_back({request, std::move(s)});
    return;
  }
  Tick(now, effects);
}

absl::Status Node::EndArena(SessionId session, ArenaId arena, absl::Time now,
                            Effects& effects) {
  HOIST_RETURN_IF_ERROR(arenas_.Close(session, arena, effects));
  Tick(now, effects);
  return absl::OkStatus();
}

void Node::Resize(TierAt at, uint64_t bytes, absl::Time now, Effects& effects) {
  if (at.tier == Tier::kHost) {
    if (!supply_.GrowHost(bytes, now, effects)) return;
  } else {
    space_.device(at.device).SetCapacity(bytes);
    space_.Changed();
  }
  Tick(now, effects);
}

void Node::Tick(absl::Time now, Effects& effects) {
  for (const ModelId id : registry_.TakeEnded(picture())) {
    RemoveModel(id, "its session is over", now, effects);
  }
  // Failed spills may be retried.
  if (spill_.Retry(now)) space_.Changed();
  Tell(space_.LookAtAsks(now), effects);
  tenure_.DecidePlans(now, effects);
  Pump(now, effects);
  supply_.Expire(now, [&](const Waiter& waiter, const Blocked& blocked) {
    return picture().TextFor(tenure_.PeerOf(waiter.session), blocked);
  });
  Follow(now, effects);
  registry_.Expire(now, picture(), effects);
  ExpirePlans(now, effects);
  arenas_.Advance(now, effects);
  Follow(now, effects);
  arenas_.Expire(now, picture(), effects);
  // Space that expired waiters had reserved may serve others.
  Pump(now, effects);
  // Images that can get no room any more.
  registry_.Expire(now, picture(), effects);
  // Waiters for space come first.
  supply_.saver().SaveSome(now, effects);
  Follow(now, effects);
}

absl::Time Node::NextDeadline() const {
  absl::Time next = std::min(
      {supply_.needs().NextDeadline(), registry_.incoming().NextDeadline(),
       tenure_.NextDeadline(), arenas_.book().NextDeadline()});
  if (!supply_.needs().empty() || !tenure_.plans().waiting().empty() ||
      !arenas_.book().waiting().empty()) {
    next = std::min(next, space_.slabs().due());
  }
  if (spill_.failed() &&
      (!supply_.needs().empty() || !registry_.incoming().empty() ||
       supply_.saver().waits())) {
    next = std::min(next, spill_.retry_at());
  }
  if (spill_.put_off()) next = std::min(next, spill_.put_off_until());
  return next;
}

void Node::CheckBooks() const {
  supply_.needs().Check();
  models_.Check();
  tenure_.sessions().Check();
  tenure_.plans().Check();
  arenas_.book().Check();
  space_.Check(tenure_.plans().CountPromises());
}

std::map<User, Holdings> Node::CountHoldings() const {
  QuotaBook counted;
  tenure_.sessions().CountInto(counted, copies_);
  models_.CountInto(counted);
  for (const auto& [id, model] : copies_.models()) {
    for (const GroupEntry& group : model->groups) {
      if (!group.unsaved()) continue;
      counted.Add(model->model->owner, Quota::kPublishedBytes,
                  SpaceOf(*group.group));
    }
  }
  registry_.incoming().CountInto(counted);
  tenure_.plans().CountInto(counted);
  arenas_.book().CountInto(counted);
  return counted.users();
}

}  // namespace hoistd
