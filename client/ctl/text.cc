#include "client/ctl/text.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "hoist/shared/printable.h"

namespace hoist::ctl {
namespace {

std::string HexByte(unsigned char byte) {
  char text[8];
  std::snprintf(text, sizeof(text), "%02x", byte);
  return text;
}

}  // namespace

std::string CapText(uint64_t max_bytes_per_second) {
  if (max_bytes_per_second == 0) return "no cap";
  return "at most " + HumanBytes(max_bytes_per_second) + "/s";
}

std::string ShareText(const v1::Share& share) {
  return "weight " + std::to_string(share.weight()) + ", priority " +
         std::to_string(share.priority()) + ", " +
         CapText(share.max_bytes_per_second());
}

std::string UserName(const std::string& tenant, uint32_t uid) {
  return tenant.empty() ? std::to_string(uid) : Shown(tenant);
}

std::string HumanTime(uint64_t ms) {
  if (ms < 1000) return std::to_string(ms) + " ms";
  const uint64_t s = ms / 1000;
  if (s < 60) return std::to_string(s) + " s";
  const uint64_t min = s / 60;
  if (min < 60) {
    return std::to_string(min) + " min " + std::to_string(s % 60) + " s";
  }
  const uint64_t h = min / 60;
  if (h < 24) {
    return std::to_string(h) + " h " + std::to_string(min % 60) + " min";
  }
  return std::to_string(h / 24) + " d " + std::to_string(h % 24) + " h";
}

std::string Shown(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const size_t length = PrintableLength(text);
    if (length == 0) {
      shown += "\\x" + HexByte(static_cast<unsigned char>(text[0]));
      text.remove_prefix(1);
    } else {
      shown += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return shown;
}

size_t Columns(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) {
        return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
      }));
}

std::string TierName(v1::Tier tier, uint32_t device) {
  switch (static_cast<int>(tier)) {
    case v1::TIER_DEVICE:
      return "device " + std::to_string(device);
    case v1::TIER_HOST:
      return "host";
    case v1::TIER_PAGEABLE:
      return "pageable";
    case v1::TIER_DISK:
      return "disk";
  }
  return "-";
}

std::string ResidencyName(v1::Residency residency) {
  std::string name = v1::Residency_Name(residency);
  const size_t prefix = std::string_view("RESIDENCY_").size();
  if (name.size() <= prefix) return "?";
  name = name.substr(prefix);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return name;
}

std::string Hex(std::string_view bytes) {
  std::string hex;
  for (char byte : bytes) hex += HexByte(static_cast<unsigned char>(byte));
  return hex;
}

std::string ProcessText(uint32_t pid) {
  return pid == 0 ? "outside" : std::to_string(pid);
}

}  // namespace hoist::ctl
