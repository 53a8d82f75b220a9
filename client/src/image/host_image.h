#ifndef HOIST_CLIENT_SRC_IMAGE_HOST_IMAGE_H_
#define HOIST_CLIENT_SRC_IMAGE_HOST_IMAGE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "client/src/base/fork_guard.h"
#include "client/src/session/session.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"

namespace hoist {

// A group's bytes at constant addresses of this process.
//
// This process makes and allocates a memfd, so that the memory is accounted to
// it; hoistd fills it. It is mapped for reading only once it is full; a failed
// load's memory ends with its descriptor.
//
// Threads:  thread-safe; loads and drops of one image are serialized. In the
//           child of a fork no lock is taken, and Load refuses.
// Owns:     the addresses, and the memory while loaded. Holds the session that
//           it was made or moved with.
class HostImage {
 public:
  // ResourceExhausted: no addresses left. `group` is one of the model's.
  static Result<std::unique_ptr<HostImage>> Create(
      std::shared_ptr<Session> session, ModelPtr model, uint32_t group);
  HostImage(const HostImage&) = delete;
  HostImage& operator=(const HostImage&) = delete;

  // Session::ReadImage's errors; ResourceExhausted: this process has no memory.
  Status Load(std::chrono::milliseconds deadline);
  void Drop();
  // Makes later loads read that group, so that an image survives its session.
  // The caller compares the contents. Loaded bytes stay. InvalidArgument: that
  // group's tensor layout differs.
  Status Move(std::shared_ptr<Session> session, ModelPtr model, uint32_t group);
  bool loaded() const { return loaded_.load(std::memory_order_acquire); }
  const void* data() const { return bytes() == 0 ? nullptr : Start(); }
  uint64_t bytes() const { return bytes_; }
  // This object is the parent's: do not touch it (see fork_guard.h).
  bool forked() const { return fork_generation_ != ForkGeneration(); }

 private:
  HostImage(std::shared_ptr<Session> session, ModelPtr model, uint32_t group,
            Mapping range);

  const std::byte* Start() const { return range_.data() + start_; }
  void Unmap();

  const uint64_t fork_generation_;
  const uint64_t bytes_;
  Mapping range_;
  const uint64_t start_;  // Of the image in the range; aligned for huge pages.
  Mutex mu_;              // Held over a load.
  std::shared_ptr<Session> session_ HOIST_GUARDED_BY(mu_);
  ModelPtr model_ HOIST_GUARDED_BY(mu_);
  uint32_t group_ HOIST_GUARDED_BY(mu_);
  std::atomic<bool> loaded_{false};
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_IMAGE_HOST_IMAGE_H_
