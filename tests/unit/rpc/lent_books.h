#ifndef HOIST_TESTS_UNIT_RPC_LENT_BOOKS_H_
#define HOIST_TESTS_UNIT_RPC_LENT_BOOKS_H_

#include <utility>

#include "daemon/engine/node_view.h"
#include "tests/support/fake_engine.h"
#include "tests/support/node_rig.h"

namespace hoistd::testing {

// A node, and what else the readers of an engine see.
//
// Threads: one at a time; a reader looks while a call waits for its answer.
class LentBooks {
 public:
  explicit LentBooks(NodeRigOptions options = {}) : rig(std::move(options)) {}

  // The scripted engine's readers look at these books, which outlive its calls.
  void LendTo(FakeEngine& engine) {
    engine.verb<LookArgs>().Answer([this](auto call) { Answer(call); });
  }
  // Lets one reader look.
  void Answer(Asked<LookArgs>& call) {
    call.args.look(view);
    call.done(absl::OkStatus());
  }

  NodeRig rig;
  NodeView view{rig.node(), rig.now, {}, {}, {}, {}};
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_UNIT_RPC_LENT_BOOKS_H_
