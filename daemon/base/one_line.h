// Text that others chose, for a line of the log.
#ifndef HOIST_DAEMON_BASE_ONE_LINE_H_
#define HOIST_DAEMON_BASE_ONE_LINE_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace hoistd {

// `text` on one line: control characters and quotes are escaped, and of more
// than `most_bytes` the rest is cut ("..."). Nobody can write another line with
// it.
std::string OneLine(absl::string_view text, size_t most_bytes = 512);

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_ONE_LINE_H_
