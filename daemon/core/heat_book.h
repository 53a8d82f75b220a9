// How much of each group workers read in place: the initial heat of the model's
// next workers.
#ifndef HOIST_DAEMON_CORE_HEAT_BOOK_H_
#define HOIST_DAEMON_CORE_HEAT_BOOK_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Bytes that a pass reads of a group.
struct GroupHeat {
  GroupIndex group;
  float heat = 0;
};

// Merges the reports of a model's workers: each report weighs as much as all
// before it.
//
// Threads: one at a time.
// Bounds:  a number for each group of the models that were reported.
class HeatBook {
 public:
  // `groups`: all groups of the model; `heat` may list fewer.
  void Report(ModelId model, size_t groups, absl::Span<const GroupHeat> heat);
  // Groups with heat.
  std::vector<GroupHeat> Of(ModelId model) const;
  void ForgetModel(ModelId model) { models_.erase(model); }

 private:
  std::map<ModelId, std::vector<float>> models_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_HEAT_BOOK_H_
