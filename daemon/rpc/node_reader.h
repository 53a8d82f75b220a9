// Fills Admin's messages about the node from its books.
#ifndef HOIST_DAEMON_RPC_NODE_READER_H_
#define HOIST_DAEMON_RPC_NODE_READER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/facts.h"
#include "daemon/core/loan.h"
#include "daemon/engine/node_view.h"
#include "hoist/v1/admin.pb.h"

namespace hoistd {

// Threads: as Node, which it only reads.
// Bounds:  each function visits each copy once per tier at most.
class NodeReader {
 public:
  explicit NodeReader(const NodeView& view)
      : view_(view), node_(view.node.books()) {}

  void Status(const NodeFacts& facts, const NodeNotes& notes,
              hoist::v1::NodeStatus* out) const;
  void Models(hoist::v1::ListModelsResponse* out) const;
  // NotFound: the name means no model to `asker` (MeantBy).
  absl::Status Groups(const Peer& asker, const std::string& model,
                      hoist::v1::ListGroupsResponse* out) const;
  // All users' sessions and plans; for a user who is no admin, their own.
  void Sessions(const Peer& asker, hoist::v1::ListSessionsResponse* out) const;
  void Plans(const Peer& asker, hoist::v1::ListPlansResponse* out) const;
  // `out` stays as it is if there is no such session.
  void Session(SessionId id, hoist::v1::SessionStatus* out) const;

 private:
  absl::StatusOr<const ModelEntry*> FindModel(const Peer& asker,
                                              const std::string& name) const;
  void Link(const LinkStats& link, hoist::v1::LinkStatus* out) const;
  void Summary(const ModelEntry& entry, hoist::v1::ModelSummary* out) const;
  void Plan(const StandingPlan& plan, hoist::v1::PlanStatus* out) const;

  const NodeView& view_;
  const NodeBooks node_;
};

// shows_to: which session needs the memory.
void LoanToProto(const NodeBooks& node, const LoanKey& lender, const Loan& loan,
                 absl::Time now, bool shows_to, hoist::v1::Loan* out);
// Of each device whose capacity is below its pool.
void WithheldToProto(
    const NodeBooks& node,
    google::protobuf::RepeatedPtrField<hoist::v1::WithheldPool>* out);

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_NODE_READER_H_
