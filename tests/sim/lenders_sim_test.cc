// Lenders: workers whose plans give way, others that need device memory by
// stages and spares, and owners of budgets of their own, in random order.
//
// The rig checks books and bytes after each step. Beside that:
// - nobody is asked for more than what plans without a budget of their own
// have,
// - a stage or a spare is answered by its deadline,
// - a stage is served at once while all lenders are idle,
// - the counters are the bytes of the plans that gave way,
// - all that was lent comes back, and what a failed call made is forgotten.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::lenders_sim_test {

using testing::IsOk;
using testing::kPage;
using testing::NodeRig;

constexpr uint64_t kDevicePages = 16;
constexpr uint32_t kGroups = 6;  // Of a page, of each lender's model.
constexpr size_t kLenders = 4;
constexpr uint64_t kOwnBudget = 3;  // Of the owner, who lends nothing.
constexpr size_t kMostLeases = 3;   // Of stagers, a page each.
constexpr uint64_t kMostSpared = 4;
constexpr absl::Duration kDeadline = absl::Seconds(5);
const TierAt kDevice = NodeRig::FirstDevice();

class Life {
 public:
  explicit Life(uint32_t seed) : random_(seed) {
    for (size_t i = 0; i < kLenders; ++i) {
      Lender& lender = lenders_.emplace_back();
      lender.session = rig_.Open();
      lender.model = Model(lender.session, absl::StrCat("m", i), kGroups);
    }
    owner_ = rig_.Open();
    SetPlanArgs args = Args(Model(owner_, "own", kGroups), kOwnBudget);
    const PlanGrant own = rig_.PlanOf(rig_.SetPlan(owner_, args));
    own_plan_ = own.id;
    for (const PlannedGroup& group : own.groups) {
      if (group.resident) rig_.StageNow(owner_, {args.model, group.group});
    }
    stager_ = rig_.Open();
    staged_ = Model(stager_, "staged", 8);
    spared_ = rig_.Open();
    rig_.DoSlabWork();
  }

  void Step() {
    switch (Random(12)) {
      case 0:
      case 1:
      case 2:
        BeginPass(lenders_[Random(kLenders)]);
        break;
      case 3:
      case 4:
        EndPass(lenders_[Random(kLenders)]);
        break;
      case 5:
        Stage();
        break;
      case 6:
        StageWhileAllAreIdle();
        break;
      case 7:
        Release();
        break;
      case 8:
        Spare();
        break;
      case 9:
        ForgetWhatFailed();
        break;
      default:
        Advance(absl::Milliseconds(Random(2'000)));
    }
    Follow();
    ExpectAnswersInTime();
    ExpectCounted();
  }

  // Whoever lent has all again, one after another.
  void GiveEverythingBack() {
    for (Lender& lender : lenders_) EndPass(lender);
    while (!leases_.empty()) Release();
    Advance(2 * kDeadline);
    Follow();
    while (!leases_.empty()) Release();  // Of stages that waited.
    EXPECT_EQ(rig_.AnswerTo(rig_.Spare(spared_, 0))->status, absl::OkStatus());
    EXPECT_EQ(rig_.TierOf(kDevice).capacity_bytes, kDevicePages * kPage);
    for (Lender& lender : lenders_) End(lender);
    for (Lender& lender : lenders_) {
      BeginPass(lender);
      Follow();
      ASSERT_TRUE(lender.plan.has_value());
      EXPECT_EQ(lender.plan->resident_bytes, kGroups * kPage);
      EndPass(lender);
      End(lender);
    }
    EXPECT_FALSE(rig_.plans().at(own_plan_).ended);
    EXPECT_EQ(rig_.open_requests(), 0u);
    EXPECT_TRUE(rig_.node().tenure().reclaim().empty());
  }

 private:
  struct Lender {
    SessionId session;
    ModelId model;
    std::optional<RequestId> asks;  // For a plan; then a pass begins.
    std::optional<PlanGrant> plan;
    std::vector<LeaseId> leases;  // Of residents, while the plan stands.
    bool in_pass = false;
    bool asked = false;  // To give way.
    absl::Time idle_since = absl::InfinitePast();
    absl::Duration idle;  // Once idle for so long.
  };

  uint32_t Random(uint64_t below) {
    return static_cast<uint32_t>(random_() % below);
  }
  ModelId Model(SessionId session, const std::string& name, size_t groups) {
    return rig_.AddModel(session, name, std::vector<uint64_t>(groups, 1));
  }
  SetPlanArgs Args(ModelId model, uint64_t budget) const {
    std::vector<uint32_t> order(kGroups);
    std::iota(order.begin(), order.end(), 0u);
    SetPlanArgs args = rig_.PlanArgs(model, order, budget, kDeadline);
    args.gives_way = true;
    return args;
  }

  void BeginPass(Lender& lender) {
    if (lender.asks.has_value()) return;
    if (lender.plan.has_value()) {
      lender.in_pass = true;
      return;
    }
    lender.asks = rig_.SetPlan(lender.session, Args(lender.model, 0));
    due_[*lender.asks] = rig_.now + kDeadline;
  }
  void EndPass(Lender& lender) {
    if (!std::exchange(lender.in_pass, false)) return;
    lender.idle_since = rig_.now;
  }
  void End(Lender& lender) {
    if (!lender.plan.has_value()) return;
    for (const LeaseId lease : std::exchange(lender.leases, {})) {
      EXPECT_THAT(rig_.Release(lender.session, lease), IsOk());
    }
    const PlanId plan = std::exchange(lender.plan, std::nullopt)->id;
    EXPECT_THAT(rig_.EndPlan(lender.session, plan), IsOk());
    rig_.FreePlan(plan);
  }

  // One that waits for as long as it takes.
  void Stage() {
    if (leases_.size() + stages_.size() >= kMostLeases) return;
    const RequestId request =
        rig_.Stage(stager_, {staged_, GroupIndex(Random(8))}, kDeadline);
    stages_.insert(request);
    due_[request] = rig_.now + kDeadline;
  }
  // Lenders and the owner cannot stand in its way.
  void StageWhileAllAreIdle() {
    for (Lender& lender : lenders_) EndPass(lender);
    Follow();
    const bool any = std::ranges::any_of(lenders_, [](const Lender& one) {
      return one.asks.has_value() || one.in_pass;
    });
    if (any || spare_.has_value() || spared_pages_ > 0) return;
    if (!stages_.empty() || leases_.size() >= kMostLeases) return;
    const RequestId request =
        rig_.Stage(stager_, {staged_, GroupIndex(Random(8))}, kDeadline);
    stages_.insert(request);
    Follow();
    const Answer* const answer = rig_.AnswerTo(request);
    EXPECT_TRUE(answer != nullptr && answer->status.ok()) << "all are idle";
  }
  void Release() {
    if (leases_.empty()) return;
    const size_t which = Random(leases_.size());
    EXPECT_THAT(rig_.Release(stager_, leases_[which]), IsOk());
    leases_.erase(leases_.begin() + static_cast<std::ptrdiff_t>(which));
  }
  // It replaces the session's earlier one, unless that waits.
  void Spare() {
    if (spare_.has_value()) return;
    spared_pages_ = Random(kMostSpared + 1);
    spare_ = rig_.Spare(spared_, spared_pages_, kDeadline);
    due_[*spare_] = rig_.now + kDeadline;
  }
  // A session that made a model, and failed.
  void ForgetWhatFailed() {
    const SessionId session = rig_.Open();
    const ModelId made = Model(session, absl::StrCat("made", ++made_), 2);
    const bool used = Random(2) == 0;
    if (used) {
      EXPECT_THAT(
          rig_.node().tenure().Find(stager_, absl::StrCat("made", made_)),
          IsOk());
    }
    EXPECT_THAT(rig_.SetOrder(session, made, {}, /*forget=*/true), IsOk());
    const bool gone = rig_.node().copies().FindModel(made) == nullptr;
    EXPECT_EQ(gone, !used);
    if (used) {
      EXPECT_THAT(rig_.SetOrder(stager_, made, {}, /*forget=*/true), IsOk());
      EXPECT_EQ(rig_.node().copies().FindModel(made), nullptr);
    }
    rig_.Close(session);
  }
  void Advance(absl::Duration by) { rig_.Advance(by); }

  // Carries out what hoistd has answered and asked, until nothing is left.
  void Follow() {
    for (bool more = true; more;) {
      rig_.DoSlabWork();
      rig_.FinishAll();
      more = false;
      for (Lender& lender : lenders_) more = Stands(lender) || more;
      for (const GiveWay& ask : rig_.TakeGiveWay()) Hear(ask);
      for (Lender& lender : lenders_) more = Heed(lender) || more;
      more = Answered() || more;
    }
  }
  void Hear(const GiveWay& ask) {
    EXPECT_NE(ask.plan, own_plan_) << "its budget is its own";
    for (Lender& lender : lenders_) {
      if (!lender.plan.has_value() || lender.plan->id != ask.plan) continue;
      EXPECT_TRUE(lender.plan->lends());
      EXPECT_EQ(lender.session, ask.session);
      lender.idle = lender.asked ? std::min(lender.idle, ask.idle) : ask.idle;
      lender.asked = true;
    }
  }
  bool Heed(Lender& lender) {
    if (!lender.asked || lender.in_pass || !lender.plan.has_value()) {
      return false;
    }
    if (rig_.now < lender.idle_since + lender.idle) return false;
    lent_ += lender.plan->resident_bytes + lender.plan->ring_bytes;
    lender.asked = false;
    End(lender);
    return true;
  }
  // A granted plan's pass begins at once.
  bool Stands(Lender& lender) {
    if (!lender.asks.has_value()) return false;
    const Answer* const answer = rig_.AnswerTo(*lender.asks);
    if (answer == nullptr) return false;
    lender.asks.reset();
    lender.asked = false;
    if (!answer->status.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(answer->status)) << answer->status;
      return true;
    }
    lender.plan = *answer->plan;
    lender.in_pass = true;
    for (const PlannedGroup& group : lender.plan->groups) {
      if (!group.resident) continue;
      lender.leases.push_back(
          rig_.StageNow(lender.session, {lender.model, group.group}));
    }
    return true;
  }
  bool Answered() {
    const size_t before = stages_.size();
    std::erase_if(stages_, [&](RequestId request) {
      const Answer* const answer = rig_.AnswerTo(request);
      if (answer == nullptr) return false;
      if (answer->lease.has_value()) leases_.push_back(answer->lease->id);
      return true;
    });
    if (spare_.has_value() && rig_.AnswerTo(*spare_) != nullptr) {
      const TierUse device = rig_.TierOf(kDevice);
      if (rig_.AnswerTo(*spare_)->status.ok()) {
        EXPECT_LE(device.allocated_bytes, device.capacity_bytes);
      } else {
        spared_pages_ = 0;
      }
      spare_.reset();
    }
    return stages_.size() < before;
  }

  void ExpectAnswersInTime() {
    std::erase_if(due_, [&](const auto& due) {
      const auto& [request, by] = due;
      if (!rig_.waiting(request)) return true;
      EXPECT_LT(rig_.now, by) << "it is not answered in time";
      return false;
    });
  }
  void ExpectCounted() {
    const Counters& counters = rig_.counters();
    EXPECT_EQ(lent_, counters.lent_bytes_to_needs +
                         counters.lent_bytes_to_grow +
                         counters.lent_bytes_for_headroom);
    for (const auto& [key, loan] : rig_.node().tenure().reclaim().loans().all())
      EXPECT_NE(key.session, owner_) << "the owner lends nothing";
  }

  std::mt19937 random_;
  NodeRig rig_{
      {.host_pages = 64, .device_pages = {kDevicePages}, .slab_pages = 1}};
  std::vector<Lender> lenders_;
  SessionId owner_, stager_, spared_;
  PlanId own_plan_;
  ModelId staged_;
  std::set<RequestId> stages_;      // That wait.
  std::vector<LeaseId> leases_;     // The stager's.
  std::optional<RequestId> spare_;  // That waits.
  uint64_t spared_pages_ = 0;       // Asked for, or left.
  std::map<RequestId, absl::Time> due_;
  uint64_t lent_ = 0;
  int made_ = 0;
};

TEST(LendersSim, WhateverIsAskedNobodyLosesWhatIsTheirs) {
  // HOIST_SIM_SEED runs another stretch of seeds.
  const char* const base = getenv("HOIST_SIM_SEED");
  const uint32_t first =
      base == nullptr ? 1 : static_cast<uint32_t>(strtoul(base, nullptr, 10));
  for (uint32_t seed = first; seed < first + 200 && !HasFailure(); ++seed) {
    Life life(seed);
    for (int step = 0; step < 120 && !HasFailure(); ++step) {
      SCOPED_TRACE(absl::StrCat("seed ", seed, ", step ", step));
      life.Step();
    }
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", at the end"));
    if (!HasFailure()) life.GiveEverythingBack();
  }
}

}  // namespace hoistd::lenders_sim_test
