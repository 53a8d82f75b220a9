// toml++, as it can be used here.
#ifndef HOIST_DAEMON_CONFIG_TOML_H_
#define HOIST_DAEMON_CONFIG_TOML_H_

// Where NDEBUG is not defined, toml++ 3.3 would abort at a file that has "[" at
// a line's end, before it gets to its own error for that.
#define TOML_ASSERT(expr) static_assert(true)
#include "toml++/toml.h"

#endif  // HOIST_DAEMON_CONFIG_TOML_H_
