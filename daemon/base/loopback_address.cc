#include "daemon/base/loopback_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace hoistd {
namespace {

constexpr char kAllowed[] =
    "must be a loopback address and a port, such as \"127.0.0.1:9464\" or "
    "\"[::1]:9464\": nothing guards it. For other machines put a proxy that "
    "asks who they are, or a node agent, before it";

absl::Status Refused(absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text.substr(0, 100), "\" ", kAllowed));
}

}  // namespace

absl::StatusOr<LoopbackAddress> ParseLoopback(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return Refused(text);
  std::string host(text.substr(0, colon));
  const absl::string_view digits = text.substr(colon + 1);
  uint32_t port = 0;
  if (digits.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(digits, &port) || port == 0 || port > 65535) {
    return Refused(text);
  }
  LoopbackAddress made;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    sockaddr_in6 address = {};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(static_cast<uint16_t>(port));
    host = host.substr(1, host.size() - 2);
    if (inet_pton(AF_INET6, host.c_str(), &address.sin6_addr) != 1 ||
        !IN6_IS_ADDR_LOOPBACK(&address.sin6_addr)) {
      return Refused(text);
    }
    std::memcpy(&made.address, &address, sizeof(address));
    made.bytes = sizeof(address);
    return made;
  }
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1 ||
      ntohl(address.sin_addr.s_addr) >> 24 != IN_LOOPBACKNET) {
    return Refused(text);
  }
  std::memcpy(&made.address, &address, sizeof(address));
  made.bytes = sizeof(address);
  return made;
}

}  // namespace hoistd
