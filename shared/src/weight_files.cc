#include "hoist/shared/weight_files.h"

#include <algorithm>
#include <charconv>

namespace hoist {
namespace {

constexpr size_t kDigits = 5;

bool Has(std::string_view name, std::string_view ending) {
  return name.size() > ending.size() && name.ends_with(ending);
}

// The five digits' number; 0: they are none.
size_t NumberOf(std::string_view digits) {
  size_t number = 0;
  const char* end = digits.data() + digits.size();
  const auto [read, error] = std::from_chars(digits.data(), end, number);
  return error == std::errc() && read == end ? number : 0;
}

std::string FiveDigits(size_t number) {
  const std::string digits = std::to_string(number);
  return std::string(kDigits - digits.size(), '0') + digits;
}

}  // namespace

bool IsWeightFile(std::string_view name) {
  return Has(name, kSafetensorsEnding) || Has(name, kGgufEnding);
}

std::vector<std::string> WeightFilesOf(const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const std::string_view ending : {kSafetensorsEnding, kGgufEnding}) {
    for (const std::string& name : names) {
      if (Has(name, ending)) found.push_back(name);
    }
    if (!found.empty()) break;
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<std::string> GgufSetOf(const std::string& name) {
  constexpr std::string_view kOf = "-of-";
  if (name.size() < kGgufPartBytes + kGgufEnding.size() ||
      !name.ends_with(kGgufEnding)) {
    return {name};
  }
  const size_t begin = name.size() - kGgufPartBytes - kGgufEnding.size();
  const std::string_view part =
      std::string_view(name).substr(begin, kGgufPartBytes);
  const size_t which = NumberOf(part.substr(1, kDigits));
  const size_t count = NumberOf(part.substr(1 + kDigits + kOf.size()));
  if (part[0] != '-' || part.substr(1 + kDigits, kOf.size()) != kOf ||
      which == 0 || which > count || count > kMaxGgufParts) {
    return {name};
  }
  std::vector<std::string> set;
  for (size_t i = 1; i <= count; ++i) {
    set.push_back(name.substr(0, begin) + "-" + FiveDigits(i) +
                  std::string(kOf) + FiveDigits(count) +
                  std::string(kGgufEnding));
  }
  return set;
}

}  // namespace hoist
