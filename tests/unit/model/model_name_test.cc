#include "daemon/model/model_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace hoistd::model_name_test {

using ::testing::HasSubstr;

using ::hoistd::testing::StatusIs;

constexpr auto kBad = absl::StatusCode::kInvalidArgument;

TEST(ModelName, NamesAreOneTo512Bytes) {
  EXPECT_THAT(ValidateModelName(""), StatusIs(kBad));
  EXPECT_THAT(ValidateGroupName(""), StatusIs(kBad));
  EXPECT_OK(ValidateModelName(std::string(512, 'm')));
  EXPECT_THAT(ValidateModelName(std::string(513, 'm')), StatusIs(kBad));
  EXPECT_THAT(ValidateGroupName(std::string(513, 'm')), StatusIs(kBad));
}

TEST(ModelName, OfWhatEndsWithASessionNoClientCanGive) {
  const std::string name = NameOfSession(SessionId(42), "acts/0");
  EXPECT_EQ(name, "@42/acts/0");
  EXPECT_EQ(EndsWith(name), SessionId(42));
  EXPECT_THAT(ValidateModelName(name), StatusIs(kBad, HasSubstr("'@'")));
  for (const char* other : {"", "@", "42/a", "@42", "@/a", "@x/a", "@-1/a",
                            "@99999999999999999999/a", "a@42/b"}) {
    EXPECT_EQ(EndsWith(other), std::nullopt) << other;
  }
}

TEST(ModelName, OnlyValidUtf8Counts) {
  for (const char* good :
       {"a", "\xc3\xa9", "\xe6\xa8\xa1\xe5\x9e\x8b", "\xf0\x9f\x98\x80",
        "org/name", "a b", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_OK(ValidateModelName(good)) << good;
  }
  for (const char* bad :
       {"\xff", "\x80", "\xc3", "\xc3(", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80",
        "\xe6\xa8", "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80",
        "\xf8\x88\x80\x80\x80", "a\xf0\x9f\x98"}) {
    EXPECT_THAT(ValidateModelName(bad), StatusIs(kBad)) << bad;
    EXPECT_THAT(ValidateGroupName(bad), StatusIs(kBad)) << bad;
    EXPECT_THAT(ValidateTensorName(bad), StatusIs(kBad)) << bad;
  }
}

TEST(ModelName, ControlCharactersAreForTensorsAlone) {
  for (const std::string bad : {"a\nb", "\x1b[2J", "a\x7f", "a\xc2\x85z"}) {
    EXPECT_THAT(ValidateModelName(bad), StatusIs(kBad));
    EXPECT_THAT(ValidateGroupName(bad), StatusIs(kBad));
    EXPECT_OK(ValidateTensorName(bad));
    EXPECT_OK(ValidateGroupName(EscapeControl(bad)));
  }
  EXPECT_THAT(ValidateTensorName(std::string("a\0b", 3)), StatusIs(kBad));
}

TEST(ModelName, EscapingLeavesOtherNamesAlone) {
  EXPECT_EQ(EscapeControl("a.\xe6\xa8\xa1/\\x"), "a.\xe6\xa8\xa1/\\x");
  EXPECT_EQ(EscapeControl("a\tb\xff"), "a\\x09b\\xff");
}

TEST(ModelName, ModelsDoNotBeginOrEndWithASlashOrSpace) {
  for (const char* bad : {"/", "/m", "m/", " m", "m "}) {
    EXPECT_THAT(ValidateModelName(bad), StatusIs(kBad)) << bad;
    EXPECT_OK(ValidateGroupName(bad)) << bad;
  }
}

}  // namespace hoistd::model_name_test
