// Requests to a helper and its answers; both ends of the line include this.
//
// Requests and answers are packets (hoist/shared/packet_socket.h) between two
// processes of one build, forked from each other. So plain values travel as raw
// memory, and a function by its address.
#ifndef HOIST_DAEMON_IO_HELPER_HELPER_CALL_H_
#define HOIST_DAEMON_IO_HELPER_HELPER_CALL_H_

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "hoist/shared/packet_socket.h"

namespace hoistd {

// Runs in a helper's process, where it may hang: with hoistd's code, and
// without its state, threads and descriptors. `request.body`: IoHelper::Call's.
// Sends at least one answer over `line`, and may receive between two answers.
using HelperCall = void (*)(hoist::Packet request, int line);

// In the helper's process. A closed line ends the process.
void Tell(int line, const absl::Status& status, std::string_view body = {},
          std::span<const int> fds = {});
hoist::Packet HearMore(int line);

template <typename T>
void Pack(const T& value, std::string& to) {
  static_assert(std::is_trivially_copyable_v<T>);
  to.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// Removes a value from the front; false: `from` is too short, and unchanged.
template <typename T>
bool Unpack(std::string_view& from, T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (from.size() < sizeof(T)) return false;
  std::memcpy(&value, from.data(), sizeof(T));
  from.remove_prefix(sizeof(T));
  return true;
}

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_HELPER_HELPER_CALL_H_
