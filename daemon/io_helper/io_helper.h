#ifndef HOIST_DAEMON_IO_HELPER_IO_HELPER_H_
#define HOIST_DAEMON_IO_HELPER_IO_HELPER_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/io_helper/helper_call.h"
#include "daemon/io_helper/helper_spawner.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/packet_socket.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// hoistd's side of an I/O helper process. No call waits longer than `deadline`,
// or after `stop_fd` is readable; then the helper is lost.
//
// Threads:  one at a time.
// Owns:     the line, and memory that is shared with the process. Borrows
//           `stop_fd`.
class IoHelper {
 public:
  IoHelper(HelperProcess process, int stop_fd, absl::Duration deadline)
      : process_(std::move(process)), stop_fd_(stop_fd), deadline_(deadline) {}

  // Starts a call and waits for its first answer. `what` names it in errors and
  // notes: "open model.safetensors". One at a time: take all answers before the
  // next Call.
  //
  // DeadlineExceeded: the call hangs. Unavailable: hoistd stops, or the process
  // died.
  // Other errors are the call's.
  absl::StatusOr<hoist::Packet> Call(HelperCall call, std::string what,
                                     std::string_view body,
                                     std::span<const int> fds);
  // The call's next answer.
  absl::StatusOr<hoist::Packet> Next();
  // Sends to the running call.
  absl::Status Say(std::string_view body);

  // `kBounceBytes` of memory that helpers read into; made by the first call.
  static constexpr uint64_t kBounceBytes = uint64_t{8} << 20;
  absl::StatusOr<std::span<const std::byte>> Bounce();
  int bounce_fd() const { return bounce_fd_.get(); }

  // Waits until the helper has closed its files. False: it is lost.
  bool Rest();
  bool lost() const { return lost_; }
  // The reason of the loss; OK if hoistd abandoned the helper itself.
  const absl::Status& why() const { return why_; }
  // Kills the process, and returns what to wait for if the kernel holds it. The
  // last call.
  HelperProcess Kill();

 private:
  absl::StatusOr<hoist::Packet> Wait();
  absl::Status Lose(absl::Status why);

  HelperProcess process_;
  const int stop_fd_;
  const absl::Duration deadline_;
  std::string what_;
  bool busy_ = false;
  bool lost_ = false;
  absl::Status why_;
  hoist::UniqueFd bounce_fd_;
  hoist::Mapping bounce_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_HELPER_IO_HELPER_H_
