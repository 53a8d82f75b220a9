// A worker's side of a plan that stands: libhoist's own, without its threads.
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

// What a kernel does with a group of the model, when it begins and when it
// ends.
struct Kernels {
  std::function<void(uint32_t group)> begin;
  std::function<void(uint32_t group)> end;
};

// CheckPlan, PlanTurns, PlanLane and LaneView are libhoist's; what they put on
// streams runs when the world says so. Nothing here blocks.
//
// Threads:  one.
// Owns:     the lane and the streams.
class SimPlan {
 public:
  // `order`: as it was asked for.
  SimPlan(OpenedPlan opened, ModelPtr model, std::vector<uint32_t> order,
          bool on_cpu, Kernels kernels);

  const PlanGrant& grant() const { return grant_; }
  const ModelPtr& model() const { return model_; }
  const std::vector<uint32_t>& order() const { return order_; }
  // nullopt: it is a resident.
  std::optional<uint32_t> LaneOf(uint32_t group) const;
  // Of a streamed group's image.
  uint64_t OffsetOf(uint32_t group) const;

  // Whether the worker's thread could stage now, and would not have to wait.
  bool MayStage() const;
  // Of a streamed group; on a CPU the kernel begins when the bytes are there.
  hoist::Status Stage(uint32_t group, uint64_t stream);
  bool MayDone() const { return !staged_.empty() && !Waits(); }
  // The n-th that is staged.
  hoist::Status Done(size_t n);
  const std::vector<uint32_t>& staged() const { return staged_; }
  // A graph of one pass.
  bool MayCapture() const;
  hoist::Status Capture();
  bool captured() const { return lane_ != nullptr && lane_->captured(); }
  void Replay() { streams_.Replay(1); }

  bool CanStep(uint64_t stream) const { return streams_.CanStep(stream); }
  void Step(uint64_t stream) { streams_.Step(stream); }
  // Nothing is staged, and nothing is on any stream.
  bool idle() const { return staged_.empty() && streams_.idle(); }
  bool streams_idle() const { return streams_.idle(); }

  bool streams_any() const { return lane_ != nullptr; }
  // As a hoistd of another version leaves it, which the next does not go on
  // with.
  void LeaveInAnotherForm();
  bool faulted() const { return lane_ != nullptr && lane_->faulted(); }
  std::string Fault() const { return lane_->Fault().message(); }
  // The lane's words, for who reads a report.
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
