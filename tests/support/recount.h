// Counts users' holdings anew, from the books of what they hold.
#ifndef HOIST_TESTS_SUPPORT_RECOUNT_H_
#define HOIST_TESTS_SUPPORT_RECOUNT_H_

#include <map>

#include "daemon/core/node_picture.h"
#include "daemon/core/quota.h"

namespace hoistd::testing {

// Each adds what its book's users hold to `counted`.
void CountInto(const SessionBook& sessions, const CopyTable& copies,
               QuotaBook& counted);
void CountInto(const PlanBook& plans, const CopyTable& copies,
               QuotaBook& counted);
void CountInto(const IncomingBook& incoming, QuotaBook& counted);
void CountInto(const ArenaBook& arenas, QuotaBook& counted);
// The models, without their images.
void CountModelsInto(const CopyTable& copies, QuotaBook& counted);

// What the node's quota must say.
std::map<User, Holdings> CountHoldings(const NodeBooks& node);

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_RECOUNT_H_
