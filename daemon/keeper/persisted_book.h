// The persisted state of a hoistd for its successor: short records in a memfd
// that outlives the process.
//
// The memfd has a header page and two halves. Records are appended to one half,
// the last of a key counts; when it is full, what counts is written to the
// other half, and one store makes that the one. A record is there once the word
// with its length is, which is stored after all else of it. So whichever store
// was the last before SIGKILL, the book is as it was before a Put or after it:
// a process that is killed leaves its stores in the order in which it made them
// (all CPUs that hoist runs on show shared memory so to whoever comes later).
//
// Versions. hoistd reads books of kVersion and no other: what the last one kept
// is dropped then, and said. Workers' memory stays theirs; their sessions end,
// as what is kept of them is closed with the rest. The version is of all that
// the book vouches for: this layout, the bundles beside it (descriptor_bundle),
// keys and records (successor/persisted_keys.h and persisted_host.cc,
// persisted.proto). It moves on with whatever a hoistd must not pass over; a
// new field of a record that it may pass over does not move it.
//
// It is not for power cuts, after which the memfd is gone. Each record carries
// a checksum all the same: a book that was damaged is refused, never misread.
#ifndef HOIST_DAEMON_KEEPER_PERSISTED_BOOK_H_
#define HOIST_DAEMON_KEEPER_PERSISTED_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/keeper/persisted_key.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Threads:  one at a time, and one process.
// Owns:     the memfd and its mapping.
// Bounds:   half of `half_bytes` of records that count, each with 32 bytes more
//           and rounded up to 8: the rest is for what no longer counts. Memory
//           is taken as it is written, and given back when a half is left.
// Restart:  Adopt.
class PersistedBook {
 public:
  static constexpr uint32_t kVersion = 2;
  static constexpr uint64_t kHalfBytes = uint64_t{256} << 20;
  static constexpr uint64_t kMaxValueBytes = uint64_t{16} << 20;
  // After this many successors died while adopting a book, one starts without.
  static constexpr uint32_t kMaxAttempts = 2;

  // `half_bytes` is a multiple of 4096, to 2^40.
  static absl::StatusOr<PersistedBook> Create(uint64_t half_bytes = kHalfBytes);
  // FailedPrecondition: another version wrote it, or kMaxAttempts died while
  // they adopted it. DataLoss: it is damaged, or no book. Counts an attempt,
  // until Adopted().
  static absl::StatusOr<PersistedBook> Adopt(hoist::UniqueFd memfd);
  PersistedBook(PersistedBook&&) = default;
  PersistedBook& operator=(PersistedBook&&) = default;

  // From now on this value counts. ResourceExhausted: the book is full.
  // InvalidArgument: the value is larger than kMaxValueBytes.
  absl::Status Put(PersistedKey key, std::string_view value);
  // What counts; nullopt: nothing does.
  std::optional<std::string> Get(PersistedKey key) const;
  // Nothing counts for the key. ResourceExhausted: as Put; it still does.
  absl::Status Erase(PersistedKey key);
  // Whoever finds it refuses it.
  void Abandon();
  // What it was found with has been taken over, and did not end hoistd.
  void Adopted();

  // Valid until the next Put or Erase.
  std::map<PersistedKey, std::string_view> entries() const;
  int fd() const { return memfd_.get(); }

 private:
  struct Header;
  struct Place {
    uint64_t offset = 0;  // Of the record, in the mapping.
    uint64_t bytes = 0;   // Of its value.
  };

  PersistedBook(hoist::UniqueFd memfd, hoist::Mapping mapping);

  Header& header() const;
  std::byte* Half(uint32_t which) const;
  absl::Status Append(PersistedKey key, std::string_view value, bool erased);
  // Writes what counts to the other half.
  absl::Status MoveToOtherHalf();
  absl::Status Read();

  hoist::UniqueFd memfd_;
  hoist::Mapping mapping_;
  uint64_t half_bytes_ = 0;
  uint64_t end_ = 0;         // Of what was appended, in the half.
  uint64_t live_bytes_ = 0;  // Of records that count.
  std::map<PersistedKey, Place> places_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_KEEPER_PERSISTED_BOOK_H_
