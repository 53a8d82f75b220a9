// Descriptors that outlive the process, many in two.
//
// A message that waits in a socket keeps the descriptors in it open. So a pair
// of sockets whose ends somebody else holds too (FdStore) keeps the descriptors
// that were sent into it. To keep one more, or one less, is nobody's work but
// ours. Each alone would be too many for that: systemd compares a new one with
// all that it has, hands 253 over at once, and names them all in one
// environment string.
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

// Messages are taken from one end only after a copy of them was sent into the
// other: whoever is killed leaves each descriptor there once or twice, and who
// comes next takes twice for once.
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
  // Two ends that another process made. `found` is called for each that they
  // hold, so that no more are open at once than it keeps. DataLoss: they hold
  // what no bundle does, and are of no use. ResourceExhausted: this process may
  // open no more.
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
