#include "hoist/shared/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace hoist {

// In two rows.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> last(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t k = 1; k <= b.size(); ++k) {
      const size_t change = last[k - 1] + (a[i - 1] == b[k - 1] ? 0 : 1);
      row[k] = std::min({change, last[k] + 1, row[k - 1] + 1});
    }
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string NearestName(std::string_view name,
                        const std::vector<std::string>& names) {
  if (name.size() > kLongestSlip) return "";
  std::string nearest;
  size_t least = MostEdits(name) + 1;
  for (const std::string& one : names) {
    const size_t distance = EditDistance(name, one);
    if (distance >= least) continue;
    least = distance;
    nearest = one;
  }
  return nearest;
}

}  // namespace hoist
