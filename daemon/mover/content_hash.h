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

// Hashes one group's content in pieces on several threads. The thread that ends
// the last piece reports.
//
// Threads:  thread-safe.
class ContentHash {
 public:
  // `image`: of the group; borrowed until the report.
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

  // Hashes untaken pieces until there are none. Blocks. Helpers call it any
  // number of times; the maker calls it once, with `last`.
  void Help(bool last = false);

 private:
  void Finish();

  const std::shared_ptr<const Group> group_;
  const std::span<const std::byte> image_;
  const ContentPlan plan_;
  std::vector<Content>
      digests_;  // Each written by one thread, read at the end.
  std::atomic<size_t> next_ = 0;
  std::atomic<size_t> left_;  // Pieces, plus the maker's call.
  absl::AnyInvocable<void(const Content&)> report_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_CONTENT_HASH_H_
