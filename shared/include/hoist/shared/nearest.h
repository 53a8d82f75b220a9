// What somebody may have meant by a name that is none.
#ifndef HOIST_SHARED_NEAREST_H_
#define HOIST_SHARED_NEAREST_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hoist {

// Levenshtein's: single characters that are put in, left out or exchanged.
size_t EditDistance(std::string_view a, std::string_view b);

// The nearest of `names`; "": none is near enough to be meant.
std::string NearestName(std::string_view name,
                        const std::vector<std::string>& names);

// A long name is not a slip of the pen, and would cost time to compare.
inline constexpr size_t kLongestSlip = 64;
// Half of its characters at the most.
constexpr size_t MostEdits(std::string_view name) { return name.size() / 2; }

}  // namespace hoist

#endif  // HOIST_SHARED_NEAREST_H_
