// A case as a list of steps, which can be printed, replayed and shrunk.
#ifndef HOIST_TESTS_SIM_SYSTEM_SCRIPT_H_
#define HOIST_TESTS_SIM_SYSTEM_SCRIPT_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace hoistd::sim {

// A step's operation. The first step of a script is kWorld.
enum class Op : uint32_t {
  kWorld,  // Makes it: the numbers choose its sizes.
  // Progress of threads, devices and files.
  kEngine,
  kLink,
  kDevice,
  kRead,
  kReadFails,
  kTask,
  kStream,
  kWait,
  kLongWait,
  // hoistd's death, its successor's start, and workers' answers to it.
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
  kOpenArena,
  kCloseArena,
  kWriteArena,
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

// The numbers choose the objects, modulo the existing ones. So every script is
// valid, and stays valid without some of its steps.
struct Step {
  Op op = Op::kWorld;
  std::array<uint32_t, 3> with = {};

  bool operator==(const Step&) const = default;
};
using Script = std::vector<Step>;

// One line per step: "stage 3 0 17".
std::string ToText(const Script& script);
// Parses that text; ignores blank lines and comments (#).
absl::StatusOr<Script> FromText(const std::string& text);

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_SCRIPT_H_
