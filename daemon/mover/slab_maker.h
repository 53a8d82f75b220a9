// Makes, zeroes and destroys one device's slabs, away from the engine's thread.
#ifndef HOIST_DAEMON_MOVER_SLAB_MAKER_H_
#define HOIST_DAEMON_MOVER_SLAB_MAKER_H_

#include <atomic>
#include <memory>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/base/threads.h"
#include "daemon/core/device_space.h"
#include "daemon/types/device.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Events of a slab maker, on its thread.
struct SlabMakerEvents {
  absl::AnyInvocable<void(SlabId, absl::StatusOr<SlabShare>)> made;
  // An error: it was destroyed instead, or will be.
  absl::AnyInvocable<void(SlabId, absl::Status)> zeroed;
  // Retried before the next slab is made, and at the end.
  absl::AnyInvocable<void(SlabId, absl::Status)> not_destroyed;
};

// Works in the order of Do: a slab is made after the destruction of earlier
// ones, which frees their memory and their place. A slab to be destroyed is not
// zeroed first.
//
// Threads:  Do from any thread; work and events on one of its own.
// Owns:     the slabs that it made. The destructor waits for work in progress,
//           skips work not started, and destroys all slabs. Borrows `device`.
// Bounds:   one piece of work per slab that the pool has room for.
class SlabMaker {
 public:
  // `thread` has one.
  SlabMaker(Device& device, std::unique_ptr<Executor> thread,
            SlabMakerEvents events);
  ~SlabMaker();
  SlabMaker(const SlabMaker&) = delete;
  SlabMaker& operator=(const SlabMaker&) = delete;

  void Do(const SlabWork& work) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `done` on this maker's thread, once all earlier work is done.
  void Then(Executor::Task done) { thread_->Post(std::move(done)); }
  // Takes over a slab made before this object, whose `fd` was kept. To be
  // called before all other work.
  absl::StatusOr<SlabShare> Adopt(const SlabSpec& slab, hoist::UniqueFd fd);
  // Destroys adopted slabs: no other work has been done.
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
  std::set<SlabId> doomed_ ABSL_GUARDED_BY(mu_);  // From Do until destroyed.
  // Used by the thread only; by the destructor after its end.
  std::set<SlabId> slabs_;
  std::set<SlabId> left_;  // Of those, slabs whose destruction failed.
  std::unique_ptr<Executor> thread_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_SLAB_MAKER_H_
