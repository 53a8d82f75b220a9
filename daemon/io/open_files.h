#ifndef HOIST_DAEMON_IO_OPEN_FILES_H_
#define HOIST_DAEMON_IO_OPEN_FILES_H_

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/io/source_file.h"
#include "daemon/model/tensor.h"
#include "daemon/types/ids.h"

namespace hoistd {

// The open model files, each once per owner. An owner's models share their
// files, so that more model names cost no more descriptors. Owners share none:
// a client can still set the flags of a descriptor that it sent.
//
// Threads:  thread-safe.
// Owns:     nothing: a file closes with its last user.
// Bounds:   64 records, or twice as many as open files.
class OpenFiles {
 public:
  // The right to read large headers for an owner. Move-only.
  class Turn {
   public:
    Turn(OpenFiles& files, User owner) : files_(&files), owner_(owner) {}
    Turn(Turn&& other) noexcept
        : files_(std::exchange(other.files_, nullptr)), owner_(other.owner_) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (files_ != nullptr) files_->EndTurn(owner_);
    }

   private:
    OpenFiles* files_;
    User owner_;
  };

  // The owner's open copy of the same, unchanged file; else `file`.
  std::shared_ptr<const SourceFile> Share(User owner, SourceFile file)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until no other thread has this owner's turn.
  Turn TakeTurn(User owner) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void EndTurn(User owner) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::map<std::pair<User, FileIdentity>, std::weak_ptr<const SourceFile>>
      files_ ABSL_GUARDED_BY(mu_);
  size_t tidy_at_ ABSL_GUARDED_BY(mu_) = 64;  // In records.
  std::set<User> turns_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_OPEN_FILES_H_
