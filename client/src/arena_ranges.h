// Which places of an arena are taken, and after what the others may be used.
#ifndef HOIST_CLIENT_SRC_ARENA_RANGES_H_
#define HOIST_CLIENT_SRC_ARENA_RANGES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace hoist {

// Best fit over free ranges in the order of their addresses, which grow
// together when they touch. A free range remembers, of each stream that used
// any of it, the last use: whoever takes a part waits for those of the others.
// What was done by the time that a use is told needs no mark.
//
// Threads:  one at a time. Pure: it calls nobody.
// Bounds:   as many ranges as blocks and one more; of each, one use a stream.
class ArenaRanges {
 public:
  // Of places and sizes: what a copy engine likes, and any element.
  static constexpr uint64_t kAlignment = 512;

  using Stream = uintptr_t;
  // What stands for "all that was put on the stream before".
  using Mark = std::shared_ptr<const void>;
  struct Use {
    Stream stream = 0;
    Mark mark;
  };
  struct Taken {
    uint64_t offset = 0;
    uint64_t bytes = 0;      // No less than was asked for.
    std::vector<Use> after;  // Of other streams: to be waited for.
  };

  // `bytes`: a multiple of the alignment.
  explicit ArenaRanges(uint64_t bytes);

  // For work on this stream. nullopt: no free range is that large.
  std::optional<Taken> Take(uint64_t bytes, Stream stream);
  // The block that begins there is not used any more, once `uses` are over.
  // False: none begins there.
  bool Give(uint64_t offset, std::vector<Use> uses);

  uint64_t bytes() const { return bytes_; }
  uint64_t used() const { return used_; }
  uint64_t largest_free() const;
  size_t blocks() const { return taken_.size(); }
  // All uses that somebody would have to wait for.
  std::vector<Use> Uses() const;

 private:
  // A stream's last use, and when that was told.
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
  // The later of each stream's.
  static void Merge(std::map<Stream, Last> from, std::map<Stream, Last>& to);

  const uint64_t bytes_;
  uint64_t used_ = 0;
  uint64_t told_ = 0;
  FreeRanges free_;
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // (bytes, offset).
  std::map<uint64_t, uint64_t> taken_;               // Bytes, by offset.
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_ARENA_RANGES_H_
