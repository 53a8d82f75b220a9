// Plans in the rig, whose rings and holds are labelled memory too; slabs, and
// who uses which model.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/recount.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing {
namespace {

std::string Shown(const std::map<User, Holdings>& users) {
  std::string text;
  for (const auto& [uid, holdings] : users) {
    absl::StrAppend(&text, ToString(uid), ":");
    for (const auto& [what, amount] : holdings.amounts) {
      absl::StrAppend(&text, " ", static_cast<int>(what), "=", amount);
    }
    for (const auto& [device, bytes] : holdings.device_bytes) {
      absl::StrAppend(&text, " device ", device.number(), "=", bytes);
    }
    for (const auto& [ref, use] : holdings.uses) {
      absl::StrAppend(&text, " ", ref.key.model.number(), "/",
                      ref.key.group.number(), " on ", ToString(ref.place.at),
                      " x", use.count);
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace

SetPlanArgs NodeRig::PlanArgs(ModelId model, const std::vector<uint32_t>& order,
                              uint64_t budget_pages, absl::Duration deadline,
                              std::optional<PlanId> replaces,
                              uint32_t device) const {
  SetPlanArgs args;
  args.model = model;
  args.device = DeviceIndex(device);
  args.budget_bytes = budget_pages * kPage;
  for (const uint32_t group : order) args.order.emplace_back(group);
  args.deadline = deadline;
  args.replaces = replaces;
  return args;
}

RequestId NodeRig::SetPlan(SessionId session, ModelId model,
                           std::vector<uint32_t> order, uint64_t budget_pages,
                           absl::Duration deadline,
                           std::optional<PlanId> replaces, uint32_t device) {
  return SetPlan(session, PlanArgs(model, order, budget_pages, deadline,
                                   replaces, device));
}

RequestId NodeRig::SetPlan(SessionId session, const SetPlanArgs& args) {
  const RequestId request = NewRequest(session);
  Effects effects;
  node_->SetPlan(request, session, args, now, effects);
  Take(std::move(effects));
  CloseAtOnce();
  Check();
  return request;
}

absl::Status NodeRig::CheckPlan(SessionId session, ModelId model,
                                std::vector<uint32_t> order,
                                uint64_t budget_pages,
                                std::optional<PlanId> replaces) const {
  return node_->tenure()
      .offers()
      .Check({session, PlanArgs(model, order, budget_pages, absl::Seconds(10),
                                replaces, 0)})
      .status();
}

PlanGrant NodeRig::PlanOf(RequestId request) const {
  const Answer* answer = AnswerTo(request);
  if (answer == nullptr) {
    ADD_FAILURE() << "not answered yet";
    return {};
  }
  EXPECT_OK(answer->status);
  return answer->plan.value_or(PlanGrant());
}

absl::Status NodeRig::EndPlan(SessionId session, PlanId plan) {
  Effects effects;
  const absl::Status status = node_->EndPlan(session, plan, now, effects);
  Take(std::move(effects));
  CloseAtOnce();
  Check();
  return status;
}

void NodeRig::FreePlan(PlanId plan) {
  ASSERT_EQ(std::erase(ended_, plan), 1u) << "it has not ended";
  const PlanGrant grant = plans_.at(plan).grant;
  Fill(device_memory_[grant.device.number()], grant.ring_offset,
       grant.ring_bytes, nullptr);
  plans_.erase(plan);
  rings_.erase(plan);
  Effects effects;
  node_->FreePlan(plan, now, effects);
  Take(std::move(effects));
  CloseAtOnce();
  Check();
}

void NodeRig::Hold(PlanId plan, std::vector<uint32_t> groups, bool urgent) {
  std::vector<GroupIndex> indexes;
  for (const uint32_t group : groups) {
    const GroupIndex index(group);
    indexes.push_back(index);
    const auto found = plans_.find(plan);
    if (found == plans_.end() || found->second.ended) continue;
    if (!found->second.holds.contains(index)) {
      found->second.asked.insert(index);
    }
  }
  Effects effects;
  node_->Hold(plan, indexes, urgent, now, effects);
  Take(std::move(effects));
  CloseAtOnce();
  Check();
}

void NodeRig::Unhold(PlanId plan, uint32_t group) {
  if (const auto found = plans_.find(plan); found != plans_.end()) {
    found->second.holds.erase(GroupIndex(group));
  }
  Effects effects;
  node_->Unhold(plan, GroupIndex(group), now, effects);
  Take(std::move(effects));
  CloseAtOnce();
  Check();
}

void NodeRig::Stands(SessionId session, const PlanGrant& grant) {
  const uint32_t d = grant.device.number();
  EXPECT_LE(grant.resident_bytes + grant.ring_bytes, grant.budget_bytes);
  uint64_t residents = 0;
  for (const PlannedGroup& group : grant.groups) {
    const uint64_t space = std::max(group.image_bytes, kPage);
    if (group.resident) {
      residents += space;
      continue;
    }
    EXPECT_GE(group.slot.bytes, space);
    EXPECT_LE(group.slot.offset + group.slot.bytes, grant.ring_bytes);
  }
  EXPECT_EQ(residents, grant.resident_bytes);
  EXPECT_TRUE(plans_.emplace(grant.id, StandingPlan{session, grant}).second);
  if (options_.backing != Backing::kIpc)
    book_.plans[grant.id] = {session, grant};
  const std::vector<SlabUse> slabs = node_->tenure().GiveSlabs(grant.id);
  if (grant.ring_bytes == 0) return;
  Sent(session, grant.device, slabs);
  EXPECT_TRUE(devices_[d]->Covers(grant.ring_offset, grant.ring_bytes));
  const Label ring = (rings_[grant.id] = std::make_unique<int>()).get();
  Fill(device_memory_[d], grant.ring_offset, grant.ring_bytes, ring);
}

void NodeRig::TakePlans(const Effects& effects) {
  for (const HeldGroup& held : effects.held) {
    const auto found = plans_.find(held.plan);
    ASSERT_NE(found, plans_.end()) << "a hold of a plan that was freed";
    StandingPlan& plan = found->second;
    EXPECT_EQ(plan.asked.erase(held.group), 1u) << "held twice, or unasked";
    if (!held.host.ok()) {
      failed_holds_.emplace_back(held.group, held.host.status());
      continue;
    }
    EXPECT_FALSE(plan.ended) << "a hold for a plan that has ended";
    EXPECT_TRUE(plan.holds.emplace(held.group, *held.host).second);
  }
  for (const CrowdedPlan& crowded : effects.crowded) {
    EXPECT_FALSE(plans_.at(crowded.plan).holds.empty());
    crowded_.emplace_back(crowded.plan, crowded.bytes);
  }
  for (const EndedPlan& ended : effects.ended) {
    const auto found = plans_.find(ended.plan);
    ASSERT_NE(found, plans_.end());
    EXPECT_FALSE(found->second.ended) << "ended twice";
    EXPECT_EQ(found->second.grant.device, ended.device);
    found->second.ended = true;
    ended_.push_back(ended.plan);
  }
}

void NodeRig::CheckPlans() const {
  for (const auto& [id, plan] : plans_) {
    const PlanGrant& grant = plan.grant;
    if (grant.ring_bytes > 0) {
      ExpectAll(device_memory_[grant.device.number()], grant.ring_offset,
                grant.ring_bytes, rings_.at(id).get(), "a ring was written to");
    }
    if (plan.holds.empty()) continue;
    const auto spec = node_->copies().SpecOf(grant.model);
    ASSERT_OK(spec) << "a model with a plan was forgotten";
    // Whether the plan has ended or not: copies may still be under way.
    for (const auto& [group, ranges] : plan.holds) {
      ExpectRanges(ranges, *(*spec)->groups[group.number()],
                   "a held host copy changed");
    }
  }
}

void NodeRig::CheckQuotas() const {
  const QuotaBook& book = node_->quota();
  const std::map<User, Holdings> counted = CountHoldings(node_->books());
  node_->CheckBooks();
  EXPECT_TRUE(book.users() == counted)
      << Shown(book.users()) << "counted anew:\n"
      << Shown(counted);
  for (const auto& [uid, holdings] : book.users()) {
    // What plans hold may be more, by what is urgent.
    for (const Quota what :
         {Quota::kSessions, Quota::kPlans, Quota::kModels, Quota::kDescriptors,
          Quota::kHeaderBytes, Quota::kPublishedBytes}) {
      // What was left counts once it is found right, and others' may be
      // published meanwhile.
      if (what == Quota::kPublishedBytes && generation_ > 0) continue;
      EXPECT_LE(holdings.Of(what), book.LimitOf(uid, what));
    }
    // A plan that was being ended counts until its session has said so.
    if (resuming_) continue;
    for (const auto& [device, bytes] : holdings.device_bytes) {
      EXPECT_LE(bytes, book.DeviceLimitOf(uid, device));
    }
  }
}

// --- Slabs ------------------------------------------------------------------

void NodeRig::Sent(SessionId session, DeviceIndex device,
                   const std::vector<SlabUse>& slabs) {
  for (const SlabUse& use : slabs) {
    open_slabs_[session][{device, use.slab.id}] = use.slab;
  }
}

bool NodeRig::Uses(SessionId session, DeviceIndex device,
                   const SlabSpec& slab) const {
  const auto meets = [&](DeviceIndex on, uint64_t offset, uint64_t bytes) {
    return on == device && offset < slab.offset + slab.bytes &&
           slab.offset < offset + bytes;
  };
  for (const auto& [id, lease] : leases_) {
    const LeaseGrant& grant = lease.second;
    if (lease.first == session &&
        meets(grant.device, grant.offset, grant.bytes)) {
      return true;
    }
  }
  for (const auto& [id, plan] : plans_) {
    if (plan.session == session &&
        meets(plan.grant.device, plan.grant.ring_offset,
              plan.grant.ring_bytes)) {
      return true;
    }
  }
  return false;
}

void NodeRig::TakeAsks(const Effects& effects) {
  for (const SlabAsk& ask : effects.asks) {
    EXPECT_TRUE(closed_.emplace(ask.number, std::vector<SlabId>()).second);
    EXPECT_NE(ask.number, 0u);
    for (const SlabId slab : ask.slabs) {
      auto& open = open_slabs_[ask.session];
      const auto found = open.find({ask.device, slab});
      ASSERT_NE(found, open.end()) << "asks for what the session has not";
      EXPECT_FALSE(Uses(ask.session, ask.device, found->second))
          << "asks for what is in use";
      if (keep_slabs) continue;
      closed_[ask.number].push_back(slab);
      open.erase(found);
    }
    asks_.push_back(ask);
  }
}

void NodeRig::AnswerAsk() {
  const SlabAsk ask = asks_.front();
  asks_.erase(asks_.begin());
  Effects effects;
  node_->SlabsClosed(ask.session, {ask.device, ask.number, closed_[ask.number]},
                     now, effects);
  Take(std::move(effects));
  CloseAtOnce();
  Check();
}

void NodeRig::CloseAtOnce() {
  if (options_.closing != NodeRigOptions::Closing::kAtOnce) return;
  if (!asks_.empty()) AnswerAsk();
}

void NodeRig::DoNextSlab(uint32_t d, absl::Status status) {
  std::deque<SlabWork>& queue = slab_work_[DeviceIndex(d)];
  ASSERT_FALSE(queue.empty()) << "nothing is to be made";
  const SlabWork work = queue.front();
  queue.pop_front();
  FakeDevice& device = *devices_[d];
  if (work.kind == SlabWork::Kind::kDestroy) {
    EXPECT_OK(device.DestroySlab(work.slab.id));
    return;
  }
  if (work.kind == SlabWork::Kind::kZero) {
    return ZeroNext(work, std::move(status));
  }
  if (status.ok()) status = device.CreateSlab(work.slab);
  const absl::StatusOr<SlabShare> made =
      status.ok() ? device.Share(work.slab.id) : status;
  if (made.ok() && work.slab.writable) {
    Fill(device_memory_[d], work.slab.offset, work.slab.bytes, nullptr);
  }
  Effects effects;
  node_->SlabMade(work.device, work.slab.id, made, now, effects);
  Take(std::move(effects));
  CloseAtOnce();
  Check();
}

void NodeRig::DoSlabWork() {
  constexpr int kMostAtOnce = 500;  // Each that is made may ask for one more.
  if (++slab_depth_ == kMostAtOnce) {
    ADD_FAILURE() << "slabs are made and given back for ever";
    endless_ = true;
  }
  for (uint32_t d = 0; d < devices_.size(); ++d) {
    while (!endless_ && !slab_work(d).empty()) DoNextSlab(d);
  }
  --slab_depth_;
}

void NodeRig::CheckSlabWork(const TierUse& tier) {
  const uint32_t d = tier.at.device.number();
  uint64_t has = tier.allocated_bytes;
  for (const SlabWork& work : slab_work(d)) {
    if (work.kind == SlabWork::Kind::kDestroy) {
      has += work.slab.bytes;
    } else if (work.kind == SlabWork::Kind::kMake) {
      has -= work.slab.bytes;
    }
  }
  EXPECT_EQ(has, devices_[d]->bytes());
}

// Of slabs apart, once what was asked for has been done.
void NodeRig::CheckDescriptors() {
  uint64_t used = 0;
  const auto each = [](const SlabSpec& slab) -> uint64_t {
    return !slab.apart ? 0 : slab.backing == Backing::kMemfd ? 2 : 1;
  };
  for (uint32_t d = 0; d < devices_.size(); ++d) {
    for (const auto& [id, slab] : devices_[d]->slabs()) used += each(slab);
    for (const SlabWork& work : slab_work(d)) {
      if (work.kind == SlabWork::Kind::kZero) continue;
      used += work.kind == SlabWork::Kind::kDestroy ? -each(work.slab)
                                                    : each(work.slab);
    }
  }
  EXPECT_LE(used, options_.apart_descriptors);
}

void NodeRig::CheckSlabs() const {
  for (const auto& [session, open] : open_slabs_) {
    for (const auto& [place, slab] : open) {
      EXPECT_TRUE(devices_[place.first.number()]->slabs().contains(slab.id))
          << "a slab went that session " << session.number() << " has open";
    }
  }
  for (const auto& [id, lease] : leases_) {
    const auto& [session, grant] = lease;
    const auto open = open_slabs_.find(session);
    uint64_t covered = 0;
    if (open != open_slabs_.end()) {
      for (const auto& [place, slab] : open->second) {
        if (place.first != grant.device) continue;
        const uint64_t begin = std::max(slab.offset, grant.offset);
        const uint64_t end =
            std::min(slab.offset + slab.bytes, grant.offset + grant.bytes);
        if (begin < end) covered += end - begin;
      }
    }
    EXPECT_EQ(covered, grant.bytes) << "a lease in slabs that were not sent";
  }
}

// --- Who uses what -----------------------------------------------------------

absl::Status NodeRig::SetOrder(SessionId session, ModelId model,
                               std::vector<uint32_t> order, bool forget) {
  const std::vector<GroupIndex> groups(order.begin(), order.end());
  // It is done with it, whatever comes of it.
  if (order.empty()) uses_[session].erase(model);
  Effects effects;
  absl::Status status =
      node_->SetOrder(session, {model, groups, forget}, now, effects);
  Take(std::move(effects));
  return status;
}

// Events tell of models in the order in which they went.
void NodeRig::CheckForgotten(const Effects& effects) const {
  size_t at = 0;
  for (const NodeEvent& event : effects.events) {
    if (event.kind != EventKind::kModelForgotten) continue;
    const ModelId model = effects.forgotten.at(at++);
    if (event.detail.empty()) continue;  // It was asked for.
    if (event.detail == "its session is over") continue;
    for (const auto& [session, models] : uses_) {
      EXPECT_FALSE(models.contains(model))
          << event.model << " made room, and is used";
    }
  }
  EXPECT_EQ(at, effects.forgotten.size());
}

}  // namespace hoistd::testing
