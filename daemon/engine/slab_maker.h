// Makes, zeroes and destroys one device's slabs, away from the engine's thread.
#ifndef HOIST_DAEMON_ENGINE_SLAB_MAKER_H_
#define HOIST_DAEMON_ENGINE_SLAB_MAKER_H_

#include <atomic>
#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/base/threads.h"
#include "daemon/core/device_space.h"
#include "daemon/terms/device.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// What a slab maker tells, on its thread.
struct SlabMakerEvents {
  absl::AnyInvocable<void(SlabId, absl::StatusOr<SlabShare>)> made;
  // Not OK: it was destroyed instead, or will be.
  absl::AnyInvocable<void(SlabId, absl::Status)> zeroed;
  // It is tried again before the next slab is made, and at the end.
  absl::AnyInvocable<void(SlabId, absl::Status)> not_destroyed;
};

// One after another, in the order of Do: a slab is made when those that were to
// go before it are gone, so that their memory is free, and their place. One
// that is to go is not zeroed first.
//
// Threads:  Do from any thread; work and events on one of its own.
// Owns:     the slabs that it made. The destructor waits for what is under way,
//           leaves what was not begun, and destroys all slabs. Borrows
//           `device`.
// Bounds:   a piece of work for each slab that the pool has room for.
class SlabMaker {
 public:
  SlabMaker(Device& device, Threads& threads, SlabMakerEvents events);
  ~SlabMaker();
  SlabMaker(const SlabMaker&) = delete;
  SlabMaker& operator=(const SlabMaker&) = delete;

  void Do(const SlabWork& work) ABSL_LOCKS_EXCLUDED(mu_);
  // Before anything else: a slab that was made before this object was, of which
  // `fd` was kept.
  absl::StatusOr<SlabShare> Adopt(const SlabSpec& slab, hoist::UniqueFd fd);
  // Those go: nothing else was done yet.
  void Drop();

 private:
  void Make(const SlabSpec& slab);
  absl::StatusOr<SlabShare> Create(const SlabSpec& slab);
  void Zero(SlabId id) ABSL_LOCKS_EXCLUDED(mu_);
  void Destroy(SlabId id);
  void DestroyLeft();

  Device& device_;
  SlabMakerEvents events_;
  std::atomic<bool> stopping_ = false;
  absl::Mutex mu_;
  std::set<SlabId> doomed_ ABSL_GUARDED_BY(mu_);  // Of Do, until they went.
  // The thread's alone; and the destructor's, when that is over.
  std::set<SlabId> slabs_;
  std::set<SlabId> left_;  // Of those, what could not be destroyed.
  std::unique_ptr<Executor> thread_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_SLAB_MAKER_H_
