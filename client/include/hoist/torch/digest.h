// A digest of weights. Internal to torch.h.
#ifndef HOIST_TORCH_DIGEST_H_
#define HOIST_TORCH_DIGEST_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace hoist {
inline namespace v0 {
namespace torch {
namespace internal {

// Identifies weights. Not cryptographic: hoistd refuses other bytes under an
// existing name.
class Digest {
 public:
  void Add(const void* data, size_t size) {
    const char* at = static_cast<const char*>(data);
    for (; size >= 32; at += 32, size -= 32) {
      for (int lane = 0; lane < 4; ++lane) Mix(at + 8 * lane, 8, lane);
    }
    for (; size > 0;) {
      const size_t step = std::min<size_t>(size, 8);
      Mix(at, step, 0);
      at += step;
      size -= step;
    }
  }
  void Add(const std::string& text) {
    Add(static_cast<int64_t>(text.size()));
    Add(text.data(), text.size());
  }
  void Add(int64_t number) { Add(&number, sizeof(number)); }

  std::string Hex() const {
    uint64_t all = 0;
    for (const uint64_t lane : lanes_) {
      all = (all ^ lane) * 0x9e3779b97f4a7c15u;
      all ^= all >> 32;
    }
    char text[17];
    std::snprintf(text, sizeof(text), "%016llx",
                  static_cast<unsigned long long>(all));
    return text;
  }

 private:
  void Mix(const char* at, size_t size, int lane) {
    uint64_t word = 0;
    std::memcpy(&word, at, size);
    uint64_t& state = lanes_[lane];
    state = (state ^ word) * 0x9e3779b97f4a7c15u;
    state ^= state >> 29;
  }

  uint64_t lanes_[4] = {1, 2, 3, 4};
};

}  // namespace internal
}  // namespace torch
}  // namespace v0
}  // namespace hoist

#endif  // HOIST_TORCH_DIGEST_H_
