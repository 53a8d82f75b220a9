// The state that hoistd leaves to its successor: descriptors, and the book that
// describes them.
#ifndef HOIST_DAEMON_KEEPER_KEEP_H_
#define HOIST_DAEMON_KEEPER_KEEP_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/keeper/descriptor_bundle.h"
#include "daemon/keeper/fd_store.h"
#include "daemon/keeper/persisted_book.h"
#include "daemon/keeper/persisted_key.h"

namespace hoistd {

// Threads:  one at a time.
// Owns:     the book and the bundles. Borrows the store, which outlives it.
// Bounds:   the store gets two descriptors for each DescriptorBundle::kMost
//           that are kept, and one for the book.
// Restart:  Create takes what the last one left.
class Keep {
 public:
  // The prefix of all names that a store sees.
  static constexpr char kPrefix[] = "hoist-kept-";

  // What a predecessor left.
  struct Found {
    std::map<PersistedKey, std::string> records;
    // Why some of it, or all, is not taken over; for the log and status.
    std::vector<std::string> notes;
  };

  // Takes what is of a Keep's out of `handed`. `descriptor` is called for each
  // that is kept, after `found` has the records that say what they are. What
  // cannot be taken is given back to the store to be closed, and nothing ends
  // for it. Fails where no new book can be made or stored.
  static absl::StatusOr<Keep> Create(FdStore& store,
                                     std::vector<HandedFd>& handed,
                                     Found& found, FoundDescriptor descriptor);
  Keep(Keep&&) = default;
  Keep& operator=(Keep&&) = default;

  // Once it is Ok a successor has it, whatever becomes of this process. The key
  // is new here.
  absl::Status KeepDescriptor(PersistedKey key, int fd);
  // Stops keeping it. OK if it was not kept.
  absl::Status DropDescriptor(PersistedKey key);
  // The same of all that are `meant`.
  absl::Status DropDescriptors(absl::FunctionRef<bool(PersistedKey)> meant);
  absl::Status Write(PersistedKey key, std::string_view value) {
    return book_.Put(key, value);
  }
  absl::Status Erase(PersistedKey key) { return book_.Erase(key); }
  // nullopt: nothing is written under it.
  std::optional<std::string> Read(PersistedKey key) const {
    return book_.Get(key);
  }
  // Invalidates the book, whose records may be wrong: successors refuse it.
  void Abandon() { book_.Abandon(); }
  // Stores all of it with a store that is a new one.
  absl::Status StoreAgain();
  // What was found has been taken over, and did not end hoistd.
  void Adopted() { book_.Adopted(); }

  uint64_t stored_descriptors() const { return 1 + 2 * bundles_.size(); }

 private:
  Keep(FdStore& store, PersistedBook book)
      : store_(&store), book_(std::move(book)) {}

  struct Ends;

  void AdoptBundles(std::map<uint64_t, Ends> ends, bool understood,
                    Found& found, FoundDescriptor descriptor);
  absl::StatusOr<DescriptorBundle*> BundleWithRoom();
  absl::Status StoreBundle(uint64_t number, const DescriptorBundle& bundle);
  void Forget(uint64_t bundle);
  void ForgetEmpty();

  FdStore* store_;
  PersistedBook book_;
  std::map<uint64_t, DescriptorBundle> bundles_;  // By the number in the name.
  uint64_t last_bundle_ = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_KEEPER_KEEP_H_
