// A case as a list of steps, which can be printed, replayed and cut down.
#ifndef HOIST_TESTS_SIM_SYSTEM_SCRIPT_H_
#define HOIST_TESTS_SIM_SYSTEM_SCRIPT_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace hoistd::sim {

// What is done next. The first step of a script is kWorld.
enum class Op : uint32_t {
  kWorld,  // Makes it: the numbers choose its sizes.
  // Threads, devices and files go on.
  kEngine,
  kLink,
  kDevice,
  kRead,
  kReadFails,
  kTask,
  kStream,
  kWait,
  kLongWait,
  // Hoistd's end, what its successor does, and what workers answer it.
  kKill,
  kBegin,
  kResume,
  // Workers.
  kOpen,
  kDie,
  kRegister,
  kDescribe,
  kPublish,
  kStage,
  kCompute,
  kRelease,
  kPrefetch,
  kForget,
  kAnswerAsk,
  kSetPlan,
  kReplacePlan,
  kClearPlan,
  kUse,
  kDone,
  kCapture,
  kReplay,
  kOpenInPlace,
  kCloseInPlace,
  kPass,
  kChooseHot,
  kPlace,
  // Admins.
  kLoad,
  kEvict,
  kForgetAny,
  kPin,
  kUnpin,
  kShare,
};
inline constexpr uint32_t kOps = static_cast<uint32_t>(Op::kShare) + 1;

// The numbers choose with whom: they are taken modulo what there is, so that
// any script is one, and stays one where steps are left out.
struct Step {
  Op op = Op::kWorld;
  std::array<uint32_t, 3> with = {};

  bool operator==(const Step&) const = default;
};
using Script = std::vector<Step>;

// A line a step: "stage 3 0 17".
std::string ToText(const Script& script);
// Of that text, blank lines and comments (#) left out.
absl::StatusOr<Script> FromText(const std::string& text);

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_SCRIPT_H_
