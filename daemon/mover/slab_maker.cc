#include "daemon/mover/slab_maker.h"

#include <utility>

namespace hoistd {

SlabMaker::SlabMaker(Device& device, std::unique_ptr<Executor> thread,
                     SlabMakerEvents events)
    : device_(device), events_(std::move(events)), thread_(std::move(thread)) {}

SlabMaker::~SlabMaker() {
  stopping_ = true;
  thread_.reset();
  for (const SlabId id : slabs_) {
    // At the end no caller could handle a failure.
    device_.DestroySlab(id).IgnoreError();
  }
}

void SlabMaker::Do(const SlabWork& work) {
  if (work.kind == SlabWork::Kind::kDestroy) {
    const absl::MutexLock lock(&mu_);
    doomed_.insert(work.slab.id);
  }
  thread_->Post([this, work] {
    if (stopping_) return;
    switch (work.kind) {
      case SlabWork::Kind::kMake:
        return Make(work.slab);
      case SlabWork::Kind::kDestroy:
        return Destroy(work.slab.id);
      case SlabWork::Kind::kZero:
        return Zero(work.slab.id);
    }
  });
}

absl::StatusOr<SlabShare> SlabMaker::Adopt(const SlabSpec& slab,
                                           hoist::UniqueFd fd) {
  if (absl::Status s = device_.AdoptSlab(slab, std::move(fd)); !s.ok()) {
    return s;
  }
  slabs_.insert(slab.id);
  return device_.Share(slab.id);
}

void SlabMaker::Drop() {
  const std::set<SlabId> all = slabs_;  // A copy: Destroy erases from it.
  for (const SlabId id : all) Destroy(id);
}

void SlabMaker::Make(const SlabSpec& slab) {
  DestroyLeft();
  events_.made(slab.id, Create(slab));
}

absl::StatusOr<SlabShare> SlabMaker::Create(const SlabSpec& slab) {
  if (absl::Status s = device_.CreateSlab(slab); !s.ok()) return s;
  slabs_.insert(slab.id);
  absl::StatusOr<SlabShare> share = device_.Share(slab.id);
  if (!share.ok()) Destroy(slab.id);
  return share;
}

void SlabMaker::Zero(SlabId id) {
  {
    const absl::MutexLock lock(&mu_);
    if (doomed_.contains(id)) return;
  }
  absl::Status zeroed = device_.ZeroSlab(id);
  if (!zeroed.ok()) Destroy(id);
  events_.zeroed(id, std::move(zeroed));
}

void SlabMaker::Destroy(SlabId id) {
  {
    const absl::MutexLock lock(&mu_);
    doomed_.erase(id);
  }
  if (!slabs_.contains(id)) return;  // Its zeroing failed, so it was destroyed.
  if (absl::Status s = device_.DestroySlab(id); !s.ok()) {
    left_.insert(id);
    return events_.not_destroyed(id, std::move(s));
  }
  slabs_.erase(id);
}

void SlabMaker::DestroyLeft() {
  for (const SlabId id : std::exchange(left_, {})) {
    if (device_.DestroySlab(id).ok()) {
      slabs_.erase(id);
    } else {
      left_.insert(id);  // Reported once.
    }
  }
}

}  // namespace hoistd
