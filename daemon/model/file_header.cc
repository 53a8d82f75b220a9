#include "daemon/model/file_header.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace hoistd {

std::string Quoted(absl::string_view hostile) {
  constexpr size_t kShown = 64;
  return absl::StrCat("\"", absl::CHexEscape(hostile.substr(0, kShown)),
                      hostile.size() > kShown ? "..." : "", "\"");
}

absl::Status BadTensor(absl::string_view name, absl::string_view rule) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", Quoted(name), ": ", rule));
}

}  // namespace hoistd
