#include "client/src/base/sha256.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace hoist {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string Hex(const Sha256Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const uint8_t byte : digest) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
}

class Sha256Test : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !Sha256::HasInstructions()) {
      GTEST_SKIP() << "this processor has no SHA instructions";
    }
  }
};

// The examples of FIPS 180-4.
TEST_P(Sha256Test, IsTheStandards) {
  const auto hex = [](std::string_view text) {
    return Hex(Sha256(GetParam()).Bytes(BytesOf(text)).Finish());
  };
  EXPECT_EQ(hex(""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_P(Sha256Test, IsOfTheStreamHoweverItComes) {
  std::string text(1000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7);
  const Sha256Digest whole = Sha256(GetParam()).Bytes(BytesOf(text)).Finish();
  for (size_t step = 1; step < 200; ++step) {
    Sha256 hasher(GetParam());
    for (std::string_view rest = text; !rest.empty();) {
      const size_t now = std::min(step, rest.size());
      hasher.Bytes(BytesOf(rest.substr(0, now)));
      rest.remove_prefix(now);
    }
    EXPECT_EQ(hasher.Finish(), whole) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(PlainAndWithInstructions, Sha256Test,
                         ::testing::Bool());

}  // namespace
}  // namespace hoist
