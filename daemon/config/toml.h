// toml++, configured for our use.
#ifndef HOIST_DAEMON_CONFIG_TOML_H_
#define HOIST_DAEMON_CONFIG_TOML_H_

// Without NDEBUG, toml++ 3.3 would abort on a file with "[" at a line's end,
// before it reports its own error.
#define TOML_ASSERT(expr) static_assert(true)
#include "toml++/toml.h"

#endif  // HOIST_DAEMON_CONFIG_TOML_H_
