#include "daemon/mover/image_copy.h"

#include <algorithm>
#include <utility>

namespace hoistd {

void ImageCopy::Help() {
  while (true) {
    const uint64_t piece = next_.fetch_add(1);
    if (piece >= pieces_) return;
    ImageTarget* target = Target();
    const uint64_t offset = piece * kPieceBytes;
    const uint64_t bytes =
        std::min<uint64_t>(kPieceBytes, image_.size() - offset);
    if (target != nullptr && bytes > 0) {
      absl::Status filled = target->Fill(offset, image_.subspan(offset, bytes));
      if (!filled.ok()) Fail(std::move(filled));
    }
    if (left_.fetch_sub(1) == 1) Finish();
  }
}

ImageTarget* ImageCopy::Target() {
  absl::MutexLock lock(&mu_);
  if (!first_error_.ok()) return nullptr;
  if (!target_.has_value()) {
    absl::StatusOr<ImageTarget> target =
        ImageTarget::Open(memfd_->get(), image_.size());
    if (!target.ok()) {
      first_error_ = target.status();
      return nullptr;
    }
    target_ = *std::move(target);
  }
  return &*target_;
}

void ImageCopy::Fail(absl::Status status) {
  absl::MutexLock lock(&mu_);
  if (first_error_.ok()) first_error_ = std::move(status);
}

void ImageCopy::Finish() {
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    target_.reset();
    status = first_error_;
  }
  report_(std::move(status));
}

}  // namespace hoistd
