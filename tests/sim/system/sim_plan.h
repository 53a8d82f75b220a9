// A worker's side of a live plan: libhoist's own code, without its threads.
#ifndef HOIST_TESTS_SIM_SYSTEM_SIM_PLAN_H_
#define HOIST_TESTS_SIM_SYSTEM_SIM_PLAN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/src/messages/model_table.h"
#include "client/src/plan/lane_view.h"
#include "client/src/plan/plan_lane.h"
#include "client/src/plan/plan_layout.h"
#include "client/src/plan/plan_turns.h"
#include "daemon/core/requests.h"
#include "tests/sim/system/sim_streams.h"

namespace hoistd::sim {

// Callbacks when a kernel begins and ends with a group of the model.
struct Kernels {
  std::function<void(uint32_t group)> begin;
  std::function<void(uint32_t group)> end;
};

// CheckPlan, PlanTurns, PlanLane and LaneView are libhoist's; their work on
// streams runs at the world's command. Nothing here blocks.
//
// Threads:  one.
// Owns:     the lane and the streams.
class SimPlan {
 public:
  // `order`: as requested.
  SimPlan(OpenedPlan opened, ModelPtr model, std::vector<uint32_t> order,
          bool on_cpu, Kernels kernels);

  const PlanGrant& grant() const { return grant_; }
  const ModelPtr& model() const { return model_; }
  const std::vector<uint32_t>& order() const { return order_; }
  // nullopt: a resident.
  std::optional<uint32_t> LaneOf(uint32_t group) const;
  // The offset of a streamed group's image.
  uint64_t OffsetOf(uint32_t group) const;

  // True: the worker's thread could stage now without a wait.
  bool MayStage() const;
  // Stages a streamed group; on a CPU the kernel begins when the bytes are
  // there.
  hoist::Status Stage(uint32_t group, uint64_t stream);
  bool MayDone() const { return !staged_.empty() && !Waits(); }
  // Ends the n-th staged group.
  hoist::Status Done(size_t n);
  const std::vector<uint32_t>& staged() const { return staged_; }
  // Captures a graph of one pass.
  bool MayCapture() const;
  hoist::Status Capture();
  bool captured() const { return lane_ != nullptr && lane_->captured(); }
  void Replay() { streams_.Replay(1); }

  bool CanStep(uint64_t stream) const { return streams_.CanStep(stream); }
  void Step(uint64_t stream) { streams_.Step(stream); }
  // No group is staged, and no stream has work.
  bool idle() const { return staged_.empty() && streams_.idle(); }
  bool streams_idle() const { return streams_.idle(); }

  bool streams_any() const { return lane_ != nullptr; }
  // Leaves it like a hoistd of another version, so that the next one cannot
  // resume it.
  void LeaveInAnotherForm();
  bool faulted() const { return lane_ != nullptr && lane_->faulted(); }
  std::string Fault() const { return lane_->Fault().message(); }
  // The lane's words, for a report.
  std::string Words() const;

 private:
  bool Waits() const { return on_cpu_ && !streams_.idle(); }
  hoist::cuda::Stream StreamOf(uint64_t number) const {
    return SimStreams::Of(on_cpu_ ? 0 : 1 + number % 2);
  }

  const ModelPtr model_;
  const std::vector<uint32_t> order_;
  const bool on_cpu_;
  const Kernels kernels_;
  PlanGrant grant_;
  SimStreams streams_;
  std::optional<hoist::ModelTable> table_;
  hoist::PlanLayout layout_;
  std::optional<hoist::LaneView> view_;
  std::unique_ptr<hoist::PlanLane> lane_;
  std::optional<hoist::PlanTurns> turns_;
  std::vector<uint32_t> staged_;     // Groups, once a stage.
  std::vector<uint64_t> staged_on_;  // Streams, likewise.
};

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_SIM_PLAN_H_
