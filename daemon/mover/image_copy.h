#ifndef HOIST_DAEMON_MOVER_IMAGE_COPY_H_
#define HOIST_DAEMON_MOVER_IMAGE_COPY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/mover/image_target.h"
#include "daemon/types/ranges.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Copies one image from the host pool to a client, in pieces on several
// threads. The thread that ends the last piece reports, with the first error.
//
// Threads:  thread-safe.
// Owns:     the target, until the report.
class ImageCopy {
 public:
  static constexpr uint64_t kPieceBytes = uint64_t{4} << 20;

  // The memfd has `image_bytes`; gaps between runs stay unchanged.
  ImageCopy(std::shared_ptr<hoist::UniqueFd> memfd, uint64_t image_bytes,
            const std::vector<HostRun>& runs,
            absl::AnyInvocable<void(absl::Status)> report);

  uint64_t pieces() const { return pieces_.size(); }

  // Copies untaken pieces until there are none. Blocks.
  void Help() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // nullptr: the copy has failed.
  ImageTarget* Target() ABSL_LOCKS_EXCLUDED(mu_);
  void Fail(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);
  void Finish() ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<hoist::UniqueFd> memfd_;
  const uint64_t image_bytes_;
  // Of an empty image: one empty piece, to check the memfd.
  std::vector<HostRun> pieces_;
  std::atomic<uint64_t> next_ = 0;
  std::atomic<uint64_t> left_;
  absl::AnyInvocable<void(absl::Status)> report_;
  absl::Mutex mu_;
  std::optional<ImageTarget> target_ ABSL_GUARDED_BY(mu_);
  absl::Status first_error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_IMAGE_COPY_H_
