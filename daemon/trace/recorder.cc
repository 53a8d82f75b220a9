#include "daemon/trace/recorder.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "daemon/base/check.h"

namespace hoistd {
namespace {

constexpr uint64_t kOpen = 1;
constexpr uint64_t kInside = 2;

}  // namespace

TraceRecorder::~TraceRecorder() { HOIST_CHECK(gate_.load() == 0); }

void TraceRecorder::Add(const TraceEvent& event) {
  uint64_t gate = gate_.load(std::memory_order_relaxed);
  do {
    if ((gate & kOpen) == 0) return;
  } while (!gate_.compare_exchange_weak(gate, gate + kInside,
                                        std::memory_order_acquire,
                                        std::memory_order_relaxed));
  if (!ring_->Push(event)) dropped_.fetch_add(1, std::memory_order_relaxed);
  gate_.fetch_sub(kInside, std::memory_order_release);
}

void TraceRecorder::Name(TraceSession session) {
  absl::MutexLock lock(&mu_);
  if (recording_) names_.sessions.push_back(std::move(session));
}

void TraceRecorder::Name(const TracePlan& plan) {
  absl::MutexLock lock(&mu_);
  if (recording_) names_.plans.push_back(plan);
}

void TraceRecorder::Name(GroupKey key, const std::string& model,
                         const std::string& group) {
  absl::MutexLock lock(&mu_);
  if (!recording_ || groups_.contains(key)) return;
  if (groups_.size() >= kMostGroups) {
    ++names_.unnamed;
    return;
  }
  groups_.insert(key);
  names_.groups.push_back({key, group});
  if (models_.insert(key.model).second) {
    names_.models.push_back({key.model, model});
  }
}

absl::StatusOr<std::unique_ptr<TraceRecording>> TraceRecorder::Start() {
  absl::MutexLock lock(&mu_);
  if (recording_) {
    return absl::ResourceExhaustedError(
        "another `hoistctl trace record` runs on this node, and there is one "
        "at a time; wait until it ends, or end it (Ctrl-C)");
  }
  recording_ = true;
  names_ = {};
  ring_ = std::make_unique<EventRing>(kMostEvents);
  dropped_.store(0);
  number_.fetch_add(1);
  auto recording = std::make_unique<TraceRecording>(this);
  gate_.store(kOpen, std::memory_order_release);
  return recording;
}

void TraceRecorder::CloseGate() {
  if ((gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & kOpen) == 0) {
    return;
  }
  // Each writer only copies an event, and waits for no one.
  while (gate_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
}

void TraceRecorder::Stop() {
  CloseGate();
  absl::MutexLock lock(&mu_);
  recording_ = false;
  ring_.reset();
  names_ = {};
  models_ = {};
  groups_ = {};
}

void TraceRecording::Stop() {
  recorder_->CloseGate();
  ended_ = std::min(ended_, recorder_->Now());
}

absl::Time TraceRecording::ended() const {
  return std::min(ended_, recorder_->Now());
}

TraceBatch TraceRecording::Take(size_t most) {
  TraceBatch batch;
  TraceEvent event;
  while (batch.events.size() < most && recorder_->ring_->Pop(event)) {
    if (!event.open && event.end < started_) continue;
    event.begin = std::max(event.begin, started_);
    event.end = std::max(event.end, event.begin);
    batch.events.push_back(event);
  }
  // Names are taken after the events, so that all events are named.
  {
    absl::MutexLock lock(&recorder_->mu_);
    std::swap(batch.sessions, recorder_->names_.sessions);
    std::swap(batch.plans, recorder_->names_.plans);
    std::swap(batch.models, recorder_->names_.models);
    std::swap(batch.groups, recorder_->names_.groups);
    batch.unnamed = recorder_->names_.unnamed;
  }
  batch.dropped = recorder_->dropped_.load(std::memory_order_relaxed);
  return batch;
}

}  // namespace hoistd
