// Why a model's groups are where they are, what would move them, and at what
// cost: behind `hoistctl explain`.
#ifndef HOIST_DAEMON_RPC_NODE_EXPLAINER_H_
#define HOIST_DAEMON_RPC_NODE_EXPLAINER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/node.h"
#include "hoist/v1/admin.pb.h"

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
  absl::Status Explain(const Peer& asker, const std::string& model,
                       const std::string& group,
                       hoist::v1::ExplainResponse* out) const;

 private:
  // Eviction candidates of a tier: the value of each, and the bytes of all with
  // less value.
  using Ladder = std::vector<std::pair<double, uint64_t>>;

  void Climb(TierAt at);
  void FindLeases();
  void ExplainGroup(const Peer& asker, GroupKey key,
                    hoist::v1::GroupExplanation* out) const;
  void ExplainPlace(const Peer& asker, const CopyRef& ref,
                    hoist::v1::CopyExplanation* out) const;
  void AddKeepers(const CopyRef& ref, const Copy& copy,
                  hoist::v1::CopyExplanation* out) const;
  void AddPlans(const CopyRef& ref, hoist::v1::CopyExplanation* out) const;
  void AddWaits(const Peer& asker, const CopyRef& ref,
                hoist::v1::CopyExplanation* out) const;
  void AddLeaving(const CopyRef& ref, hoist::v1::CopyExplanation* out) const;
  void AddBringing(const CopyRef& ref, hoist::v1::CopyExplanation* out) const;
  // `session` and `plan` may be none.
  void AddKeeper(hoist::v1::Keeper::By by, SessionId session, PlanId plan,
                 hoist::v1::CopyExplanation* out) const;
  uint64_t SpaceAt(const CopyRef& ref) const;
  std::vector<TierAt> Tiers() const;

  const NodeBooks node_;
  const absl::Time now_;
  std::map<TierAt, Ladder> ladders_;
  std::map<CopyRef, std::vector<SessionId>> leases_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_NODE_EXPLAINER_H_
