// Persists many descriptors across hoistd's death, by means of two.
//
// A message in a socket's queue keeps its descriptors open. So a socket pair
// whose ends an FdStore also holds keeps the descriptors that were sent into
// it. hoistd adds and removes descriptors without the store. Storing each one
// alone would not scale: systemd compares a new one with all that it has,
// passes at most 253, and names them all in one environment string.
#ifndef HOIST_DAEMON_KEEPER_DESCRIPTOR_BUNDLE_H_
#define HOIST_DAEMON_KEEPER_DESCRIPTOR_BUNDLE_H_

#include <cstdint>
#include <set>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/keeper/persisted_key.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Gets a duplicate of a descriptor that is kept; it stays kept.
using FoundDescriptor = absl::FunctionRef<void(PersistedKey, hoist::UniqueFd)>;

// A message is taken from one end only after its copy was sent into the other.
// So a killed process leaves each descriptor once or twice, and its successor
// drops duplicates.
//
// Threads:  one at a time, and one process.
// Owns:     both ends.
// Bounds:   kMost descriptors; fewer where sockets' buffers are small
//           (net.core.wmem_max). They count against RLIMIT_NOFILE of the user,
//           though they are no descriptors of any process.
class DescriptorBundle {
 public:
  static constexpr uint64_t kMost = 192;

  static absl::StatusOr<DescriptorBundle> Create();
  // Two ends that another process made. `found` is called for each descriptor
  // in turn, so only those that it keeps stay open. DataLoss: the contents are
  // not a bundle's, and useless. ResourceExhausted: this process may open no
  // more.
  static absl::StatusOr<DescriptorBundle> Adopt(hoist::UniqueFd in,
                                                hoist::UniqueFd out,
                                                FoundDescriptor found);
  DescriptorBundle(DescriptorBundle&&) = default;
  DescriptorBundle& operator=(DescriptorBundle&&) = default;

  // It is kept once this is Ok. The key is new here. ResourceExhausted: full,
  // or too many are kept in all.
  absl::Status Add(PersistedKey key, int fd);
  // It is no longer kept, nor closed anywhere else. There is one of this key.
  absl::Status Remove(PersistedKey key);
  // The same of all that are `meant`.
  absl::Status RemoveIf(absl::FunctionRef<bool(PersistedKey)> meant);

  bool Has(PersistedKey key) const { return keys_.contains(key); }
  bool full() const { return keys_.size() >= most_; }
  bool empty() const { return keys_.empty(); }
  int in() const { return in_.get(); }
  int out() const { return out_.get(); }

 private:
  DescriptorBundle(hoist::UniqueFd in, hoist::UniqueFd out);

  absl::Status Send(PersistedKey key, int fd);
  // Takes all messages out and sends those again that stay; `found` gets these.
  absl::Status TurnOver(absl::FunctionRef<bool(PersistedKey)> stays,
                        FoundDescriptor found);

  hoist::UniqueFd in_;   // Is sent into.
  hoist::UniqueFd out_;  // Holds what was sent.
  uint64_t most_ = kMost;
  std::set<PersistedKey> keys_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_KEEPER_DESCRIPTOR_BUNDLE_H_
