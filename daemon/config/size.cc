#include "daemon/config/size.h"

#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace hoistd {
namespace {

struct Unit {
  absl::string_view name;
  uint64_t bytes;
};

constexpr Unit kUnits[] = {
    {"", 1},
    {"B", 1},
    {"KiB", uint64_t{1} << 10},
    {"MiB", uint64_t{1} << 20},
    {"GiB", uint64_t{1} << 30},
    {"TiB", uint64_t{1} << 40},
    {"kB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
};

}  // namespace

std::optional<uint64_t> ParseSize(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  size_t digits = 0;
  while (digits < text.size() && absl::ascii_isdigit(text[digits])) ++digits;
  uint64_t number = 0;
  if (digits == 0 || !absl::SimpleAtoi(text.substr(0, digits), &number)) {
    return std::nullopt;
  }
  const absl::string_view name =
      absl::StripLeadingAsciiWhitespace(text.substr(digits));
  for (const Unit& unit : kUnits) {
    if (name != unit.name) continue;
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    if (number > kMost / unit.bytes) return std::nullopt;
    return number * unit.bytes;
  }
  return std::nullopt;
}

std::optional<SizeOrPercent> ParseSizeOrPercent(absl::string_view text) {
  absl::string_view number = absl::StripAsciiWhitespace(text);
  if (!absl::ConsumeSuffix(&number, "%")) {
    const std::optional<uint64_t> bytes = ParseSize(text);
    if (!bytes.has_value()) return std::nullopt;
    return SizeOrPercent{.bytes = *bytes};
  }
  uint32_t percent = 0;
  const bool digits = !number.empty() && absl::ascii_isdigit(number.front());
  if (!digits || !absl::SimpleAtoi(number, &percent)) return std::nullopt;
  if (percent < 1 || percent > 100) return std::nullopt;
  return SizeOrPercent{.percent = percent};
}

std::optional<uint64_t> ParseRate(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (text == "0") return 0;
  if (!absl::ConsumeSuffix(&text, "/s")) return std::nullopt;
  return ParseSize(text);
}

}  // namespace hoistd
