#include "daemon/core/heat_book.h"

namespace hoistd {

void HeatBook::Report(ModelId model, size_t groups,
                      absl::Span<const GroupHeat> heat) {
  if (heat.empty()) return;
  std::vector<float>& known = models_[model];
  const bool first = known.empty();
  known.resize(groups);
  for (const GroupHeat& one : heat) {
    float& now = known[one.group.number()];
    now = first ? one.heat : (now + one.heat) / 2;
  }
}

std::vector<GroupHeat> HeatBook::Of(ModelId model) const {
  std::vector<GroupHeat> heat;
  const auto found = models_.find(model);
  if (found == models_.end()) return heat;
  for (uint32_t g = 0; g < found->second.size(); ++g) {
    if (found->second[g] > 0) {
      heat.push_back({GroupIndex(g), found->second[g]});
    }
  }
  return heat;
}

}  // namespace hoistd
