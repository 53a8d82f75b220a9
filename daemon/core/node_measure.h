// Measures a Node for metrics in steps that delay no other event.
#ifndef HOIST_DAEMON_CORE_NODE_MEASURE_H_
#define HOIST_DAEMON_CORE_NODE_MEASURE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "daemon/core/measure.h"
#include "daemon/core/node.h"

namespace hoistd {

// A measurement in progress. Other events run between its steps; each step
// visits at most kGroupsAStep groups. So a group that is forgotten or moved
// meanwhile may be counted twice or not at all.
struct MeasureWalk {
  static constexpr size_t kGroupsAStep = 1024;

  explicit MeasureWalk(size_t models) : most_models(models) {}

  const size_t most_models;  // Reported by name.
  NodeMeasure found;
  ModelMeasure model;  // The model being counted.
  std::optional<ModelId> at;
  uint32_t group = 0;  // Its next group.
};

// Threads: as Node, which it only reads.
class NodeMeasurer {
 public:
  explicit NodeMeasurer(const Node& node) : node_(node.books()) {}

  // Takes the next step. True: more follow.
  bool Step(MeasureWalk& walk) const;
  // TierMeasure::used_bytes of the host, at once.
  uint64_t HostUsed() const;
  uint64_t DeviceUsed(DeviceIndex device) const;

 private:
  Holding HoldingOf(const CopyRef& ref, const Copy& copy,
                    const GroupEntry& group) const;
  void AddGroup(GroupKey key, const GroupEntry& group, MeasureWalk& walk) const;
  void MeasureSpace(TierMeasure& tier) const;
  void End(NodeMeasure& found) const;

  const NodeBooks node_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_NODE_MEASURE_H_
