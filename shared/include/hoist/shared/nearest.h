// The likely meaning of an unknown name.
#ifndef HOIST_SHARED_NEAREST_H_
#define HOIST_SHARED_NEAREST_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hoist {

// Levenshtein's: inserted, deleted or replaced characters.
size_t EditDistance(std::string_view a, std::string_view b);

// The nearest of `names`; "": none is near enough.
std::string NearestName(std::string_view name,
                        const std::vector<std::string>& names);

// A long name is no typing error, and costs time to compare.
inline constexpr size_t kLongestSlip = 64;
// At most half of its characters.
constexpr size_t MostEdits(std::string_view name) { return name.size() / 2; }

}  // namespace hoist

#endif  // HOIST_SHARED_NEAREST_H_
