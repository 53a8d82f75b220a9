// Random lives of a node: whatever is asked and whatever fails, in whatever
// order, its books add up, and at the end everything can be given back.
//
// The rig checks the books after each step. A scenario is a list of numbers; on
// failure it is printed as code for RunScenario, so that it can be kept as a
// test of its own and cut down by hand.
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/model/model_name.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_sim_test {

using testing::IsOk;
using testing::kPage;
using testing::NodeRig;
using testing::NodeRigOptions;

// What to do, and numbers that choose with whom; taken modulo what there is.
using Step = std::array<uint32_t, 4>;
using Scenario = std::vector<Step>;  // The first chooses the node.

enum Op : uint32_t {
  kOpen,
  kClose,
  kRegister,
  kRegroup,
  kStage,
  kStage2,
  kStage3,
  kRelease,
  kRelease2,
  kPrefetch,
  kFinish,
  kFinish2,
  kFinish3,
  kFinish4,
  kFail,
  kPublish,
  kPublish2,
  kEvict,
  kForget,
  kTick,
  kSetOrder,
  kPin,
  kUnpin,
  kLoad,
  kGrow,
  kSetPlan,
  kSetPlan2,
  kEndPlan,
  kFreePlan,
  kFreePlan2,
  kHold,
  kHold2,
  kUnhold,
  kUnhold2,
  kReadImage,
  kReadImage2,
  kAnswerAsk,
  kAnswerAsk2,
  kDie,
  kStageApart,
  kStageApart2,
  kStageApart3,
  kStageApart4,
  kOpenArena,
  kOpenArena2,
  kCloseArena,
  kLend,
  kLend2,
  kLend3,
  kGiveWay,
  kGiveWay2,
  kGiveWay3,
  kSpare,
  kSpare2,
  kForgetUnused,
  kCheck,
  kOps,
};

std::string AsCode(const Scenario& scenario) {
  std::string code = "RunScenario({";
  for (const Step& s : scenario) {
    absl::StrAppend(&code, "{", s[0], ", ", s[1], ", ", s[2], ", ", s[3],
                    "}, ");
  }
  return code + "});\n";
}

// What runs now, for when the node aborts.
std::string running;

void PrintRunning(int) {
  // Nothing is left to do about a failing write.
  if (write(STDERR_FILENO, running.data(), running.size()) < 0) _exit(3);
  _exit(2);
}

class Life {
 public:
  explicit Life(const Step& step)
      : rig_(Options(step)), options_(Options(step)) {
    static const char* kNames[] = {"m0", "m1", "m2"};
    for (const char* name : kNames) names_.push_back(name);
    rig_.hold_slabs = step[0] / 32 % 4 != 0;
    sessions_.push_back(rig_.Open(1));
  }

  void Do(const Step& step);
  void GiveEverythingBack();

 private:
  static NodeRigOptions Options(const Step& step) {
    NodeRigOptions options;
    options.host_pages = 4 + step[0] % 13;
    options.host_ready_pages = step[0] % 3 == 0 ? 3 : options.host_pages;
    options.device_pages = {3 + step[1] % 8};
    if (step[1] % 3 == 0) options.device_pages.push_back(2 + step[1] % 5);
    if (step[3] / 16 % 4 != 0) options.in_place_pages = 2 + step[3] / 64 % 7;
    // Two a slab.
    if (step[3] / 448 % 3 == 0) {
      options.apart_descriptors = 2 + step[3] / 1344 % 7;
    }
    options.arenas_evict = step[3] / 32 % 2 == 0;
    options.slab_pages = 1 + step[2] % 4;
    options.can_spill = step[2] % 4 != 0;
    if (step[2] / 64 % 3 != 0) options.pageable_pages = 1 + step[2] / 192 % 12;
    options.saves_at_once = step[2] % 8 > 3;
    options.readers = step[2] % 2 == 0 ? Readers::kOwner : Readers::kEveryone;
    if (step[3] % 3 == 0) {
      options.backing = Backing::kVmm;
      options.ipc = true;
    } else if (step[3] % 3 == 1) {
      options.backing = Backing::kIpc;
    }
    if (step[0] % 2 == 0) {
      QuotaLimits& each = options.quota.each;
      each.sessions = 2;
      each.plans = 1 + step[1] % 4;
      each.models = 1 + step[2] % 4;
      each.held_bytes = (1 + step[3] % 6) * kPage;
      each.published_bytes = (2 + step[0] % 7) * kPage;
      each.device_bytes.assign(3, (2 + step[1] % 7) * kPage);
      if (step[3] % 2 == 0) options.quota.trusted = {User(0)};
    }
    if (step[3] % 5 == 0) options.device_memory_pages = 2 + step[3] % 7;
    options.closing = static_cast<NodeRigOptions::Closing>(step[2] / 16 % 3);
    return options;
  }

  template <typename T>
  static T Pick(const std::vector<T>& from, uint32_t number) {
    return from.empty() ? T() : from[number % from.size()];
  }
  SessionId Session(uint32_t n) const { return Pick(sessions_, n); }
  ModelPtr ModelAt(uint32_t n) const {
    const auto& models = rig_.node().copies().models();
    if (models.empty()) return nullptr;
    return std::next(models.begin(), n % models.size())->second->model;
  }
  std::string AdminName(const hoistd::Model& model) {
    return ToString(OwnedName{model.owner, model.spec->name});
  }
  GroupKey Group(uint32_t n) const {
    const ModelPtr model = ModelAt(n / 7);
    if (model == nullptr || model->spec->groups.empty()) return {};
    return {model->id,
            GroupIndex(static_cast<uint32_t>(n % model->spec->groups.size()))};
  }
  PlanId PlanAt(uint32_t n) const {
    if (rig_.plans().empty()) return PlanId();
    auto it = rig_.plans().begin();
    std::advance(it, n % rig_.plans().size());
    return it->first;
  }
  uint32_t GroupOf(PlanId plan, uint32_t n) const {
    return Pick(rig_.plans().at(plan).grant.groups, n).group.number();
  }
  // What is read in place is the last.
  uint32_t Devices() const {
    return rig_.in_place() + (options_.in_place_pages > 0 ? 1 : 0);
  }
  TierAt To(uint32_t n) const {
    if (n % 3 == 0) return OnHost();
    return OnDevice(DeviceIndex(n % Devices()));
  }
  bool AnythingLost() const {
    for (const NodeEvent& event : rig_.events()) {
      if (event.kind == EventKind::kCopyLost) return true;
    }
    return false;
  }
  // What a dead hoistd had read of files, and nobody has asked for since. All
  // else has been evicted.
  uint64_t Unclaimed(TierAt at) const {
    uint64_t bytes = 0;
    for (const auto& [offset, part] : rig_.persisted_parts())
      bytes += part.bytes;
    return at == OnHost() ? bytes : 0;
  }
  void Finish(const Step& step, bool fails);
  void MakeSlabs(const Step& step);
  void HearAsks();
  void GiveWayTo(const hoistd::GiveWay& ask, bool frees);
  void ExpectWholePools() const;

  NodeRig rig_;
  const NodeRigOptions options_;
  std::vector<std::string> names_;
  std::vector<SessionId> sessions_;
  std::vector<hoistd::GiveWay> asked_;  // Of plans that may have ended since.
};

void Life::Finish(const Step& step, bool fails) {
  const TransferId id = Pick(rig_.Moving(), step[1]);
  if (id == TransferId()) return;
  if (!fails) return rig_.Finish(id);
  const bool damaged = step[2] % 2 == 0;
  rig_.Finish(id, damaged ? absl::DataLossError("damaged")
                          : absl::UnavailableError("not now"));
}

// Before some steps the devices go on; now and then one makes no slab.
void Life::MakeSlabs(const Step& step) {
  const uint32_t chance = step[1] / 7 + step[2] / 11 + step[3] / 13;
  for (uint32_t i = 0; i < chance % 4; ++i) {
    const uint32_t d = (chance / 4 + i) % Devices();
    if (rig_.slab_work(d).empty()) continue;
    rig_.DoNextSlab(d, chance / 8 % 8 == 0
                           ? absl::ResourceExhaustedError("refused")
                           : absl::OkStatus());
  }
}

// Only a plan that lends is asked, and for others' needs only one without a
// budget of its own.
void Life::HearAsks() {
  for (const hoistd::GiveWay& ask : rig_.TakeGiveWay()) {
    const auto plan = rig_.plans().find(ask.plan);
    if (plan != rig_.plans().end()) {
      EXPECT_TRUE(plan->second.grant.lends()) << "its budget is its own";
      EXPECT_EQ(plan->second.session, ask.session);
    }
    asked_.push_back(ask);
  }
}

void Life::GiveWayTo(const hoistd::GiveWay& ask, bool frees) {
  const auto plan = rig_.plans().find(ask.plan);
  if (plan == rig_.plans().end() || plan->second.ended) return;
  EXPECT_OK(rig_.EndPlan(ask.session, ask.plan));
  if (frees) rig_.FreePlan(ask.plan);
}

// No spare is left, so the devices have what they had at first.
void Life::ExpectWholePools() const {
  for (uint32_t d = 0; d < options_.device_pages.size(); ++d) {
    EXPECT_EQ(rig_.TierOf(OnDevice(DeviceIndex(d))).capacity_bytes,
              options_.device_pages[d] * kPage);
  }
}

void Life::Do(const Step& step) {
  MakeSlabs(step);
  HearAsks();
  const auto [op, a, b, c] = step;
  const std::string name = Pick(names_, b);
  const GroupKey key = Group(b);
  const ModelPtr model = ModelAt(a);
  switch (static_cast<Op>(op % kOps)) {
    case kOpen:
      if (sessions_.size() < 4) {
        // Refused where the user has too many.
        const auto opened = rig_.TryOpen(a % 3, b % 2 == 0 ? 0 : 3 + b % 5);
        if (opened.ok()) sessions_.push_back(*opened);
      }
      return;
    case kClose:
      if (sessions_.empty()) return;
      rig_.Close(Session(a));
      std::erase(sessions_, Session(a));
      return;
    case kRegister:
      // It may be there with other groups.
      rig_.TryAddModel(Session(a), name, {1 + b % 3, c % 3, 1, 2 + c % 2})
          .status()
          .IgnoreError();
      return;
    case kRegroup:
      // Groups that share bytes with other models of the same file, and with
      // each other. It may be there with other groups.
      rig_.TryAddGrouping(Session(a), name, 1 + c % 2,
                          {{{b % 4, 1 + b % 3}},
                           {{c % 3, 2}, {4 + a % 2, 1}},
                           {{0, 1 + c % 4}},
                           {{5, c % 2}, {b % 5, 1}}})
          .status()
          .IgnoreError();
      return;
    case kStage:
    case kStage2:
    case kStage3:
      rig_.Stage(Session(a), key, absl::Seconds(c % 4) * 5, c % Devices(),
                 options_.ipc && c % 5 == 0 && c % Devices() < rig_.in_place());
      return;
    case kStageApart:
    case kStageApart2:
    case kStageApart3:
    case kStageApart4:
      rig_.StageApart(Session(a), key, c % Devices(), absl::Seconds(c % 4) * 5,
                      /*background=*/c / 7 % 2 == 0);
      return;
    case kOpenArena:
    case kOpenArena2:
      rig_.OpenArena(Session(a), b % 6, absl::Seconds(c % 4) * 5);
      return;
    case kCloseArena:
      if (!rig_.arenas().empty()) {
        const auto& [id, session] = Pick(rig_.arenas(), a);
        EXPECT_OK(rig_.CloseArena(session, id));
      }
      return;
    case kRelease:
    case kRelease2: {
      if (rig_.leases().empty()) return;
      auto it = rig_.leases().begin();
      std::advance(it, a % rig_.leases().size());
      const LeaseId lease = it->first;
      EXPECT_OK(rig_.Release(it->second.first, lease));
      return;
    }
    case kPrefetch:
      // Refused where the session may not read the model.
      rig_.Prefetch(Session(a), key.model, {key.group.number(), 0},
                    c / 5 % 3 == 0 ? OnDisk() : To(c))
          .IgnoreError();
      return;
    case kFinish:
    case kFinish2:
    case kFinish3:
    case kFinish4:
      return Finish(step, /*fails=*/false);
    case kFail:
      return Finish(step, /*fails=*/true);
    case kPublish:
    case kPublish2:
      // Some end with their session.
      rig_.Publish(Session(a),
                   c / 4 % 3 == 0 ? NameOfSession(Session(a), "p")
                                  : absl::StrCat("p", b % 2),
                   absl::StrCat("g", c % 4), 1 + c % 3,
                   static_cast<uint8_t>(b % 7 == 0));
      return;
    case kEvict:
      if (model == nullptr) return;
      rig_.Evict(AdminName(*model),
                 c % 2 == 0 ? std::optional<TierAt>(To(b)) : std::nullopt);
      return;
    case kForget:
      // Refused where it is in use.
      if (model != nullptr && c % 3 == 0) rig_.Forget(model->id).IgnoreError();
      return;
    case kTick:
      return rig_.Advance(absl::Milliseconds(a % 40'000));
    case kSetOrder:
      // Refused where the session may not read the model.
      rig_.SetOrder(Session(a), key.model, {0, key.group.number()})
          .IgnoreError();
      return;
    case kPin:
      rig_.Bring(key, To(c), /*pin=*/true);
      return;
    case kUnpin:
      if (model != nullptr) rig_.Unpin(AdminName(*model));
      return;
    case kLoad:
      if (model == nullptr) return;
      for (uint32_t g = 0; g < model->spec->groups.size(); ++g) {
        rig_.Bring({model->id, GroupIndex(g)}, To(c), /*pin=*/false,
                   -absl::InfiniteDuration(), model->id);
      }
      return;
    case kGrow: {
      if (b % 2 == 0) return rig_.GrowHost(a % (options_.host_pages + 1));
      const uint32_t d = c % rig_.in_place();
      return rig_.Resize(OnDevice(DeviceIndex(d)),
                         a % (options_.device_pages[d] + 1));
    }
    case kSetPlan:
    case kSetPlan2: {
      // Refused where the session may not read the model.
      std::vector<uint32_t> order = {key.group.number()};
      for (uint32_t g = 0; g < 1 + c % 4; ++g) order.push_back((a + g) % 4);
      rig_.SetPlan(Session(a), key.model, order, b % 9,
                   absl::Seconds(c % 3) * 5, std::nullopt, c % Devices());
      return;
    }
    case kEndPlan: {
      const PlanId plan = PlanAt(a);
      if (plan == PlanId()) return;
      const auto& standing = rig_.plans().at(plan);
      if (!standing.ended) {
        EXPECT_OK(rig_.EndPlan(standing.session, plan));
      }
      return;
    }
    case kFreePlan:
    case kFreePlan2:
      if (!rig_.ended().empty()) rig_.FreePlan(Pick(rig_.ended(), a));
      return;
    case kHold:
    case kHold2:
      if (PlanAt(a) != PlanId()) {
        // Twice in one call, one that is lost would be told of twice.
        std::vector<uint32_t> groups = {GroupOf(PlanAt(a), b)};
        const uint32_t other = GroupOf(PlanAt(a), c);
        if (other != groups[0]) groups.push_back(other);
        rig_.Hold(PlanAt(a), groups, c % 3 == 0);
      }
      return;
    case kUnhold:
    case kUnhold2:
      if (PlanAt(a) != PlanId() && !rig_.plans().at(PlanAt(a)).ended) {
        rig_.Unhold(PlanAt(a), GroupOf(PlanAt(a), b));
      }
      return;
    case kReadImage:
    case kReadImage2:
      // Refused where the session may not read the model.
      rig_.ReadImage(Session(a), key, absl::Seconds(c % 4) * 5);
      return;
    case kAnswerAsk:
    case kAnswerAsk2:
      rig_.keep_slabs = a % 4 == 0;  // From now on.
      if (!rig_.asks().empty()) rig_.AnswerAsk();
      return;
    case kDie:
      if (!rig_.Die()) sessions_.clear();
      std::erase_if(sessions_, [&](SessionId session) {
        return rig_.node().tenure().PeerOf(session) == nullptr;
      });
      return;
    case kLend:
    case kLend2:
    case kLend3: {
      // Refused where the session may not read the model.
      SetPlanArgs args =
          rig_.PlanArgs(key.model, {key.group.number(), a % 4, (a + 1) % 4},
                        b % 3 == 0 ? b % 9 : 0, absl::Seconds(c % 3) * 5,
                        std::nullopt, c / 3 % Devices());
      args.gives_way = true;
      rig_.SetPlan(Session(a), args);
      return;
    }
    case kGiveWay:
    case kGiveWay2:
    case kGiveWay3:
      if (asked_.empty()) return;
      GiveWayTo(Pick(asked_, a), /*frees=*/b % 2 == 0);
      asked_.erase(asked_.begin() + a % static_cast<uint32_t>(asked_.size()));
      return;
    case kSpare:
    case kSpare2:
      rig_.Spare(Session(a), b % 5, absl::Seconds(c % 4) * 5);
      return;
    case kForgetUnused:
      // Refused where the session may not read the model.
      rig_.SetOrder(Session(a), key.model, {}, /*forget=*/true).IgnoreError();
      return;
    case kCheck:
      rig_.CheckGroup(key, c % 2 == 0);
      return;
    case kOps:
      return;
  }
}

void Life::GiveEverythingBack() {
  rig_.hold_slabs = false;
  rig_.DoSlabWork();
  rig_.GrowHost(options_.host_pages);
  for (uint32_t d = 0; d < options_.device_pages.size(); ++d) {
    rig_.Resize(OnDevice(DeviceIndex(d)), options_.device_pages[d]);
  }
  // Holds may take all of the host; who waits for it is answered at the latest
  // when they are over.
  while (!rig_.plans().empty()) {
    const PlanId plan = PlanAt(0);
    const auto& standing = rig_.plans().at(plan);
    if (!standing.ended) {
      EXPECT_OK(rig_.EndPlan(standing.session, plan));
    }
    rig_.FreePlan(plan);
  }
  // An admin's load waits for what arenas have, for as long as they have it.
  while (!rig_.arenas().empty()) {
    const auto [id, session] = rig_.arenas().front();
    EXPECT_OK(rig_.CloseArena(session, id));
  }
  rig_.keep_slabs = false;
  for (int round = 0; round < 20; ++round) {
    while (!rig_.asks().empty()) rig_.AnswerAsk();
    rig_.FinishAll();
    rig_.Advance(absl::Seconds(61));
  }
  // Whoever asked has been answered by now.
  EXPECT_EQ(rig_.open_requests(), 0u);
  while (!rig_.plans().empty()) {  // Those that had waited for their ring.
    const PlanId plan = PlanAt(0);
    if (!rig_.plans().at(plan).ended) {
      EXPECT_OK(rig_.EndPlan(rig_.plans().at(plan).session, plan));
    }
    rig_.FreePlan(plan);
  }
  EXPECT_EQ(rig_.node().NextDeadline(), absl::InfiniteFuture());
  for (const SessionId session : sessions_) rig_.Close(session);
  ExpectWholePools();
  std::vector<std::string> models;
  for (uint32_t m = 0; m < rig_.node().copies().models().size(); ++m) {
    models.push_back(AdminName(*ModelAt(m)));
  }
  for (const std::string& name : models) {
    rig_.Unpin(name);
    rig_.Evict(name);
  }
  rig_.FinishAll();  // Spills.
  for (const TierUse& tier : rig_.Tiers()) {
    EXPECT_EQ(tier.leased_bytes, 0u);
    EXPECT_EQ(tier.pinned_bytes, 0u);
  }
  // What has no other place stays until its model is forgotten: published
  // groups without a spill store, and what is lost and still good on a device.
  if (options_.can_spill && !AnythingLost()) {
    for (const TierUse& tier : rig_.Tiers()) {
      if (tier.at.tier == Tier::kDisk) continue;
      EXPECT_EQ(tier.used_bytes, Unclaimed(tier.at)) << ToString(tier.at);
    }
  }
  while (const ModelPtr model = ModelAt(0)) {
    EXPECT_EQ(EndsWith(model->spec->name), std::nullopt) << model->spec->name;
    ASSERT_OK(rig_.Forget(model->id));
  }
  for (const TierUse& tier : rig_.Tiers()) {
    EXPECT_EQ(tier.used_bytes, Unclaimed(tier.at)) << ToString(tier.at);
  }
  EXPECT_TRUE(rig_.spills().empty());
  EXPECT_TRUE(rig_.Moving().empty());
}

void RunScenario(const Scenario& scenario) {
  running = AsCode(scenario);
  Life life(scenario.at(0));
  for (size_t i = 1; i < scenario.size(); ++i) {
    life.Do(scenario[i]);
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "after step " << i << " of\n" << running;
      return;
    }
  }
  life.GiveEverythingBack();
  if (::testing::Test::HasFailure()) ADD_FAILURE() << "in\n" << running;
}

Scenario RandomScenario(uint32_t seed) {
  std::mt19937 random(seed);
  Scenario scenario;
  const size_t steps = 20 + random() % 60;
  for (size_t i = 0; i <= steps; ++i) {
    Step step;
    for (uint32_t& number : step) {
      number = static_cast<uint32_t>(random()) % 10'000;
    }
    if (i > 0) step[0] %= kOps;
    scenario.push_back(step);
  }
  return scenario;
}

// It was taken to be on its way for ever, and asked about once a minute.
TEST(NodeSim, ANeedThatLostItsPlaceIsNotOnItsWay) {
  RunScenario({{8292, 8894, 8172, 905},
               {3, 5423, 7475, 1316},
               {26, 5654, 7681, 773},
               {37, 2781, 12, 3134},
               {39, 6502, 9379, 40},
               {27, 1896, 9034, 6666},
               {14, 6377, 1115, 1007},
               {28, 7461, 5471, 1148},
               {40, 4565, 4376, 5769},
               {6, 9385, 5884, 3139}});
}

TEST(NodeSim, TheBooksAddUpWhateverHappens) {
  // HOIST_SIM_SEED runs another stretch of seeds.
  const char* base = getenv("HOIST_SIM_SEED");
  const uint32_t first =
      base == nullptr ? 1 : static_cast<uint32_t>(strtoul(base, nullptr, 10));
  signal(SIGABRT, PrintRunning);
  for (uint32_t seed = first; seed < first + 2000 && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RunScenario(RandomScenario(seed));
  }
  signal(SIGABRT, SIG_DFL);
}

}  // namespace hoistd::node_sim_test
