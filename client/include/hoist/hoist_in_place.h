// Zero-copy tensors, for C++. Part of hoist.h, which includes this.
#ifndef HOIST_HOIST_IN_PLACE_H_
#define HOIST_HOIST_IN_PLACE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hoist/hoist_c.h"
#include "hoist/hoist_types.h"

namespace hoist {
inline namespace v0 {

// A tensor's pieces: groups of one model, end to end. See
// hoist_in_place_tensor.
struct InPlaceTensor {
  std::vector<uint32_t> groups;
  uint32_t units = 1;        // Equal parts: rows, experts.
  uint64_t first_count = 0;  // Index in InPlaceOptions::counts.
};

// Of Session::ReadInPlace; see hoist_in_place_options.
struct InPlaceOptions {
  uint32_t device = 0;
  uint64_t hot_budget_bytes = 0;
  std::chrono::milliseconds deadline{60'000};
  // On the device, for the tensors' life. nullptr: counts come by Touch.
  const uint32_t* counts = nullptr;
  uint64_t count_length = 0;
};

// Tensors whose pieces are in device memory (hot) or in host memory (cold), at
// one address each; see hoist_c.h. Move-only; all reads must end before it
// does.
class InPlace : internal::Handle<hoist_in_place, hoist_in_place_free> {
 public:
  explicit InPlace(hoist_in_place* handle) : Handle(handle) {}  // Owns it.

  // OutOfRange: no such tensor.
  Result<const void*> Address(size_t tensor) const {
    return Take<const void*>(hoist_in_place_address, tensor);
  }
  // A pass is launched between Begin and End; see hoist_in_place_begin.
  Status Begin(hoist_stream stream = nullptr) {
    return Call(hoist_in_place_begin, stream);
  }
  Status End() { return Call(hoist_in_place_end); }
  // Reports that a pass touched units[i] counts[i] times. InvalidArgument: the
  // lengths differ.
  Status Touch(size_t tensor, const std::vector<uint32_t>& units,
               const std::vector<uint32_t>& counts) {
    if (units.size() != counts.size()) {
      return Status(Code::kInvalidArgument, "a count for each unit is wanted");
    }
    return Call(hoist_in_place_touch, tensor, units.data(), counts.data(),
                units.size());
  }
  // Nothing may read the tensors meanwhile. See hoist_in_place_advance.
  Status Advance(bool wait = false) {
    return Call(hoist_in_place_advance, wait ? 1 : 0);
  }
  uint32_t pending() const { return hoist_in_place_pending(handle_.get()); }
  Status SetBudget(uint64_t hot_budget_bytes) {
    return Call(hoist_in_place_set_budget, hot_budget_bytes);
  }
  Status Check() const { return Call(hoist_in_place_check); }
  Status CheckHot() const { return Call(hoist_in_place_check_hot); }
  hoist_in_place* get() const { return handle_.get(); }  // For the C API.
  hoist_in_place_stats stats() const {
    return Filled<hoist_in_place_stats>(hoist_in_place_get_stats);
  }
};

}  // namespace v0
}  // namespace hoist

#endif  // HOIST_HOIST_IN_PLACE_H_
