#include "tests/conformance/device/share_text.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace hoistd::testing {

std::string ToHex(std::span<const uint8_t> bytes) {
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

std::vector<uint8_t> FromHex(const std::string& text) {
  const std::string bytes = absl::HexStringToBytes(text);
  return std::vector<uint8_t>(bytes.begin(), bytes.end());
}

std::string SlabText(const SlabSpec& spec, const SlabShare& share) {
  return absl::StrCat(spec.id.number(), " ", spec.offset, " ", spec.bytes, " ",
                      static_cast<int>(spec.backing), " ",
                      ToHex(share.ipc_handle), " ", spec.apart ? 1 : 0, " ",
                      share.numa_node);
}

}  // namespace hoistd::testing
