#ifndef HOIST_DAEMON_MOVER_CONTENT_HASH_H_
#define HOIST_DAEMON_MOVER_CONTENT_HASH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "daemon/model/published_group.h"
#include "daemon/model/tensor.h"

namespace hoistd {

// The content of one group, whose pieces several threads hash. Who ends the
// last one reports.
//
// Threads:  thread-safe.
class ContentHash {
 public:
  // `image`: the group's; borrowed until it reports.
  ContentHash(std::shared_ptr<const Group> group,
              std::span<const std::byte> image,
              absl::AnyInvocable<void(const Content&)> report)
      : group_(std::move(group)),
        image_(image),
        plan_(PlanContent(*group_)),
        digests_(plan_.pieces.size()),
        left_(plan_.pieces.size() + 1),
        report_(std::move(report)) {}

  size_t pieces() const { return plan_.pieces.size(); }

  // Hashes pieces that nobody has taken until there are none. Blocks. Once or
  // more often by helpers, and once by whoever made this, with `last`.
  void Help(bool last = false);

 private:
  void Finish();

  const std::shared_ptr<const Group> group_;
  const std::span<const std::byte> image_;
  const ContentPlan plan_;
  std::vector<Content>
      digests_;  // Each written by one thread, read at the end.
  std::atomic<size_t> next_ = 0;
  std::atomic<size_t> left_;  // Pieces, and the maker's own call.
  absl::AnyInvocable<void(const Content&)> report_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_CONTENT_HASH_H_
