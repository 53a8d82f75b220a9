// A model: a named set of groups with one fingerprint. Immutable; shared by
// const pointer.
#ifndef HOIST_DAEMON_MODEL_MODEL_H_
#define HOIST_DAEMON_MODEL_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/model/sheet.h"
#include "daemon/model/tensor.h"
#include "daemon/types/ids.h"

namespace hoistd {

struct ModelSpec {
  std::string name;
  // Of files: SHA-256 over their identities and the groups with their layout.
  Content content = {};
  bool published = false;
  // Files, in the order that SheetRange::file counts; empty if published.
  std::vector<std::string> files;
  std::vector<FileIdentity> identities;
  Sheets sheets;
  std::vector<std::shared_ptr<const Group>> groups;
  // Published models only.
  std::vector<Content> group_contents;
  uint64_t image_bytes = 0;  // Of all groups.
  uint32_t tensors = 0;
  uint64_t book_bytes = 0;  // BookBytesOf each group and sheet.
};

// hoistd's memory that a model's group takes, whatever tier its image is on:
// its names, tensors and runs, and what the books keep of it.
uint64_t BookBytesOf(const Group& group);
uint64_t BookBytesOf(const Sheet& sheet);
// Its tensors', each once, sorted.
std::vector<std::string> BlockTypesOf(const Group& group);

// nullopt: the model has no such group.
std::optional<GroupIndex> FindGroup(const ModelSpec& model,
                                    absl::string_view name);

// 32 hexadecimal digits.
std::string FingerprintHex(const Fingerprint& fingerprint);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MODEL_MODEL_H_
