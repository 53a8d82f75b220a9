// Values of options that are more than a number.
#ifndef HOIST_CLIENT_CTL_VALUES_H_
#define HOIST_CLIENT_CTL_VALUES_H_

#include <CLI/CLI.hpp>

namespace hoist::ctl {

// A rate as hoistd.toml has it; "/s" may be left out. Becomes bytes a second.
CLI::Validator AsRate();
// Seconds, as all options have them; a unit may be named: "10", "10s", "500ms",
// "2min". Becomes seconds.
CLI::Validator AsSeconds();

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_VALUES_H_
