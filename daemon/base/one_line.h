// Untrusted text in a line of the log.
#ifndef HOIST_DAEMON_BASE_ONE_LINE_H_
#define HOIST_DAEMON_BASE_ONE_LINE_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace hoistd {

// `text` on one line: control characters and quotes are escaped, and text
// beyond `most_bytes` is cut ("..."). So it cannot forge another line.
std::string OneLine(absl::string_view text, size_t most_bytes = 512);

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_ONE_LINE_H_
