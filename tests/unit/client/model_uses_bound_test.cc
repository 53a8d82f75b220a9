// What a session remembers of models that it is done with has a bound, and its
// reports hold up nobody.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/src/model/model_uses.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoist::model_uses_bound_test {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

ModelPtr Table(uint64_t id) {
  return std::make_shared<const ModelTable>(
      ModelTable::Create({.id = id, .name = std::to_string(id)}, {}).value());
}

TEST(ModelUses, OfThoseItIsDoneWithTheNewestAreSaidAgain) {
  std::vector<uint64_t> said;
  const auto uses = std::make_shared<ModelUses>(
      [&](uint64_t model, bool, const auto&) { said.push_back(model); });
  const ModelPtr held = uses->Hold(Table(1));
  constexpr uint64_t kLast = 10 * ModelUses::kMostDone;
  for (uint64_t id = 2; id <= kLast; ++id) uses->DoneWith(*Table(id));
  uses->DoneWith(*held);  // The oldest, and in use yet.
  EXPECT_THAT(said, SizeIs(kLast - 1));
  said.clear();
  uses->SayAgain(
      [&](uint64_t model, bool, const auto&) { said.push_back(model); });
  EXPECT_THAT(said, SizeIs(ModelUses::kMostDone));
  EXPECT_THAT(said, Contains(kLast));
  EXPECT_THAT(said, Not(Contains(uint64_t{2})));
}

// A report may wait for room in the socket, and others ask meanwhile.
struct Reports {
  std::function<void()> meanwhile = [] {};
  std::vector<std::pair<uint64_t, bool>> sent;  // With whether to forget it.
  const std::shared_ptr<ModelUses> uses = std::make_shared<ModelUses>(
      [this](uint64_t model, bool forget, const auto& still) {
        std::exchange(meanwhile, [] {})();
        if (still()) sent.emplace_back(model, forget);
      });
};

TEST(ModelUses, AReportHoldsUpNobody) {
  Reports reports;
  ModelPtr held;
  reports.meanwhile = [&] {
    held = reports.uses->Hold(Table(2));
    EXPECT_THAT(*reports.uses->InUse(), ElementsAre(2));
  };
  reports.uses->DoneWith(*Table(1));
  EXPECT_THAT(reports.sent, ElementsAre(Pair(1, false)));
}

TEST(ModelUses, AReportIsNotSentOfWhatWasAskedForOrIsHeldMeanwhile) {
  Reports reports;
  reports.meanwhile = [&] { reports.uses->AskedFor(*Table(1)); };
  reports.uses->DoneWith(*Table(1), true);
  ModelPtr held;
  reports.meanwhile = [&] { held = reports.uses->Hold(Table(1)); };
  reports.uses->DoneWith(*Table(1));
  EXPECT_THAT(reports.sent, IsEmpty());
  held.reset();
  EXPECT_THAT(reports.sent, ElementsAre(Pair(1, false)));
}

TEST(ModelUses, AReportWaitsForAnAnswerThatWasAskedForMeanwhile) {
  Reports reports;
  std::optional<ModelUses::Ask> ask;
  reports.meanwhile = [&] { ask.emplace(*reports.uses, "1"); };
  reports.uses->DoneWith(*Table(1), true);
  EXPECT_THAT(reports.sent, IsEmpty());
  ask.reset();
  EXPECT_THAT(reports.sent, ElementsAre(Pair(1, true)));
}

TEST(ModelUses, OfReportsThatDifferTheLastIsSent) {
  Reports reports;
  reports.meanwhile = [&] { reports.uses->DoneWith(*Table(1), true); };
  reports.uses->DoneWith(*Table(1));
  EXPECT_THAT(reports.sent, ElementsAre(Pair(1, true)));
}

}  // namespace hoist::model_uses_bound_test
