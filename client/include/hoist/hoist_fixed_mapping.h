// Fixed mappings, for C++: a header of its own, which hoist.h does not include.
#ifndef HOIST_HOIST_FIXED_MAPPING_H_
#define HOIST_HOIST_FIXED_MAPPING_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hoist/hoist.h"

namespace hoist {
inline namespace v0 {

// Reserved addresses of this process for some groups of a model, mapped while
// the mapping is full; see hoist_c.h. Move-only; the destructor empties it and
// gives the addresses back.
//
//   hoist::Result<hoist::FixedMapping> mapping =
//       hoist::FixedMapping::Create(session, model, {0, 1, 2});
//   if (!mapping.ok()) return mapping.status();
//   hoist::Status filled = mapping->Fill(session, model, {0, 1, 2}, 30s);
//   ... kernels that read mapping->address(0) ...
//   hoist::Status empty = mapping->Empty();
class FixedMapping
    : internal::Handle<hoist_fixed_mapping, hoist_fixed_mapping_free> {
 public:
  explicit FixedMapping(hoist_fixed_mapping* handle)
      : Handle(handle) {}  // Owns it.

  // Reserves addresses; stages nothing. It holds neither session nor model.
  static Result<FixedMapping> Create(const Session& session, const Model& model,
                                     const std::vector<uint32_t>& groups,
                                     uint32_t device = 0) {
    return internal::Take<FixedMapping, hoist_fixed_mapping*>(
        hoist_fixed_mapping_create, session.get(), model.get(), groups.data(),
        groups.size(), device);
  }

  // Stages the groups, and maps each at its address; no effect on a full
  // mapping. `deadline`: each group's wait for space; 0: refuse at once.
  // InvalidArgument: their count or layout differs from the mapping's. On any
  // error the mapping is empty.
  Status Fill(const Session& session, const Model& model,
              const std::vector<uint32_t>& groups,
              std::chrono::milliseconds deadline) {
    return Call(hoist_fixed_mapping_fill, session.get(), model.get(),
                groups.data(), groups.size(),
                static_cast<uint64_t>(deadline.count()));
  }
  // Gives everything back but the addresses; all reads must have ended.
  Status Empty() { return Call(hoist_fixed_mapping_empty); }
  // A group's first byte, by its index in the mapping; constant for the
  // mapping's life. nullptr: the image is empty, or there is no such group.
  const void* address(size_t group) const {
    const void* data = nullptr;
    hoist_fixed_mapping_address(handle_.get(), group, &data, nullptr);
    return data;
  }
  hoist_fixed_mapping* get() const { return handle_.get(); }  // For the C API.
};

}  // namespace v0
}  // namespace hoist

#endif  // HOIST_HOIST_FIXED_MAPPING_H_
