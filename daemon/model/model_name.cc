#include "daemon/model/model_name.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/status.h"
#include "hoist/shared/printable.h"

namespace hoistd {
namespace {

constexpr char kOfSession = '@';

bool IsControl(uint32_t point) {
  return point < 0x20 || (point >= 0x7f && point < 0xa0);
}

absl::Status ValidateText(absl::string_view what, absl::string_view name,
                          size_t longest, bool allow_control) {
  if (name.size() > longest) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "'s name is ", name.size(), " bytes; at most ",
                     longest, " are allowed"));
  }
  for (size_t at = 0; at < name.size();) {
    const auto [point, bytes] =
        hoist::FirstCodePoint({name.data() + at, name.size() - at});
    at += bytes;
    if (bytes == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, "'s name is not valid UTF-8"));
    }
    if (point == 0 || (!allow_control && IsControl(point))) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, "'s name holds a ", point == 0 ? "NUL" : "control",
                       " character at byte ", at - 1));
    }
  }
  return absl::OkStatus();
}

// Bytes of "1000:" at the beginning; 0 if there is no such thing.
size_t OwnerPrefix(absl::string_view text) {
  const size_t colon = text.find(':');
  if (colon == absl::string_view::npos || colon == 0) return 0;
  const absl::string_view owner = text.substr(0, colon);
  return std::all_of(owner.begin(), owner.end(), absl::ascii_isdigit)
             ? colon + 1
             : 0;
}

}  // namespace

absl::Status ValidateGroupName(absl::string_view name) {
  if (name.empty()) {
    return absl::InvalidArgumentError("a group's name is empty");
  }
  return ValidateText("a group", name, kLongestName, false);
}

absl::Status ValidateModelName(absl::string_view name) {
  if (name.empty()) {
    return absl::InvalidArgumentError("the model's name is empty");
  }
  for (const char end : {name.front(), name.back()}) {
    if (end == '/' || end == ' ') {
      return absl::InvalidArgumentError(
          "the model's name begins or ends with '/' or a space");
    }
  }
  if (name.front() == kOfSession) {
    return absl::InvalidArgumentError(
        "the model's name begins with '@', which is how one that ends with its "
        "session is called");
  }
  if (OwnerPrefix(name) > 0) {
    return absl::InvalidArgumentError(
        "the model's name begins with digits and ':', which is how another "
        "user's model is written");
  }
  return ValidateText("the model", name, kLongestName, false);
}

std::string NameOfSession(SessionId session, absl::string_view name) {
  return absl::StrCat(std::string(1, kOfSession), session.number(), "/", name);
}

std::optional<SessionId> EndsWith(absl::string_view name) {
  const size_t slash = name.find('/');
  uint64_t session = 0;
  if (name.empty() || name.front() != kOfSession ||
      slash == absl::string_view::npos ||
      !absl::SimpleAtoi(name.substr(1, slash - 1), &session)) {
    return std::nullopt;
  }
  return SessionId(session);
}

absl::Status ValidateTensorName(absl::string_view name) {
  return ValidateText("a tensor", name, kLongestTensorName, true);
}

std::vector<OwnedName> MeantBy(User asker, absl::string_view text) {
  constexpr User kRoot = User(0);
  if (const size_t prefix = OwnerPrefix(text); prefix > 0) {
    uint32_t owner = 0;
    if (!absl::SimpleAtoi(text.substr(0, prefix - 1), &owner)) return {};
    return {{User(owner), std::string(text.substr(prefix))}};
  }
  std::vector<OwnedName> meant = {{asker, std::string(text)}};
  if (asker != kRoot) meant.push_back({kRoot, std::string(text)});
  const size_t colon = text.find(':');
  if (colon == absl::string_view::npos) return meant;
  if (const auto tenant = User::Tenant(text.substr(0, colon))) {
    meant.push_back({*tenant, std::string(text.substr(colon + 1))});
  }
  return meant;
}

std::string ToString(const OwnedName& model) {
  return absl::StrCat(ShortName(model.owner), ":", model.name);
}

std::string EscapeControl(absl::string_view name) {
  std::string out;
  while (!name.empty()) {
    const auto [point, bytes] =
        hoist::FirstCodePoint({name.data(), name.size()});
    const absl::string_view first = name.substr(0, std::max<size_t>(bytes, 1));
    name.remove_prefix(first.size());
    if (bytes > 0 && !IsControl(point)) {
      absl::StrAppend(&out, first);
      continue;
    }
    for (const char c : first) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(c));
    }
  }
  return out;
}

}  // namespace hoistd
