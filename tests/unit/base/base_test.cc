// The small things that everything else leans on.
#include <cerrno>
#include <cstdio>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/base/clock.h"
#include "daemon/base/hash.h"
#include "daemon/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::base_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string Hex(const Hash128& hash) {
  std::string hex;
  for (const uint8_t byte : hash) {
    char digits[3];
    snprintf(digits, sizeof(digits), "%02x", byte);
    hex += digits;
  }
  return hex;
}

TEST(Xxh3, IsTheHashThatOthersCompute) {
  // xxhsum -H2 of nothing; it is written into spill files, so it must not
  // change with the library.
  EXPECT_EQ(Hex(Xxh3({})), "99aa06d3014798d86001c324468d497f");
}

TEST(Xxh3, AStreamHashesAsTheWhole) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 7);
  Hasher hasher;
  const auto all = Bytes(text);
  hasher.Bytes(all.first(1)).Bytes(all.subspan(1, 3000));
  hasher.Bytes({}).Bytes(all.subspan(3001));
  EXPECT_EQ(hasher.Finish(), Xxh3(all));
}

TEST(Hasher, FieldsNeverRunTogether) {
  std::set<Hash128> hashes;
  hashes.insert(Hasher().String("ab").String("c").Finish());
  hashes.insert(Hasher().String("a").String("bc").Finish());
  hashes.insert(Hasher().String("abc").Finish());
  hashes.insert(Hasher().String("abc").String("").Finish());
  hashes.insert(Hasher().Number(1).Number(2).Finish());
  hashes.insert(Hasher().Number(2).Number(1).Finish());
  hashes.insert(Hasher().Number(1).Finish());
  EXPECT_EQ(hashes.size(), 7u);
}

TEST(ErrnoToStatus, SaysWhatFailedAndWhy) {
  EXPECT_THAT(ErrnoToStatus(ENOENT, "open x"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("open x"), HasSubstr("No such file"))));
  EXPECT_THAT(ErrnoToStatus(EACCES, "open x"),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(ErrnoToStatus(ENOMEM, "map"),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(Annotate, KeepsTheCodeAndPutsTheContextFirst) {
  EXPECT_THAT(Annotate(absl::DataLossError("damaged"), "shard 3"),
              StatusIs(absl::StatusCode::kDataLoss,
                       ::testing::MatchesRegex("shard 3.*damaged")));
  EXPECT_OK(Annotate(absl::OkStatus(), "shard 3"));
}

absl::StatusOr<int> Half(int number) {
  if (number % 2 != 0) return absl::InvalidArgumentError("odd");
  return number / 2;
}

absl::StatusOr<int> Quarter(int number) {
  HOIST_ASSIGN_OR_RETURN(const int half, Half(number));
  HOIST_RETURN_IF_ERROR(Half(half).status());
  return half / 2;
}

TEST(StatusMacros, PassErrorsOnAndValuesThrough) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_THAT(Quarter(3), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Quarter(6), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(MonotonicClock, NeverRunsBackwards) {
  const MonotonicClock clock;
  absl::Time last = clock.Now();
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = clock.Now();
    EXPECT_GE(now, last);
    last = now;
  }
}

TEST(Check, AbortsWithWhereAndWhat) {
  HOIST_CHECK(1 + 1 == 2);
  EXPECT_DEATH(HOIST_CHECK(1 + 1 == 3), "base_test.cc.*1 \\+ 1 == 3");
}

}  // namespace hoistd::base_test
