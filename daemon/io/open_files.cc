#include "daemon/io/open_files.h"

#include <algorithm>

namespace hoistd {

std::shared_ptr<const SourceFile> OpenFiles::Share(User owner,
                                                   SourceFile file) {
  // Declared before the lock: an unneeded file is closed after the unlock.
  auto opened = std::make_shared<const SourceFile>(std::move(file));
  absl::MutexLock lock(&mu_);
  if (files_.size() >= tidy_at_) {
    std::erase_if(files_, [](const auto& of) { return of.second.expired(); });
    tidy_at_ = std::max<size_t>(64, 2 * files_.size());
  }
  auto& known = files_[{owner, opened->identity()}];
  if (auto there = known.lock()) return there;
  known = opened;
  return opened;
}

OpenFiles::Turn OpenFiles::TakeTurn(User owner) {
  absl::MutexLock lock(&mu_);
  const auto free = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return !turns_.contains(owner);
  };
  mu_.Await(absl::Condition(&free));
  turns_.insert(owner);
  return Turn(*this, owner);
}

void OpenFiles::EndTurn(User owner) {
  absl::MutexLock lock(&mu_);
  turns_.erase(owner);
}

}  // namespace hoistd
