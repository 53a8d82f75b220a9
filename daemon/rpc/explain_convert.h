#ifndef HOIST_DAEMON_RPC_EXPLAIN_CONVERT_H_
#define HOIST_DAEMON_RPC_EXPLAIN_CONVERT_H_

#include "absl/time/time.h"
#include "daemon/core/explanation.h"
#include "hoist/v1/admin.pb.h"

namespace hoistd {

// `now`: by the engine's clock.
void ExplanationToProto(const ModelExplanation& explanation, absl::Time now,
                        hoist::v1::ExplainResponse* out);

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_EXPLAIN_CONVERT_H_
