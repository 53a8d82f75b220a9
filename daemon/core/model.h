// A model: a named set of groups with one fingerprint. Immutable; shared by
// const pointer.
#ifndef HOIST_DAEMON_CORE_MODEL_H_
#define HOIST_DAEMON_CORE_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/core/ids.h"
#include "daemon/core/tensor.h"

namespace hoistd {

struct ModelSpec {
  std::string name;
  // XXH3-128 over the file identities and the groups with their layout (files),
  // or over the groups' fingerprints in order (published).
  Fingerprint fingerprint = {};
  bool published = false;
  // Files, in the order that SourceRun::file counts; empty if published.
  std::vector<std::string> files;
  std::vector<FileIdentity> identities;
  std::vector<std::shared_ptr<const Group>> groups;
  // Of each group's table and bytes; published models only.
  std::vector<Fingerprint> group_fingerprints;
  uint64_t image_bytes = 0;  // Of all groups.
  uint32_t tensors = 0;
};

// nullopt: the model has no such group.
std::optional<GroupIndex> FindGroup(const ModelSpec& model,
                                    absl::string_view name);

// 32 hexadecimal digits.
std::string FingerprintHex(const Fingerprint& fingerprint);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_MODEL_H_
