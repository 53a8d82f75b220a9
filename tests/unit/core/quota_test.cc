#include "daemon/core/quota.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::quota_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr User kAda(1000), kBob(1001), kRoot(0);
constexpr DeviceIndex kFirst(0), kSecond(1);

QuotaOptions Options() {
  QuotaOptions options;
  options.each.sessions = 2;
  options.each.published_bytes = 8192;
  options.each.device_bytes = {4096};
  options.trusted = {kRoot};
  options.of_trusted.sessions = 3;
  return options;
}

CopyRef CopyOf(uint32_t group, TierAt at) {
  return {{ModelId(1), GroupIndex(group)}, {at, false}};
}

TEST(QuotaBook, AUserMayHoldSoMuchAndNoMore) {
  QuotaBook book(Options());
  ASSERT_OK(book.Check(kAda, Quota::kSessions, 2));
  book.Add(kAda, Quota::kSessions, 2);
  EXPECT_THAT(book.Check(kAda, Quota::kSessions, 1),
              StatusIs(kExhausted,
                       "uid 1000 holds 2 of 2 sessions; close one, or "
                       "raise quota.sessions in hoistd.toml"));
  EXPECT_OK(book.Check(kBob, Quota::kSessions, 1));
  book.Remove(kAda, Quota::kSessions, 1);
  EXPECT_OK(book.Check(kAda, Quota::kSessions, 1));
}

TEST(QuotaBook, EachRefusalNamesItsKeyAndItsUser) {
  QuotaOptions options;
  options.each = {.sessions = 0,
                  .plans = 0,
                  .models = 0,
                  .descriptors = 0,
                  .header_bytes = 0,
                  .held_bytes = 0,
                  .published_bytes = 0,
                  .device_bytes = {0}};
  const QuotaBook book(options);
  const std::pair<Quota, const char*> keys[] = {
      {Quota::kSessions, "quota.sessions"},
      {Quota::kPlans, "quota.plans"},
      {Quota::kModels, "quota.models"},
      {Quota::kDescriptors, "quota.descriptors"},
      {Quota::kHeaderBytes, "quota.header_bytes"},
      {Quota::kHeldBytes, "quota.held_bytes"},
      {Quota::kPublishedBytes, "quota.published_bytes"}};
  for (const auto& [what, key] : keys) {
    EXPECT_THAT(book.Check(kAda, what, 1),
                StatusIs(kExhausted,
                         AllOf(HasSubstr("uid 1000 holds 0"), HasSubstr(key),
                               HasSubstr("in hoistd.toml"))));
  }
  EXPECT_THAT(
      book.CheckDevice(kAda, kFirst, 4096),
      StatusIs(kExhausted, AllOf(HasSubstr("holds 0 B of 0 B of device 0"),
                                 HasSubstr("asks for 4.0 KiB"),
                                 HasSubstr("quota.device_bytes"))));
}

TEST(QuotaBook, AnAmountThatWouldWrapIsRefused) {
  QuotaBook book(Options());
  book.Add(kAda, Quota::kPublishedBytes, 4096);
  EXPECT_THAT(book.Check(kAda, Quota::kPublishedBytes, UINT64_MAX),
              StatusIs(kExhausted));
  EXPECT_OK(book.Check(kAda, Quota::kPublishedBytes, 4096));
}

TEST(QuotaBook, TrustedUsersHaveLimitsOfTheirOwn) {
  const QuotaBook book(Options());
  EXPECT_OK(book.Check(kRoot, Quota::kSessions, 3));
  EXPECT_THAT(book.Check(kRoot, Quota::kSessions, 4), StatusIs(kExhausted));
  EXPECT_OK(book.CheckDevice(kRoot, kFirst, uint64_t{1} << 40));
}

TEST(QuotaBook, ACopyCountsOnceAUserAndInFullForEach) {
  QuotaBook book(Options());
  const CopyRef copy = CopyOf(0, OnDevice(kFirst));
  book.Use(kAda, copy, 4096);
  book.Use(kAda, copy, 4096);
  book.Use(kBob, copy, 4096);
  EXPECT_EQ(book.Of(kAda).On(kFirst), 4096u);
  EXPECT_EQ(book.Of(kBob).On(kFirst), 4096u);
  book.Unuse(kAda, copy);
  EXPECT_TRUE(book.Uses(kAda, copy));
  EXPECT_EQ(book.Of(kAda).On(kFirst), 4096u);
  book.Unuse(kAda, copy);
  EXPECT_FALSE(book.Uses(kAda, copy));
  EXPECT_EQ(book.Of(kAda).On(kFirst), 0u);
  EXPECT_EQ(book.Of(kBob).On(kFirst), 4096u);
}

TEST(QuotaBook, DevicesAndTheHostCountApart) {
  QuotaBook book(Options());
  book.Use(kAda, CopyOf(0, OnDevice(kFirst)), 1);
  book.Use(kAda, CopyOf(0, OnDevice(kSecond)), 2);
  book.Use(kAda, CopyOf(0, OnHost()), 4);
  book.AddBytes(kAda, kSecond, 8);
  EXPECT_EQ(book.Of(kAda).On(kFirst), 1u);
  EXPECT_EQ(book.Of(kAda).On(kSecond), 10u);
  EXPECT_EQ(book.Of(kAda).Of(Quota::kHeldBytes), 4u);
  // A device without a limit has none.
  EXPECT_OK(book.CheckDevice(kAda, kSecond, uint64_t{1} << 40));
}

TEST(QuotaBook, WhoHoldsNothingLeavesNothing) {
  QuotaBook book(Options());
  const CopyRef copy = CopyOf(0, OnHost());
  book.Use(kAda, copy, 4096);
  book.AddBytes(kAda, kFirst, 4096);
  book.Add(kAda, Quota::kModels, 1);
  book.Add(kBob, Quota::kModels, 0);
  book.Unuse(kAda, copy);
  book.RemoveBytes(kAda, kFirst, 4096);
  book.Remove(kAda, Quota::kModels, 1);
  EXPECT_THAT(book.users(), IsEmpty());
}

}  // namespace hoistd::quota_test
