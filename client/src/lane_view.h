// A lane as its client maps it.
#ifndef HOIST_CLIENT_SRC_LANE_VIEW_H_
#define HOIST_CLIENT_SRC_LANE_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "hoist/shared/lane_layout.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

// Typed places in the mapping. What is fixed was checked once, in Map; the
// words are hoistd's to write and are looked at with that in mind.
//
// Owns:     the mapping.
class LaneView {
 public:
  // Internal: no lane, or not one of so many groups and positions, or memory
  // that could shrink under its reader.
  static Result<LaneView> Map(const UniqueFd& memory, uint32_t groups,
                              uint32_t order_length);

  lane::Header& header() const {
    return *reinterpret_cast<lane::Header*>(mapping_.data());
  }
  uint32_t groups() const { return groups_; }
  lane::GroupWords& group(uint32_t index) const {
    return reinterpret_cast<lane::GroupWords*>(mapping_.data() +
                                               lane::GroupsOffset())[index];
  }
  lane::Request& request(uint32_t number) const {
    return reinterpret_cast<lane::Request*>(
        mapping_.data() +
        lane::RequestsOffset(groups_))[number % lane::kRequests];
  }
  std::span<std::byte> memory() const { return mapping_.span(); }

  // hoistd's reason to have ended the plan, or ok.
  Status Fault() const;

 private:
  LaneView(Mapping mapping, uint32_t groups)
      : mapping_(std::move(mapping)), groups_(groups) {}

  Mapping mapping_;
  uint32_t groups_;  // Not the header's, which may change.
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_LANE_VIEW_H_
