// Explains why a model's groups are where they are.
#ifndef HOIST_DAEMON_CORE_NODE_EXPLAINER_H_
#define HOIST_DAEMON_CORE_NODE_EXPLAINER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/explanation.h"
#include "daemon/core/node.h"

namespace hoistd {

// One look at the books, for one answer.
//
// Threads: as Node, which it only reads.
// Bounds:  looks at all copies of each tier once, as an eviction does.
class NodeExplainer {
 public:
  NodeExplainer(const Node& node, absl::Time now);

  // Explains one group, or all if `group` is empty, of the model that the name
  // means to an admin asker. NotFound.
  absl::StatusOr<ModelExplanation> Explain(const Peer& asker,
                                           const std::string& model,
                                           const std::string& group) const;

 private:
  // Eviction candidates of a tier: the value of each, and the bytes of all with
  // less value.
  using Ladder = std::vector<std::pair<double, uint64_t>>;

  void Climb(TierAt at);
  void FindLeases();
  GroupExplanation ExplainGroup(const Peer& asker, GroupKey key) const;
  CopyExplanation ExplainPlace(const Peer& asker, const CopyRef& ref) const;
  CopyExplanation ExplainDisk(const GroupEntry& group) const;
  void AddKeepers(const CopyRef& ref, const Copy& copy,
                  CopyExplanation& out) const;
  void AddPlans(const CopyRef& ref, CopyExplanation& out) const;
  void AddWaits(const Peer& asker, const CopyRef& ref,
                CopyExplanation& out) const;
  void AddLeaving(const CopyRef& ref, CopyExplanation& out) const;
  void AddBringing(const CopyRef& ref, CopyExplanation& out) const;
  std::string NameOf(SessionId session) const;
  uint64_t SpaceAt(const CopyRef& ref) const;
  std::vector<TierAt> Tiers() const;

  const NodeBooks node_;
  const absl::Time now_;
  std::map<TierAt, Ladder> ladders_;
  std::map<CopyRef, std::vector<SessionId>> leases_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_NODE_EXPLAINER_H_
