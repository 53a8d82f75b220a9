// Published models that the last hoistd left in its store and on the host.
#ifndef HOIST_DAEMON_SUCCESSOR_LEFT_MODELS_H_
#define HOIST_DAEMON_SUCCESSOR_LEFT_MODELS_H_

#include <map>
#include <span>
#include <string>
#include <vector>

#include "daemon/convert/persisted_convert.h"
#include "daemon/core/requests.h"
#include "daemon/store/model_roll.h"
#include "daemon/store/spill_types.h"
#include "daemon/successor/persisted_host.h"
#include "daemon/types/ids.h"

namespace hoistd {

struct LeftModels {
  // In the order of restoring. A model keeps its id if none of its groups is
  // gone: otherwise a worker that knows the id could get another group in that
  // place.
  std::vector<RestoredGroup> groups;
  // The former number of groups of these models, including missing ones.
  ModelRoll::Models had;
  std::vector<ModelRoll::Models::key_type> gone;  // Without any groups.
  std::vector<std::string> notes;  // Lists missing groups, for admins.
};

// `rolled`: the store's record of models' numbers of groups. `kept`: the models
// of the last hoistd's book.
LeftModels FindLeft(std::span<const FoundImage> images,
                    std::span<const SpillRecord> spilled,
                    const ModelRoll::Models& rolled,
                    const std::map<ModelId, ModelRecord>& kept);

}  // namespace hoistd

#endif  // HOIST_DAEMON_SUCCESSOR_LEFT_MODELS_H_
