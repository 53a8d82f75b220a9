#include "daemon/mover/image_copy.h"

#include <algorithm>
#include <utility>

namespace hoistd {

ImageCopy::ImageCopy(std::shared_ptr<hoist::UniqueFd> memfd,
                     uint64_t image_bytes, const std::vector<HostRun>& runs,
                     absl::AnyInvocable<void(absl::Status)> report)
    : memfd_(std::move(memfd)),
      image_bytes_(image_bytes),
      report_(std::move(report)) {
  for (const auto& [offset, from] : runs) {
    for (uint64_t at = 0; at < from.size(); at += kPieceBytes) {
      const uint64_t bytes = std::min<uint64_t>(kPieceBytes, from.size() - at);
      pieces_.push_back({offset + at, from.subspan(at, bytes)});
    }
  }
  if (pieces_.empty()) pieces_.emplace_back();
  left_ = pieces_.size();
}

void ImageCopy::Help() {
  while (true) {
    const uint64_t piece = next_.fetch_add(1);
    if (piece >= pieces_.size()) return;
    ImageTarget* target = Target();
    const auto& [offset, bytes] = pieces_[piece];
    if (target != nullptr && !bytes.empty()) {
      absl::Status filled = target->Fill(offset, bytes);
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
        ImageTarget::Open(memfd_->get(), image_bytes_);
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
