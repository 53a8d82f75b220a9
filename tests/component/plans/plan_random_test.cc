// Random plans, budgets and call orders over a real hoistd, every byte checked.
#include <algorithm>
#include <cstdlib>
#include <random>

#include "gtest/gtest.h"
#include "tests/component/plans/pattern_model.h"
#include "tests/support/real_hoistd.h"

namespace hoistd::testing {
namespace {

constexpr uint64_t kModels = 24;
constexpr int kPlans = 10'000;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* given = std::getenv(name);
  return given == nullptr ? otherwise : std::strtoull(given, nullptr, 10);
}

struct PatternModel {
  hoist::Model model;
  std::vector<uint64_t> bytes;
  uint64_t largest = 0;
  uint64_t total = 0;
};

// One random life of a plan. What it did is told, so that a failure shows it.
class RandomPlan {
 public:
  RandomPlan(std::mt19937_64& random, hoist::Session& session, uint64_t number,
             const PatternModel& model)
      : random_(random), session_(session), number_(number), model_(model) {}

  const std::string& told() const { return told_; }
  uint64_t stages() const { return stages_; }
  uint64_t streamed_plans() const { return streamed_; }

  void Run() {
    hoist::PlanOptions options;
    for (uint32_t g = 0; g < model_.bytes.size(); ++g) {
      if (Chance(90)) options.order.push_back(g);
    }
    if (options.order.empty()) options.order.push_back(0);
    if (Chance(50)) {
      std::shuffle(options.order.begin(), options.order.end(), random_);
    }
    for (uint64_t repeats = Below(3); repeats > 0 && Chance(30); --repeats) {
      const size_t from = Below(options.order.size());
      const uint32_t group = options.order[from];
      options.order.insert(
          options.order.begin() +
              static_cast<ptrdiff_t>(Below(options.order.size() + 1)),
          group);
    }
    order_ = options.order;
    if (Chance(10)) options.order.clear();  // Learned.
    options.budget_bytes = Budget();
    Tell("plan of " + std::to_string(order_.size()) + " in " +
         std::to_string(options.budget_bytes));
    hoist::Result<hoist::Plan> plan = session_.SetPlan(model_.model, options);
    if (!plan.ok()) {
      // The one reason there is, and what it says would be enough does.
      ASSERT_LT(options.budget_bytes, model_.largest)
          << plan.status().message();
      ASSERT_EQ(plan.status().code(), hoist::Code::kResourceExhausted);
      return;
    }
    streamed_ += plan->info().streamed_count > 0;
    ASSERT_LE(plan->info().resident_bytes + plan->info().ring_bytes,
              std::max(options.budget_bytes, uint64_t{1}) +
                  (options.budget_bytes == 0 ? model_.total : 0));
    for (uint64_t passes = 1 + Below(3); passes > 0; --passes) {
      Pass(*plan);
      if (::testing::Test::HasFatalFailure()) return;
      if (Chance(20)) Ok(plan->EndPass().status(), "end pass");
      if (Chance(10)) Rebudget(*plan);
    }
    Ok(plan->Check(), "check");
  }

 private:
  uint64_t Below(uint64_t bound) { return random_() % bound; }
  bool Chance(uint64_t percent) { return Below(100) < percent; }
  void Tell(const std::string& what) { told_ += "  " + what + "\n"; }
  void Ok(const hoist::Status& status, const char* what) {
    ASSERT_TRUE(status.ok()) << what << ": " << status.message();
  }
  uint64_t Budget() {
    if (Chance(5)) return 0;
    // From too little to more than all of it.
    return model_.largest * 9 / 10 + Below(model_.total * 6 / 5) + 1;
  }

  void Rebudget(hoist::Plan& plan) {
    const uint64_t budget = Budget();
    Tell("budget " + std::to_string(budget));
    const hoist::Status status = plan.SetBudget(budget);
    if (status.ok()) return;
    ASSERT_EQ(status.code(), hoist::Code::kResourceExhausted)
        << status.message();
    ASSERT_LT(budget, model_.largest);
  }

  void Pass(hoist::Plan& plan) {
    for (size_t at = 0; at < order_.size(); ++at) {
      uint32_t group = order_[at];
      if (Chance(5)) continue;                              // Skipped.
      if (Chance(3)) group = order_[Below(order_.size())];  // Out of order.
      if (Chance(2)) {  // Perhaps not in the plan.
        group = static_cast<uint32_t>(Below(model_.bytes.size()));
      }
      Use(plan, group);
      if (::testing::Test::HasFatalFailure()) return;
      if (Chance(5)) Use(plan, group);  // Repeated.
    }
    Drop(plan);
  }

  // Stages the group and checks its bytes, perhaps while another one is held.
  void Use(hoist::Plan& plan, uint32_t group) {
    Tell("stage " + std::to_string(group));
    hoist::Result<const void*> data = plan.Stage(group);
    if (!data.ok() && held_.has_value() &&
        data.status().code() == hoist::Code::kFailedPrecondition) {
      // They take turns in one place.
      Drop(plan);
      data = plan.Stage(group);
    }
    ASSERT_TRUE(data.ok()) << data.status().message();
    ++stages_;
    ASSERT_EQ(WrongWords(*data, number_, group, model_.bytes[group]), 0u)
        << "group " << group;
    if (held_.has_value()) {
      ASSERT_EQ(WrongWords(held_data_, number_, *held_, model_.bytes[*held_]),
                0u)
          << "held group " << *held_;
    }
    if (!held_.has_value() && Chance(15)) {
      Tell("hold");
      held_ = group;
      held_data_ = *data;
      return;
    }
    Ok(plan.Done(group), "done");
    if (held_.has_value() && Chance(50)) Drop(plan);
  }

  void Drop(hoist::Plan& plan) {
    if (!held_.has_value()) return;
    Tell("drop " + std::to_string(*held_));
    Ok(plan.Done(*held_), "done with what was held");
    held_.reset();
  }

  std::mt19937_64& random_;
  hoist::Session& session_;
  const uint64_t number_;
  const PatternModel& model_;
  std::vector<uint32_t> order_;
  std::optional<uint32_t> held_;
  const void* held_data_ = nullptr;
  std::string told_;
  uint64_t stages_ = 0;
  uint64_t streamed_ = 0;
};

PatternModel MakeModel(std::mt19937_64& random, hoist::Session& session,
                       uint64_t number) {
  PatternModel made{hoist::Model(nullptr), {}, 0, 0};
  const uint64_t groups = 1 + random() % 12;
  const uint64_t scale = 1 + random() % 16;
  for (uint64_t g = 0; g < groups; ++g) {
    // Even sizes, and wildly different ones.
    const uint64_t pages = number % 2 == 0 ? scale : 1 + random() % (4 * scale);
    const uint64_t odd = 8 * (random() % 64);
    made.bytes.push_back(pages * 4096 - odd);
    made.largest = std::max(made.largest, pages * 4096);
    made.total += pages * 4096;
  }
  hoist::Result<hoist::Model> model =
      PublishPattern(session, number, made.bytes);
  EXPECT_TRUE(model.ok()) << model.status().message();
  if (model.ok()) made.model = *std::move(model);
  return made;
}

TEST(Plans, RandomPlansBudgetsAndOrdersServeEveryByte) {
  const uint64_t seed = FromEnvironment("HOIST_SIM_SEED", 1);
  const uint64_t plans = FromEnvironment("HOIST_SIM_PLANS", kPlans);
  RealHoistd hoistd(HOISTD_BINARY);
  auto session = hoistd.Connect();
  ASSERT_TRUE(session.ok()) << session.status().message() << hoistd.Log();
  std::mt19937_64 model_random(seed);
  std::vector<PatternModel> models;
  for (uint64_t m = 0; m < kModels; ++m) {
    models.push_back(MakeModel(model_random, *session, m));
    ASSERT_FALSE(HasFailure());
  }
  uint64_t stages = 0, streamed = 0;
  for (uint64_t i = 0; i < plans; ++i) {
    // Each life has its own seed: HOIST_SIM_FIRST=i replays it alone.
    const uint64_t number = i + FromEnvironment("HOIST_SIM_FIRST", 0);
    std::mt19937_64 random(seed * 1'000'003 + number);
    const uint64_t which = random() % kModels;
    RandomPlan plan(random, *session, which, models[which]);
    plan.Run();
    stages += plan.stages();
    streamed += plan.streamed_plans();
    ASSERT_FALSE(HasFailure())
        << "HOIST_SIM_SEED=" << seed << " HOIST_SIM_FIRST=" << number
        << " HOIST_SIM_PLANS=1, model " << which << ":\n"
        << plan.told() << hoistd.Log();
  }
  EXPECT_GT(streamed, plans / 4);
  RecordProperty("stages", static_cast<int>(stages));
}

}  // namespace
}  // namespace hoistd::testing
