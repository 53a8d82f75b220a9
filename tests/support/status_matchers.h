// IsOk(), StatusIs(code, message matcher): what Debian's Abseil lacks.
#ifndef HOIST_TESTS_SUPPORT_STATUS_MATCHERS_H_
#define HOIST_TESTS_SUPPORT_STATUS_MATCHERS_H_

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"

namespace hoistd::testing {

inline absl::Status StatusOf(const absl::Status& status) { return status; }
template <typename T>
absl::Status StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, "is OK") {
  const absl::Status status = StatusOf(arg);
  if (status.ok()) return true;
  *result_listener << "which is " << status.ToString();
  return false;
}

MATCHER_P2(StatusIs, code, message, "") {
  const absl::Status status = StatusOf(arg);
  *result_listener << "which is " << status.ToString();
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(status.message()),
                                       result_listener);
}

inline auto StatusIs(absl::StatusCode code) {
  return StatusIs(code, ::testing::_);
}

}  // namespace hoistd::testing

#define HOIST_CAT2_(a, b) a##b
#define HOIST_CAT_(a, b) HOIST_CAT2_(a, b)
#define ASSERT_OK(expr) ASSERT_THAT((expr), ::hoistd::testing::IsOk())
#define EXPECT_OK(expr) EXPECT_THAT((expr), ::hoistd::testing::IsOk())
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  ASSERT_OK_AND_ASSIGN_(HOIST_CAT_(or_, __LINE__), lhs, expr)
#define ASSERT_OK_AND_ASSIGN_(tmp, lhs, expr)       \
  auto tmp = (expr);                                \
  ASSERT_TRUE(tmp.ok()) << tmp.status().ToString(); \
  lhs = *std::move(tmp)

#endif  // HOIST_TESTS_SUPPORT_STATUS_MATCHERS_H_
