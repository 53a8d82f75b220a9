#ifndef HOIST_DAEMON_ENGINE_NODE_TRACE_H_
#define HOIST_DAEMON_ENGINE_NODE_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/node.h"
#include "daemon/trace/recorder.h"

namespace hoistd {

// Adds the names of a node's numbers, and the use of its tiers, to a recording.
//
// Threads:  one at a time, the engine's.
// Borrows:  the node and the recorder, which outlive it.
class NodeTrace {
 public:
  // `recorder`: nullptr if nothing is ever recorded.
  NodeTrace(const Node& node, TraceRecorder* recorder, size_t devices)
      : node_(node), recorder_(recorder), devices_(devices) {}

  // A recording starts: all names and tiers anew.
  void Begin(absl::Time now);
  // No-ops while nothing is recorded.
  void NameGroup(GroupKey key);
  void NamePlan(const PlanGrant& grant, SessionId session);
  // Changes of the bytes in use, at most every 10 ms.
  void TellUsed(absl::Time now);
  void AddSlowEvent(absl::Time begin, absl::Duration took);

 private:
  const Node& node_;
  TraceRecorder* const recorder_;
  const size_t devices_;
  absl::Time sampled_at_ = absl::InfinitePast();
  std::vector<uint64_t> used_;  // As last recorded; the host's is last.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_NODE_TRACE_H_
