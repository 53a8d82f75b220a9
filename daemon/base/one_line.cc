#include "daemon/base/one_line.h"

#include "absl/strings/escaping.h"

namespace hoistd {

std::string OneLine(absl::string_view text, size_t most_bytes) {
  std::string line = absl::Utf8SafeCEscape(text.substr(0, most_bytes));
  if (most_bytes < text.size()) line += "...";
  return line;
}

}  // namespace hoistd
