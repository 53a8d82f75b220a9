// What a session remembers of models that it is done with has a bound.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/src/model/model_uses.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoist::model_uses_bound_test {

using ::testing::Contains;
using ::testing::Not;
using ::testing::SizeIs;

ModelPtr Table(uint64_t id) {
  return std::make_shared<const ModelTable>(
      ModelTable::Create({.id = id, .name = std::to_string(id)}, {}).value());
}

TEST(ModelUses, OfThoseItIsDoneWithTheNewestAreSaidAgain) {
  std::vector<uint64_t> said;
  const auto uses = std::make_shared<ModelUses>(
      [&](uint64_t model, bool) { said.push_back(model); });
  const ModelPtr held = uses->Hold(Table(1));
  constexpr uint64_t kLast = 10 * ModelUses::kMostDone;
  for (uint64_t id = 2; id <= kLast; ++id) uses->DoneWith(*Table(id));
  uses->DoneWith(*held);  // The oldest, and in use yet.
  EXPECT_THAT(said, SizeIs(kLast - 1));
  said.clear();
  uses->SayAgain();
  EXPECT_THAT(said, SizeIs(ModelUses::kMostDone));
  EXPECT_THAT(said, Contains(kLast));
  EXPECT_THAT(said, Not(Contains(uint64_t{2})));
}

}  // namespace hoist::model_uses_bound_test
