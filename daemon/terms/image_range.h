#ifndef HOIST_DAEMON_TERMS_IMAGE_RANGE_H_
#define HOIST_DAEMON_TERMS_IMAGE_RANGE_H_

#include <compare>
#include <cstdint>
#include <vector>

namespace hoistd {

// Bytes of an image, and where in the host pool they lie.
struct ImageRange {
  uint64_t host_offset = 0;
  uint64_t image_offset = 0;
  uint64_t bytes = 0;

  auto operator<=>(const ImageRange&) const = default;
};

// All of an image, in its order; none is empty. What lies between them is
// padding.
using ImageRanges = std::vector<ImageRange>;

}  // namespace hoistd

#endif  // HOIST_DAEMON_TERMS_IMAGE_RANGE_H_
