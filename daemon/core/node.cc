#include "daemon/core/node.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/model/model_name.h"

namespace hoistd {
namespace {

NodeEvent EventOf(const SlabBook::Silent& silent) {
  NodeEvent event;
  event.kind = EventKind::kSlabsHeldOpen;
  event.session = silent.session;
  event.at = OnDevice(silent.device);
  event.bytes = silent.bytes;
  event.detail = absl::StrCat("by an idle worker of uid ", silent.uid.number(),
                              " that does not answer");
  return event;
}

}  // namespace

Node::Node(const NodeOptions& options, std::vector<DeviceInfo> devices)
    : options_(options),
      devices_(std::move(devices)),
      names_(devices_),
      copies_(options.pageable_bytes),
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
      delivery_(copies_, quota_, space_, supply_, tenure_, audit_, counters_,
                ids_),
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
  effects.events.push_back({.kind = EventKind::kSessionOpened,
                            .session = id,
                            .detail = args.client_name});
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
  tenure_.headroom().Leave(id);
  tenure_.orders().ForgetSession(id);
  if (session->args.socket != nullptr) persisted_.Add(PersistedSession{id, {}});
  tenure_.sessions().Close(id);
  registry_.EndOfGone();
  space_.slabs().RemoveSession(id);
  space_.Changed();  // Its slabs are no longer open.
  std::string had =
      absl::StrCat("gave back ", leases.size(), " leases, ", plans, " plans");
  if (arenas > 0) absl::StrAppend(&had, ", ", arenas, " arenas");
  effects.events.push_back({.kind = EventKind::kSessionClosed,
                            .session = id,
                            .detail = std::move(had)});
  Tick(now, effects);
}

Resumed Node::Resume(SessionId id, const ResumeArgs& has, absl::Time now,
                     Effects& effects) {
  Resumed resumed;
  const SessionBook::Session* session = tenure_.sessions().Find(id);
  if (session == nullptr) return resumed;
  tenure_.sessions().Say(id, has.models);
  // First: users of space that its plans free may have idle slabs closed.
  space_.slabs().Keep(id,
                      std::set<OpenSlab>(has.slabs.begin(), has.slabs.end()));
  const std::set<LeaseId> leases(has.leases.begin(), has.leases.end());
  const std::set<LeaseId> granted = session->leases;
  for (const LeaseId lease : granted) {
    if (!leases.contains(lease)) ReleaseLease(lease, now);
  }
  std::ranges::set_difference(leases, granted,
                              std::back_inserter(resumed.lost_leases));
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
  const absl::Status opens = arenas_.Open(request, id, session, args, now);
  if (!Refuses(effects, request, opens)) Tick(now, effects);
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
  const absl::Status taken = registry_.Publish(std::move(incoming), readers);
  if (!Refuses(effects, request, taken)) Tick(now, effects);
}

absl::Status Node::EndArena(SessionId session, ArenaId arena, absl::Time now,
                            Effects& effects) {
  HOIST_RETURN_IF_ERROR(arenas_.Close(session, arena, effects));
  Tick(now, effects);
  return absl::OkStatus();
}

void Node::Resize(TierAt at, PoolSize size, absl::Time now, Effects& effects) {
  if (at.tier == Tier::kHost) {
    if (!supply_.GrowHost(size.bytes, now, effects)) return;
  } else {
    tenure_.headroom().Resize(at.device, size);
  }
  Tick(now, effects);
}

void Node::Tick(absl::Time now, Effects& effects) {
  for (const ModelId id : registry_.TakeEnded(picture())) {
    const std::string& name = copies_.FindModel(id)->model->spec->name;
    RemoveModel(id, EndsWith(name) ? "its session is over" : "nobody uses it",
                now, effects);
  }
  // Failed spills may be retried.
  if (spill_.Retry(now)) space_.Changed();
  for (const SlabBook::Silent& silent : space_.LookAtAsks(now)) {
    effects.events.push_back(EventOf(silent));
  }
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
  tenure_.headroom().Keep(now, effects);  // What they left idle may go.
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

}  // namespace hoistd
