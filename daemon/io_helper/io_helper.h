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

// An I/O helper process, as hoistd sees it. Nothing here waits longer for
// it than `deadline`, or than until `stop_fd` is readable; then it is lost.
//
// Threads:  one at a time.
// Owns:     the line, and memory that is shared with the process. Borrows
//           `stop_fd`.
class IoHelper {
 public:
  IoHelper(HelperProcess process, int stop_fd, absl::Duration deadline)
      : process_(std::move(process)), stop_fd_(stop_fd), deadline_(deadline) {}

  // Starts a call and waits for its first answer. `what` is done, for
  // errors and notes: "open model.safetensors". One at a time: what it answers
  // is taken in before the next Call.
  //
  // DeadlineExceeded: it hangs. Unavailable: hoistd stops, or the process died.
  // Other errors are the call's.
  absl::StatusOr<hoist::Packet> Call(HelperCall call, std::string what,
                                     std::string_view body,
                                     std::span<const int> fds);
  // Its next answer.
  absl::StatusOr<hoist::Packet> Next();
  // Lets the helper hear something.
  absl::Status Say(std::string_view body);

  // Memory of `kBounceBytes` that helpers read into, made at the first call.
  static constexpr uint64_t kBounceBytes = uint64_t{8} << 20;
  absl::StatusOr<std::span<const std::byte>> Bounce();
  int bounce_fd() const { return bounce_fd_.get(); }

  // Waits until the helper has closed what it had open. False: it is lost.
  bool Rest();
  bool lost() const { return lost_; }
  // Why, if hoistd did not itself give it up.
  const absl::Status& why() const { return why_; }
  const std::string& what() const { return what_; }
  // Ends the process, as far as the kernel can: what is left is to be waited
  // for. Nothing may be called after it.
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
