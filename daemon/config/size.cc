#include "daemon/config/size.h"

#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "hoist/shared/size_text.h"

namespace hoistd {

std::optional<SizeOrPercent> ParseSizeOrPercent(absl::string_view text) {
  absl::string_view number = absl::StripAsciiWhitespace(text);
  if (!absl::ConsumeSuffix(&number, "%")) {
    const std::optional<uint64_t> bytes =
        hoist::ParseSize(std::string_view(text.data(), text.size()));
    if (!bytes.has_value()) return std::nullopt;
    return SizeOrPercent{.bytes = *bytes};
  }
  uint32_t percent = 0;
  const bool digits = !number.empty() && absl::ascii_isdigit(number.front());
  if (!digits || !absl::SimpleAtoi(number, &percent)) return std::nullopt;
  if (percent < 1 || percent > 100) return std::nullopt;
  return SizeOrPercent{.percent = percent};
}

}  // namespace hoistd
