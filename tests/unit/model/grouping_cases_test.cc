// Blocks by names, held to the table that Python's by modules are held to.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "daemon/model/grouping.h"
#include "tests/support/status_matchers.h"

namespace hoistd::grouping_cases_test {

using GroupOfTensor = std::map<std::string, std::string>;

// What names tell of each case: a line's second word.
std::map<std::string, GroupOfTensor> ReadCases() {
  std::map<std::string, GroupOfTensor> cases;
  std::ifstream file(HOIST_BLOCK_CASES);
  std::string line, name;
  while (std::getline(file, line)) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string first, second;
    if (!(words >> first >> second)) continue;
    if (first == "case") {
      name = second;
    } else if (first.back() != ':') {  // What modules are, names do not tell.
      cases[name][first] = second;
    }
  }
  return cases;
}

TEST(Grouping, BlocksAreThoseOfTheSharedCases) {
  const std::map<std::string, GroupOfTensor> cases = ReadCases();
  ASSERT_GE(cases.size(), 15u) << HOIST_BLOCK_CASES;
  for (const auto& [name, expected] : cases) {
    SCOPED_TRACE(name);
    std::vector<std::string> tensors;
    for (const auto& [tensor, group] : expected) tensors.push_back(tensor);
    ASSERT_OK_AND_ASSIGN(const std::vector<NamedGroup> groups,
                         GroupTensors({GroupingRule::kBlock, {}}, tensors));
    GroupOfTensor found;
    for (const NamedGroup& group : groups) {
      for (const std::string& tensor : group.tensors) {
        found[tensor] = group.name;
      }
    }
    EXPECT_EQ(found, expected);
  }
}

}  // namespace hoistd::grouping_cases_test
