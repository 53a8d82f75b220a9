// Sending and receiving framed messages with file descriptors (see wire.h).
#ifndef HOIST_SHARED_PACKET_SOCKET_H_
#define HOIST_SHARED_PACKET_SOCKET_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"
#include "hoist/shared/wire.h"

namespace hoist {

// A body in its memfd, sealed against changes.
struct SealedBody {
  UniqueFd memfd;
  uint64_t bytes = 0;
};
// Fails only if the system does.
Result<std::string> ReadSealedBody(const SealedBody& body);

struct Packet {
  std::string body;
  std::vector<UniqueFd> fds;  // The attached ones, without the body's memfd.
  std::optional<SealedBody> sealed;  // Instead of `body`; if asked for.
  uint32_t version = 0;              // Of the session protocol.
};

struct ReceiveOptions {
  uint64_t max_body = kMaxBody;  // Larger ones are refused unread.
  bool leave_sealed = false;     // Leaves a body in its memfd.
  bool as_hoistd =
      false;  // Takes all versions that hoistd serves, not its own.
};

// Whether a send waits for room in the peer's buffer.
enum class Sending { kAsTheSocketDoes, kNow };

// Sends one message; `fds` are borrowed. A large body goes into a sealed memfd.
// Unavailable: the peer is gone, or (non-blocking sockets, and kNow) its buffer
// is full: then `would_block` is set and nothing was sent. `version`: the
// peer's; 0: this side's own.
Status SendPacket(int socket, std::string_view body, std::span<const int> fds,
                  bool* would_block = nullptr,
                  Sending sending = Sending::kAsTheSocketDoes,
                  uint32_t version = 0);

// Receives one message. nullopt: end of stream, or nothing to read on a
// non-blocking socket (`would_block` is then set). InvalidArgument: not our
// framing, truncated, too large, or a memfd not sealed against shrinking; all
// received descriptors are closed. FailedPrecondition: a protocol version that
// is not accepted; the message says both. ResourceExhausted: this process may
// not open the received descriptors.
Result<std::optional<Packet>> ReceivePacket(int socket,
                                            bool* would_block = nullptr,
                                            const ReceiveOptions& options = {});

// A new memfd of `size` bytes, close-on-exec, sealable.
Result<UniqueFd> CreateMemfd(const char* name, uint64_t size);
// Forbids later changes of the memfd's size or bytes.
Status SealMemfd(int fd);

}  // namespace hoist

#endif  // HOIST_SHARED_PACKET_SOCKET_H_
