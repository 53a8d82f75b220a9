#include "daemon/core/pool_policy.h"

#include "gtest/gtest.h"

namespace hoistd::pool_policy_test {

constexpr uint64_t kTotal = 1000;
constexpr uint64_t kHeadroom = 100;
constexpr uint64_t kPool = 800;

class PoolPolicyTest : public ::testing::Test {
 protected:
  std::optional<uint64_t> Look(uint64_t others,
                               absl::Duration later = absl::Seconds(1)) {
    now_ += later;
    return policy_.Look(kTotal, others, kHeadroom, now_);
  }
  void ShrinkTo(uint64_t capacity) {
    Look(kTotal - kHeadroom - capacity);
    ASSERT_EQ(Look(kTotal - kHeadroom - capacity), capacity);
  }

  PoolPolicy policy_{kPool};
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(PoolPolicyTest, ThePoolStaysWhileThereIsRoom) {
  for (const uint64_t others : {0, 50, 100, 0, 100}) {
    EXPECT_EQ(Look(others), std::nullopt);
  }
  EXPECT_EQ(policy_.capacity(), kPool);
}

TEST_F(PoolPolicyTest, ItFallsAtTheSecondLook) {
  EXPECT_EQ(Look(400), std::nullopt);
  EXPECT_EQ(Look(400), 500u);
  EXPECT_EQ(Look(400), std::nullopt);
}

TEST_F(PoolPolicyTest, ASingleLookMovesNothing) {
  EXPECT_EQ(Look(900), std::nullopt);
  EXPECT_EQ(Look(100), std::nullopt);
  EXPECT_EQ(Look(900), std::nullopt);
  EXPECT_EQ(Look(300), 600u) << "the lesser of the two";
}

TEST_F(PoolPolicyTest, NothingIsLeftOnceOthersTakeAll) {
  ShrinkTo(0);
  EXPECT_EQ(Look(kTotal), std::nullopt);
  EXPECT_EQ(Look(UINT64_MAX), std::nullopt) << "a driver may say anything";
}

TEST_F(PoolPolicyTest, ItRisesToTheLeastRoomOfACalmTime) {
  ShrinkTo(300);
  EXPECT_EQ(Look(200), std::nullopt);
  EXPECT_EQ(Look(400), std::nullopt);
  EXPECT_EQ(Look(200, PoolPolicy::kCalm), 500u);
}

TEST_F(PoolPolicyTest, WhoTakesAndGivesByTurnsDoesNotMoveIt) {
  ShrinkTo(300);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Look(200), std::nullopt);
    EXPECT_EQ(Look(200), std::nullopt);
    EXPECT_EQ(Look(600), std::nullopt);
  }
}

TEST_F(PoolPolicyTest, ChangesBelowAQuarterOfTheHeadroomAreLeftOut) {
  ShrinkTo(300);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Look(600 + 24), std::nullopt);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Look(600 - 24), std::nullopt);
  EXPECT_EQ(Look(600 + 25), std::nullopt);
  EXPECT_EQ(Look(600 + 25), 275u);
}

TEST_F(PoolPolicyTest, ItBecomesWholeAgain) {
  ShrinkTo(kPool - 30);
  Look(100 + 10);
  EXPECT_EQ(Look(100 + 10, PoolPolicy::kCalm), std::nullopt) << "a small step";
  Look(0);
  EXPECT_EQ(Look(0, PoolPolicy::kCalm), kPool);
}

TEST_F(PoolPolicyTest, WithoutHeadroomItIsWhole) {
  ShrinkTo(300);
  now_ += absl::Seconds(1);
  EXPECT_EQ(policy_.Look(kTotal, 0, 0, now_), std::nullopt);
  now_ += PoolPolicy::kCalm;
  EXPECT_EQ(policy_.Look(kTotal, 0, 0, now_), kPool);
}

}  // namespace hoistd::pool_policy_test
