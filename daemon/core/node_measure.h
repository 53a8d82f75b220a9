// How a Node is measured for metrics: in steps, which hold nobody up.
#ifndef HOIST_DAEMON_CORE_NODE_MEASURE_H_
#define HOIST_DAEMON_CORE_NODE_MEASURE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "daemon/core/measure.h"
#include "daemon/core/node.h"

namespace hoistd {

// A measurement that is under way. It is taken in steps, between which other
// events run: each costs at most kGroupsAStep groups, however many there are.
// So what is forgotten or moved meanwhile may be counted not at all, or twice.
struct MeasureWalk {
  static constexpr size_t kGroupsAStep = 1024;

  explicit MeasureWalk(size_t models) : most_models(models) {}

  const size_t most_models;  // That are told by name.
  NodeMeasure found;
  ModelMeasure model;  // The one that is being counted.
  std::optional<ModelId> at;
  uint32_t group = 0;  // The next of it.
};

// Threads: as Node, which it only reads.
class NodeMeasurer {
 public:
  explicit NodeMeasurer(const Node& node) : node_(node) {}

  // The next step. True: there are more.
  bool Step(MeasureWalk& walk) const;
  // As TierMeasure::used_bytes, at once.
  uint64_t HostUsed() const;
  uint64_t DeviceUsed(DeviceIndex device) const;

 private:
  Holding HoldingOf(const CopyRef& ref, const Copy& copy,
                    const GroupEntry& group) const;
  void AddGroup(GroupKey key, const GroupEntry& group, MeasureWalk& walk) const;
  void End(NodeMeasure& found) const;

  const Node& node_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_NODE_MEASURE_H_
