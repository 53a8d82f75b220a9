// How much of each group workers read in place: what their next ones begin
// with.
#ifndef HOIST_DAEMON_CORE_HEAT_BOOK_H_
#define HOIST_DAEMON_CORE_HEAT_BOOK_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// Bytes of a group that a pass reads of it.
struct GroupHeat {
  GroupIndex group;
  float heat = 0;
};

// What workers of one model tell is made one: each report counts as much as all
// before it.
//
// Threads: one at a time.
// Bounds:  a number for each group of the models that were reported.
class HeatBook {
 public:
  // `groups` of the model in all; those that are told are among them.
  void Report(ModelId model, size_t groups, absl::Span<const GroupHeat> heat);
  // Those that have any.
  std::vector<GroupHeat> Of(ModelId model) const;
  void ForgetModel(ModelId model) { models_.erase(model); }

 private:
  std::map<ModelId, std::vector<float>> models_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_HEAT_BOOK_H_
