// Plans: the node decides, streamers execute, the host reads ahead.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/overloaded.h"
#include "daemon/engine/engine.h"

namespace hoistd {
namespace {

// These codes mean that the replaced plan still stands. It does not, and its
// worker must not use memory that may be others' by now.
absl::Status OldIsGone(const absl::Status& refused) {
  if (!absl::IsResourceExhausted(refused) &&
      !absl::IsInvalidArgument(refused)) {
    return refused;
  }
  return absl::AbortedError(
      absl::StrCat("the plan that was to be replaced has ended, and the new "
                   "one was refused: ",
                   std::string(refused.message())));
}

}  // namespace

LaneSpec Engine::SpecOf(const PlanRecord& record) {
  const PlanGrant& grant = record.grant;
  LaneSpec spec;
  spec.plan = grant.id;
  spec.session = record.session;
  spec.model = grant.model;
  spec.share = record.share;
  spec.stage_deadline = record.stage_deadline;
  spec.order = grant.lane_order;
  for (const PlannedGroup& group : grant.groups) {
    if (group.resident) continue;
    LaneSpec::Streamed streamed;
    streamed.slot = group.slot;
    streamed.device_offset = grant.ring_offset + group.slot.offset;
    streamed.bytes = group.image_bytes;
    streamed.group = group.group;
    spec.groups.push_back(streamed);
  }
  return spec;
}

void Engine::Start(SessionId session, Call<SetPlanArgs> call,
                   Effects& effects) {
  auto& [args, done] = call;
  if (!args.replaces.has_value()) {
    return StartPlan(session, std::move(args), std::move(done), effects);
  }
  // A request invalid in itself leaves the old plan as it is.
  if (auto plan = node_.tenure().offers().Check({session, args}); !plan.ok()) {
    Refused(plan.status());
    return done(plan.status());
  }
  const PlanId old = *args.replaces;
  HOIST_CHECK(node_.EndPlan(session, old, Now(), effects).ok());
  args.replaces.reset();
  Done<OpenedPlan> told =
      [done = std::move(done)](absl::StatusOr<OpenedPlan> opened) mutable {
        if (!opened.ok()) return done(OldIsGone(opened.status()));
        done(std::move(opened));
      };
  after_plan_[old] = [this, session, args = std::move(args),
                      told = std::move(told)](Effects& then) mutable {
    StartPlan(session, std::move(args), std::move(told), then);
  };
}

void Engine::StartPlan(SessionId session, SetPlanArgs args,
                       Done<OpenedPlan> done, Effects& effects) {
  auto shared = std::make_shared<SetPlanArgs>(std::move(args));
  const RequestId request = Await(
      session,
      [this, session, shared, done = std::move(done)](Answer answer) mutable {
        if (!answer.status.ok()) return done(std::move(answer.status));
        OpenLane(session, *shared, *std::move(answer.plan), std::move(done));
      },
      {.kind = TraceKind::kSetPlan, .device = shared->device});
  node_.SetPlan(request, session, *shared, Now(), effects);
}

void Engine::OpenLane(SessionId session, const SetPlanArgs& args,
                      PlanGrant grant, Done<OpenedPlan> done) {
  PlanRecord record = {session, std::move(grant), args.share,
                       args.stage_deadline};
  if (record.grant.lane_order.empty()) {
    KeepPlan(record, {});
    node_.tenure().GiveSlabs(record.grant.id);  // None; it knows its plan.
    return Opened(record.session, {.grant = std::move(record.grant)},
                  std::move(done));
  }
  Streamer& streamer = StreamerOf(record.grant.device);
  LaneSpec spec = SpecOf(record);
  streamer.Open(
      std::move(spec), std::nullopt,
      [this, record = std::move(record),
       done = std::move(done)](absl::StatusOr<LaneShare> share) mutable {
        Post([this, record = std::move(record), done = std::move(done),
              share = std::move(share)](Effects& effects) mutable {
          const PlanId plan = record.grant.id;
          if (node_.tenure().FindPlan(plan) == nullptr) {
            return done(absl::CancelledError("the session was closed"));
          }
          if (!share.ok()) {
            node_.EndPlan(record.session, plan, Now(), effects).IgnoreError();
            return done(share.status());
          }
          KeepPlan(record, *share);
          node_trace_.NamePlan(record.grant, record.session);
          LaneOpened(record.grant, record.share, effects);
          OpenedPlan opened;
          opened.grant = std::move(record.grant);
          // Not earlier: other answers could overtake this one, or the lane
          // could fail. Borrowed from a standing plan.
          opened.grant.new_slabs = node_.tenure().GiveSlabs(plan);
          opened.lane = std::move(share->memory);
          opened.wake = std::move(share->wake);
          Opened(record.session, std::move(opened), std::move(done));
        });
      });
}

void Engine::Opened(SessionId session, OpenedPlan plan, Done<OpenedPlan> done) {
  const PlanId id = plan.grant.id;
  done(std::move(plan));  // Its client knows the plan before the ask.
  words_.AskWhenIdle({session, id, parts_.idle_after});
}

void Engine::LaneOpened(const PlanGrant& grant, const ShareOptions& share,
                        Effects& effects) {
  const PlanId plan = grant.id;
  ReadAhead& ahead =
      lanes_.emplace(plan, ReadAhead(grant, node_.tenure().HoldableBytes(plan)))
          .first->second;
  shares_[plan] = share;
  node_.Hold(plan, ahead.Wanted(Now()), /*urgent=*/false, Now(), effects);
}

// Before the client learns of it.
void Engine::KeepPlan(const PlanRecord& record, const LaneShare& lane) {
  const DeviceIndex device = record.grant.device;
  if (DevicesOf(parts_)[device.number()].backing == Backing::kIpc) return;
  book_.WritePlan(record, lane);
}

void Engine::Start(SessionId session, Call<ClearPlanArgs> call,
                   Effects& effects) {
  auto& [args, done] = call;
  absl::Status status = node_.EndPlan(session, args.plan, Now(), effects);
  if (!status.ok()) return done(std::move(status));
  // The answer confirms that the memory is back.
  after_plan_[args.plan] = [done = std::move(done)](Effects&) mutable {
    done(absl::OkStatus());
  };
}

// No copy may go to the plan's ring after it is freed.
void Engine::PlanEnded(const EndedPlan& ended) {
  const PlanId plan = ended.plan;
  lanes_.erase(plan);
  shares_.erase(plan);
  ++moving_;  // The engine's end waits for it as for a transfer.
  StreamerOf(ended.device).Close(plan, [this, plan] {
    Post([this, plan](Effects& effects) {
      --moving_;
      node_.FreePlan(plan, Now(), effects);
      const auto then = after_plan_.find(plan);
      if (then == after_plan_.end()) return;
      auto run = std::move(then->second);
      after_plan_.erase(then);
      run(effects);
    });
  });
}

void Engine::GroupHeld(const HeldGroup& held) {
  const auto found = lanes_.find(held.plan);
  if (found == lanes_.end()) return;
  ReadAhead& ahead = found->second;
  Streamer& streamer = StreamerOf(ahead.device());
  if (!held.host.ok()) return streamer.Fail(held.plan, held.host.status());
  const std::optional<LaneGroup> group = ahead.LaneOf(held.group);
  HOIST_CHECK(group.has_value());
  ahead.Arrived(*group, Now());
  streamer.HostReady(held.plan, *group, *held.host,
                     /*once=*/!ahead.holds_all());
  // It may have come too late to be used before the missing groups.
  TakeBackStrays(held.plan, ahead);
}

void Engine::PlanCrowded(const CrowdedPlan& crowded) {
  const auto found = lanes_.find(crowded.plan);
  if (found == lanes_.end()) return;
  ReadAhead& ahead = found->second;
  if (ahead.Crowded(crowded.bytes)) {
    StreamerOf(ahead.device()).HostForOnce(crowded.plan);
  }
  TakeBackStrays(crowded.plan, ahead);
}

// Groups that the client has passed must not block the ones it needs.
void Engine::TakeBackStrays(PlanId plan, const ReadAhead& ahead) {
  for (const LaneGroup stray : ahead.Strays()) {
    StreamerOf(ahead.device()).TakeBack(plan, stray);
  }
}

void Engine::HostUsed(PlanId plan, LaneGroup group, absl::Duration step,
                      Effects& effects) {
  const auto found = lanes_.find(plan);
  if (found == lanes_.end() || found->second.holds_all()) return;
  ReadAhead& ahead = found->second;
  ahead.Used(group, step);
  node_.PlanUsed(plan, ahead.GroupOf(group), Now());
  node_.Unhold(plan, ahead.GroupOf(group), Now(), effects);
  node_.Hold(plan, ahead.Wanted(Now()), /*urgent=*/false, Now(), effects);
}

void Engine::HostReturned(PlanId plan, LaneGroup group, Effects& effects) {
  const auto found = lanes_.find(plan);
  if (found == lanes_.end()) return;
  ReadAhead& ahead = found->second;
  ahead.Returned(group);
  node_.Unhold(plan, ahead.GroupOf(group), Now(), effects);
  node_.Hold(plan, ahead.Wanted(Now()), /*urgent=*/false, Now(), effects);
}

void Engine::HostWanted(PlanId plan, LaneGroup group, Effects& effects) {
  const auto found = lanes_.find(plan);
  if (found == lanes_.end()) return;
  ReadAhead& ahead = found->second;
  ahead.Missed(group);
  TakeBackStrays(plan, ahead);
  node_.Hold(plan, ahead.Wanted(Now()), /*urgent=*/false, Now(), effects);
  node_.Hold(plan, {ahead.GroupOf(group)}, /*urgent=*/true, Now(), effects);
}

absl::StatusOr<ShareChanged> Engine::SetShare(const SetShareArgs& args) {
  const ShareChange& change = args.change;
  absl::StatusOr<ShareChanged> changed = std::visit(
      Overloaded{
          [&](PlanId plan) { return SetPlanShare(plan, change); },
          [&](PermitId permit) { return permits_.SetShare(permit, change); },
          [&](DeviceIndex device) { return SetLoadShare(device, change); }},
      args.of);
  if (changed.ok()) KeepShare(args.of, changed->after);
  return changed;
}

absl::StatusOr<ShareChanged> Engine::SetPlanShare(PlanId plan,
                                                  const ShareChange& change) {
  const auto found = shares_.find(plan);
  if (found == shares_.end()) {
    return absl::NotFoundError(
        absl::StrCat("no plan ", plan.number(),
                     " that streams; `hoistctl plans` lists them"));
  }
  ShareChanged changed;
  changed.before = found->second;
  found->second = changed.after = change.AppliedTo(changed.before);
  StreamerOf(lanes_.at(plan).device()).SetShare(plan, changed.after);
  return changed;
}

absl::StatusOr<ShareChanged> Engine::SetLoadShare(DeviceIndex device,
                                                  const ShareChange& change) {
  const std::vector<Link*>& links = parts_.mover.links;
  if (device.number() >= links.size()) {
    return absl::NotFoundError(absl::StrCat("no device ", device.number(),
                                            "; there are ", links.size()));
  }
  if (change.weight.has_value() || change.priority.has_value()) {
    return absl::InvalidArgumentError(
        "loads have neither weight nor priority: they have what plans and who "
        "waits leave; max_bytes_per_second caps them");
  }
  Link& link = *links[device.number()];
  ShareChanged changed;
  changed.before.max_bytes_per_second = link.load_rate();
  changed.after = change.AppliedTo(changed.before);
  link.SetLoadRate(changed.after.max_bytes_per_second);
  return changed;
}

}  // namespace hoistd
