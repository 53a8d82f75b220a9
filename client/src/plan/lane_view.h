// A lane, mapped by its client.
#ifndef HOIST_CLIENT_SRC_PLAN_LANE_VIEW_H_
#define HOIST_CLIENT_SRC_PLAN_LANE_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "hoist/shared/lane_layout.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

// Typed access to the mapping. Map checks the fixed part once; hoistd may write
// the words at any time, so no reader trusts them.
//
// Owns:     the mapping.
class LaneView {
 public:
  // Internal: not a lane, or with other counts of groups and positions, or
  // memory that could shrink.
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

  // hoistd's reason for the plan's end, or ok.
  Status Fault() const;

 private:
  LaneView(Mapping mapping, uint32_t groups)
      : mapping_(std::move(mapping)), groups_(groups) {}

  Mapping mapping_;
  uint32_t groups_;  // Not the header's, which may change.
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PLAN_LANE_VIEW_H_
