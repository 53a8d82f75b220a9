// The session socket's framing: one SOCK_SEQPACKET packet a message.
//
// A packet is a FrameHeader, then the body: a serialized hoist.v1 ClientMessage
// or DaemonMessage. A body over kMaxInlineBody travels in a sealed memfd, which
// is then the LAST descriptor attached, and the packet is the header alone.
// Numbers are little endian, as every host that hoist runs on.
//
// A daemon and a client whose kProtocolVersion differ part at the first packet:
// the reply is FAILED_PRECONDITION with both numbers.
#ifndef HOIST_SHARED_WIRE_H_
#define HOIST_SHARED_WIRE_H_

#include <cstddef>
#include <cstdint>

namespace hoist {

inline constexpr uint32_t kProtocolVersion = 1;

struct FrameHeader {
  uint32_t magic;       // kFrameMagic
  uint16_t version;     // kProtocolVersion
  uint16_t flags;       // kBodyInMemfd or 0
  uint64_t body_bytes;  // Of the body, wherever it is.
};
static_assert(sizeof(FrameHeader) == 16);

inline constexpr uint32_t kFrameMagic = 0x54534948;  // "HIST"
inline constexpr uint16_t kBodyInMemfd = 1;
inline constexpr size_t kMaxInlineBody = 48 * 1024;
inline constexpr size_t kMaxPacket = sizeof(FrameHeader) + kMaxInlineBody;
// 20,000 tensors with long names are about 4 MiB.
inline constexpr uint64_t kMaxBody = 256ull * 1024 * 1024;
// The kernel's own limit (SCM_MAX_FD) is 253.
inline constexpr size_t kMaxFdsPerMessage = 250;

}  // namespace hoist

#endif  // HOIST_SHARED_WIRE_H_
