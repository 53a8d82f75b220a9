#ifndef HOIST_DAEMON_TYPES_USER_H_
#define HOIST_DAEMON_TYPES_USER_H_

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace hoistd {

// An owner: a uid, as the kernel reports it, or a tenant of hoistd.toml. All
// that comes through a tenant's socket belongs to the tenant, whatever its uid.
//
// A tenant is identified by its name alone, not by its place in hoistd.toml: so
// no edit gives one tenant's spilled images to another.
class User {
 public:
  static constexpr size_t kLongestTenant = 31;

  constexpr User() = default;
  constexpr explicit User(uint32_t uid) : uid_(uid) {}
  // nullopt: not 1 to 31 of a-z, 0-9, '-', '_' and '.', the first a letter.
  static std::optional<User> Tenant(absl::string_view name);

  bool is_tenant() const { return tenant_[0] != '\0'; }
  // Empty: no tenant.
  absl::string_view tenant() const { return tenant_.data(); }
  // 4,294,967,295, which is nobody's uid, for a tenant.
  constexpr uint32_t number() const { return uid_; }

  constexpr auto operator<=>(const User&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const User& user) {
    return H::combine(std::move(h), user.uid_, user.tenant_);
  }

 private:
  uint32_t uid_ = 0;
  std::array<char, kLongestTenant + 1> tenant_ = {};
};

// "1000", "a": the part before the ':' of a model's name.
inline std::string ShortName(const User& user) {
  return user.is_tenant() ? std::string(user.tenant())
                          : absl::StrCat(user.number());
}

// "uid 1000", "tenant a".
inline std::string ToString(const User& user) {
  return absl::StrCat(user.is_tenant() ? "tenant " : "uid ", ShortName(user));
}

inline std::optional<User> User::Tenant(absl::string_view name) {
  const auto fits = [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' ||
           c == '_' || c == '.';
  };
  if (name.empty() || name.size() > kLongestTenant ||
      !absl::ascii_islower(name.front()) ||
      !std::all_of(name.begin(), name.end(), fits)) {
    return std::nullopt;
  }
  User user(UINT32_MAX);
  std::copy(name.begin(), name.end(), user.tenant_.begin());
  return user;
}

}  // namespace hoistd

#endif  // HOIST_DAEMON_TYPES_USER_H_
