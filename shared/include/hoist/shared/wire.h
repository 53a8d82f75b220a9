// The session socket's framing: one SOCK_SEQPACKET packet per message.
//
// A packet is a FrameHeader, then the body: a serialized hoist.v1 ClientMessage
// or DaemonMessage. A body over kMaxInlineBody is sent in a sealed memfd, the
// LAST attached descriptor; the packet is then the header alone. Numbers are
// little endian, as all hosts of hoist.
//
// Versions. A client speaks one, in every header. hoistd answers in the same,
// and speaks, beside its own,
//   - the one before: with full service, and a successor of hoistd resumes the
//     sessions (Resumed in session.proto);
//   - the one before that: it is served, but its sessions end with hoistd.
// Any other, also a newer one, is refused at its first packet:
// FAILED_PRECONDITION, with both numbers. A session of an earlier hoistd may
// speak a version that this one does not resume. It ends in the same way, or,
// if it may connect again, with UNAVAILABLE. A release increments
// kProtocolVersion if it sends something that the other side must not ignore. A
// new field, or a verb that is refused with UNIMPLEMENTED, may be ignored.
#ifndef HOIST_SHARED_WIRE_H_
#define HOIST_SHARED_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace hoist {

inline constexpr uint32_t kProtocolVersion = 1;

// The service of a hoistd of kProtocolVersion to a client of `version`.
enum class Service {
  kNone,
  kServed,
  kGoesOn,  // The next hoistd resumes its sessions.
};
Service ServiceFor(uint32_t version);
// "speaks 3, and serves 1 to 3".
std::string ServedVersions();

struct FrameHeader {
  uint32_t magic;       // kFrameMagic
  uint16_t version;     // See above.
  uint16_t flags;       // kBodyInMemfd or 0
  uint64_t body_bytes;  // Size of the body, inline or in the memfd.
};
static_assert(sizeof(FrameHeader) == 16);

inline constexpr uint32_t kFrameMagic = 0x54534948;  // "HIST"
inline constexpr uint16_t kBodyInMemfd = 1;
inline constexpr size_t kMaxInlineBody = 48 * 1024;
inline constexpr size_t kMaxPacket = sizeof(FrameHeader) + kMaxInlineBody;
// 20,000 tensors with long names are about 4 MiB.
inline constexpr uint64_t kMaxBody = 256ull * 1024 * 1024;
// Maximum of a request: hoistd ends a session that sends more, unless an
// embedder sets another limit. So libhoist sends none.
inline constexpr uint64_t kMaxRequestBody = 16ull * 1024 * 1024;
// The kernel's own limit (SCM_MAX_FD) is 253.
inline constexpr size_t kMaxFdsPerMessage = 250;

}  // namespace hoist

#endif  // HOIST_SHARED_WIRE_H_
