#include "client/ctl/described.h"

#include <sstream>
#include <string>
#include <utility>

namespace hoist::ctl {
namespace {

// "TEXT:{device,host}" -> device, host.
std::vector<std::string> ChoicesOf(const std::string& type) {
  std::vector<std::string> choices;
  const size_t open = type.find(":{");
  const size_t close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return choices;
  std::istringstream inside(type.substr(open + 2, close - open - 2));
  for (std::string one; std::getline(inside, one, ',');) {
    choices.push_back(one);
  }
  return choices;
}

}  // namespace

std::vector<CompletedArgument> ArgumentsOf(const CLI::App& command,
                                           bool positional) {
  std::vector<CompletedArgument> found;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional() != positional) continue;
    CompletedArgument argument = {
        positional ? option->get_name(/*positional=*/true)
                   : "--" + option->get_lnames().front(),
        option->get_description(), option->get_items_expected_max() > 0,
        ChoicesOf(option->get_type_name())};
    // Each command has one of its own, which says the same.
    if (argument.name == "--help" && command.get_parent() != nullptr) continue;
    found.push_back(std::move(argument));
  }
  return found;
}

}  // namespace hoist::ctl
