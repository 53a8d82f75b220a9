// An arena's taken ranges, and the uses that free ones must wait for.
#ifndef HOIST_CLIENT_SRC_DEVICE_ARENA_RANGES_H_
#define HOIST_CLIENT_SRC_DEVICE_ARENA_RANGES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace hoist {

// Best fit over free ranges in address order; adjacent ones merge. A free range
// keeps the last use of each stream that used any part of it: a take waits for
// those of other streams. A use that is done when it is reported needs no mark.
//
// Threads:  one at a time. Pure.
// Bounds:   one range more than blocks; in each, one use per stream.
class ArenaRanges {
 public:
  // Alignment of offsets and sizes: good for copy engines, and any element.
  static constexpr uint64_t kAlignment = 512;

  using Stream = uintptr_t;
  // A mark behind all earlier work on the stream.
  using Mark = std::shared_ptr<const void>;
  struct Use {
    Stream stream = 0;
    Mark mark;
  };
  struct Taken {
    uint64_t offset = 0;
    uint64_t bytes = 0;      // At least the requested size.
    std::vector<Use> after;  // Of other streams, to wait for.
  };

  // `bytes`: a multiple of the alignment.
  explicit ArenaRanges(uint64_t bytes);

  // For work on this stream. nullopt: no free range is large enough.
  std::optional<Taken> Take(uint64_t bytes, Stream stream);
  // Frees the block that begins there, after `uses`. False: none begins there.
  bool Give(uint64_t offset, std::vector<Use> uses);

  uint64_t bytes() const { return bytes_; }
  uint64_t used() const { return used_; }
  uint64_t largest_free() const;
  size_t blocks() const { return taken_.size(); }
  // All uses that a take might have to wait for.
  std::vector<Use> Uses() const;

 private:
  // A stream's last use, and the time of its report.
  struct Last {
    Mark mark;
    uint64_t told = 0;
  };
  struct Free {
    uint64_t bytes = 0;
    std::map<Stream, Last> uses;
  };
  using FreeRanges = std::map<uint64_t, Free>;  // By offset.

  void Add(uint64_t offset, Free range);
  Free Remove(FreeRanges::iterator range);
  // Keeps each stream's later use.
  static void Merge(std::map<Stream, Last> from, std::map<Stream, Last>& to);

  const uint64_t bytes_;
  uint64_t used_ = 0;
  uint64_t told_ = 0;
  FreeRanges free_;
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // (bytes, offset).
  std::map<uint64_t, uint64_t> taken_;               // Bytes, by offset.
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_DEVICE_ARENA_RANGES_H_
