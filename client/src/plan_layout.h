// What hoistd answered to a plan, checked against what was asked.
#ifndef HOIST_CLIENT_SRC_PLAN_LAYOUT_H_
#define HOIST_CLIENT_SRC_PLAN_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "client/src/messages.h"
#include "client/src/model_table.h"
#include "hoist/shared/status.h"

namespace hoist {

// Plain data.
struct PlanLayout {
  struct Streamed {
    uint32_t group = 0;  // Of the model.
    const void* address = nullptr;
    uint64_t offset = 0;  // Of its slot.
    uint64_t bytes = 0;

    bool Overlaps(const Streamed& other) const {
      return offset < other.offset + other.bytes &&
             other.offset < offset + bytes;
    }
  };

  std::vector<uint32_t> residents;  // In order of first use.
  std::vector<Streamed> streamed;   // By the lane's numbers.
  std::vector<uint32_t> order;      // Of one pass, in the lane's numbers.
  uint64_t all_bytes = 0;           // A budget that keeps all of it resident.
};

// `order` as it was sent: no group of it is empty. Internal: the answer is not
// one to this question, or a slot is smaller than its image.
Result<PlanLayout> CheckPlan(const PlanGrant& grant, const ModelTable& model,
                             const std::vector<uint32_t>& order);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PLAN_LAYOUT_H_
