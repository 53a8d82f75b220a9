// The images in pageable host memory, the tier between the pinned pool and the
// disk.
#ifndef HOIST_DAEMON_CORE_PAGEABLE_BOOK_H_
#define HOIST_DAEMON_CORE_PAGEABLE_BOOK_H_

#include <cstdint>
#include <map>
#include <optional>

#include "absl/time/time.h"
#include "daemon/core/extent_map.h"
#include "daemon/types/ids.h"

namespace hoistd {

// A published image that makes room in the pool is copied here, and is copied
// back when it is needed. So it is in one of the two, and in both only during a
// copy. The disk has it, too: any image may go at any time, and the oldest go
// first.
//
// Threads: one at a time.
class PageableBook {
 public:
  // From a failure to the next try.
  static constexpr absl::Duration kRetry = absl::Seconds(10);

  enum class State {
    kComing,    // Copied from the pool.
    kUnwanted,  // The same; it goes when it has come.
    kThere,
    kOnly,   // The same; the disk's image proved damaged, so it stays.
    kGoing,  // Copied to the pool; then it goes.
  };
  struct Image {
    OwnerId owner;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    State state = State::kComing;
    absl::Time since;  // Its place is its own.
  };

  explicit PageableBook(uint64_t bytes = 0) : memory_(bytes) {}

  // The place of an image that is to come; older ones make room. False: it is
  // larger than the memory, the others cannot go, or a copy has just failed.
  bool Place(GroupKey key, uint64_t bytes, absl::Time now);
  // Ends its copy from the pool.
  void Came(GroupKey key);
  // No image comes before kRetry is over.
  void Failed(absl::Time now) { retry_at_ = now + kRetry; }
  // Begins its copy to the pool; returns its offset. nullopt: it is not there.
  std::optional<uint64_t> Take(GroupKey key);
  // Frees its place. No copy may be under way.
  void Drop(GroupKey key);
  // The same for one that is there and on the disk; one that is coming goes at
  // its end. True: it was there.
  bool Evict(GroupKey key);
  // The same for any: its model is forgotten.
  void Forget(GroupKey key);
  // It has the only copy. False: it is not there.
  bool KeepOnly(GroupKey key);

  // A check reads the image, once at a time: returns its offset. It may go
  // meanwhile; its place is free only after EndRead. nullopt: it is not there.
  std::optional<uint64_t> Read(GroupKey key);
  void EndRead(GroupKey key);

  // nullptr: it is neither there nor coming.
  const Image* Find(GroupKey key) const;
  bool Has(GroupKey key) const;  // It can be copied to the pool.
  const std::map<GroupKey, Image>& images() const { return images_; }
  const ExtentMap& memory() const { return memory_; }

 private:
  ExtentMap memory_;
  std::map<GroupKey, Image> images_;
  std::map<OwnerId, GroupKey> keys_;
  std::map<GroupKey, Image> read_;  // By checks; perhaps gone.
  uint64_t last_owner_ = 0;
  absl::Time retry_at_ = absl::InfinitePast();
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_PAGEABLE_BOOK_H_
