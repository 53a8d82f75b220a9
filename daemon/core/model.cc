#include "daemon/core/model.h"

#include "absl/strings/escaping.h"

namespace hoistd {

std::optional<GroupIndex> FindGroup(const ModelSpec& model,
                                    absl::string_view name) {
  for (uint32_t g = 0; g < model.groups.size(); ++g) {
    if (model.groups[g]->name == name) return GroupIndex(g);
  }
  return std::nullopt;
}

std::string FingerprintHex(const Fingerprint& fingerprint) {
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(fingerprint.data()), fingerprint.size()));
}

}  // namespace hoistd
