// The session socket's framing: one SOCK_SEQPACKET packet a message.
//
// A packet is a FrameHeader, then the body: a serialized hoist.v1 ClientMessage
// or DaemonMessage. A body over kMaxInlineBody travels in a sealed memfd, which
// is then the LAST descriptor attached, and the packet is the header alone.
// Numbers are little endian, as every host that hoist runs on.
//
// Versions. A client speaks one, in every header; hoistd answers in the same,
// and speaks, beside its own,
//   - the one before: all goes on as between equals, and so do sessions when
//     hoistd ends and another comes (Resumed in session.proto);
//   - the one before that: it is served, but its sessions end with hoistd.
// Any other, a newer one too, is refused at its first packet:
// FAILED_PRECONDITION, with both numbers. A session that was opened with
// another hoistd and speaks what this one does not go on with ends in the same
// way, or, if it may connect again, with UNAVAILABLE.
// A release that sends something which the other side must not pass over moves
// kProtocolVersion on by one. What it may pass over does not: a new field, or a
// verb that is refused with UNIMPLEMENTED.
#ifndef HOIST_SHARED_WIRE_H_
#define HOIST_SHARED_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace hoist {

inline constexpr uint32_t kProtocolVersion = 1;

// What a hoistd of kProtocolVersion does for a client of `version`.
enum class Service {
  kNone,
  kServed,
  kGoesOn,  // Its sessions go on with the next hoistd, too.
};
Service ServiceFor(uint32_t version);
// "speaks 3, and serves 1 to 3".
std::string WhatIsServed();

struct FrameHeader {
  uint32_t magic;       // kFrameMagic
  uint16_t version;     // As said above.
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
// Of a request: hoistd ends a session that sends more, unless it is built into
// something that says otherwise. So libhoist sends none.
inline constexpr uint64_t kMaxRequestBody = 16ull * 1024 * 1024;
// The kernel's own limit (SCM_MAX_FD) is 253.
inline constexpr size_t kMaxFdsPerMessage = 250;

}  // namespace hoist

#endif  // HOIST_SHARED_WIRE_H_
