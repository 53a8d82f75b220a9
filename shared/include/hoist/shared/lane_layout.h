// The lane: shared memory through which one plan's groups are staged without
// system calls. hoistd makes it, sealed in size; the client maps it writable.
// Both register it with CUDA, so that GPUs wait for its words and write them.
//
//   Header | GroupWords[groups] | Request[kRequests]
//
// Positions. Positions count the plan's streamed groups from 0, pass after
// pass: position p is the group order[p % order_length]. The word for position
// p holds p + 1, cut to 32 bits, and is compared as a wrapping counter
// (Reached), like CUDA's CU_STREAM_WAIT_VALUE_GEQ. Positions only grow. A
// client that leaves the order takes the next position of its group, and
// reports skipped positions in the request ring. So a position always stands
// for one group, and groups in their slots serve the new positions without a
// copy.
//
// Counted form (streams). Stage: unless `ready` reached p + 1, the worker's
// stream waits for it. Done: the stream writes p + 1 to `done` behind the
// kernels. hoistd loads a slot only when the positions of all its groups are
// done or skipped; then its copy stream writes `ready`.
//
// Captured form (CUDA graphs, whose values are fixed at capture). A kCapture
// request selects it once; from then on, also outside graphs:
//   Stage: want = i + 1; wait flag >= kFlagReady; flag = kFlagTaken
//   Done:  flag = kFlagEmpty; done_flag = 1; want = 0
// where i is the position's index in the order. hoistd sets flags to
// kFlagReady, clears done_flag, and reads the GPU's progress in `want`.
//
// hoistd trusts nothing here until it has checked it. When its hoistd is gone
// for good the client writes the plan's words itself, so that nothing waits for
// ever (see fault_code).
//
// A hoistd that dies leaves the lane to its successor, which resumes by its
// words:
//   - a group is in its slot, readable, if `ready` is beyond `done`, or its
//     flag is set. Such a slot is not loaded, and `ready` is written after the
//     copy. So words and slots agree, whenever hoistd died; slots that no word
//     marks as in use are loaded again.
//   - a position that was ready but skipped is marked as done;
//   - `served` is where to resume. Later positions may be ready, too, by their
//     words. The tail passes a request when `served` is beyond it.
//
// Versions. hoistd makes lanes of kVersion; clients map no other, and hoistd
// resumes no other, nor one of another kAdoption. A change of words that both
// sides read increments kVersion; one between hoistds alone increments
// kAdoption.
//   - A client that gets a lane of another version has no plan:
//     FAILED_PRECONDITION, with both numbers. The releases of hoistd and
//     libhoist are then too far apart for plans.
//   - A hoistd that finds one ends the plan by its fault words: ABORTED, with
//     both numbers; its client makes the plan anew. All else continues.
// So in every version `magic`, `version` and `bytes` are the first 16 bytes.
// The fault words are where they are here, in at least as many bytes as a
// Header has.
#ifndef HOIST_SHARED_LANE_LAYOUT_H_
#define HOIST_SHARED_LANE_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hoist::lane {

inline constexpr uint32_t kMagic = 0x454E414C;  // "LANE"
inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kAdoption = 1;
inline constexpr uint32_t kRequests = 256;  // A power of two.
inline constexpr uint32_t kMaxGroups = 1u << 20;
inline constexpr size_t kMaxFaultText = 384;

// A word of both processes and the GPU.
using Word = std::atomic<uint32_t>;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free);

inline constexpr uint32_t kFlagEmpty = 0;
inline constexpr uint32_t kFlagReady = 1;
inline constexpr uint32_t kFlagTaken = 2;

// The word for a ready, or done, `position`.
constexpr uint32_t WordOf(uint64_t position) {
  return static_cast<uint32_t>(position + 1);
}
// Whether `word` has reached `target`; they are less than 2^31 apart.
constexpr bool Reached(uint32_t word, uint32_t target) {
  return static_cast<int32_t>(word - target) >= 0;
}

enum class RequestKind : uint32_t {
  kSkip = 1,     // Positions [from, to) will not be staged.
  kCapture = 2,  // The captured form holds from position `from` on.
};

struct Request {
  uint32_t kind;  // RequestKind
  uint32_t reserved;
  uint64_t from;
  uint64_t to;
};
static_assert(sizeof(Request) == 24);

// One 64-byte line for each writer: a GPU's write does not disturb the other's.
struct GroupWords {
  alignas(64) Word ready;  // By hoistd: the last position that is ready.
  Word flag;               // By both, in turns: kFlag*.
  // By the client: the last done position. By hoistd, only while the group is
  // unused: a skipped position, or an old value, brought closer.
  alignas(64) Word done;
  Word done_flag;  // By the client: 1; by hoistd: 0.
};
static_assert(sizeof(GroupWords) == 128);

struct Header {
  // Fixed before the client sees it.
  uint32_t magic;
  uint32_t version;
  uint64_t bytes;  // Of the whole lane.
  uint32_t groups;
  uint32_t order_length;

  // By the client. `cursor`: the next position to stage, cut to 32 bits; lower
  // ones were staged or skipped. `head` counts requests ever made.
  alignas(64) Word cursor;
  Word head;
  // By the client's GPU, captured form: index in the order + 1; 0: none.
  alignas(64) Word want;

  // By hoistd. `tail` counts requests ever taken. While `sleeping` is 1, a CPU
  // that changes cursor, head or a done word writes 1 to the lane's eventfd.
  alignas(64) Word tail;
  Word sleeping;
  // By hoistd, for its successor; clients ignore them. `adoption`: kAdoption,
  // if the others are valid. `served`: all lower positions are ready or
  // skipped. `captured_from`: the captured form's first position + 1; 0: not
  // captured.
  Word adoption;
  uint32_t reserved;
  std::atomic<uint64_t> served;
  std::atomic<uint64_t> captured_from;
  // By hoistd or by the client's watchdog, once: one of gRPC's codes. The plan
  // has ended, its waits are released, and results since then are void. The
  // text is written first; it ends in NUL.
  alignas(64) Word fault_code;
  char fault_text[kMaxFaultText];
};
static_assert(sizeof(Header) == 64 * 5 + 384);
static_assert(offsetof(Header, version) == 4 && offsetof(Header, bytes) == 8);
static_assert(offsetof(Header, cursor) == 64);
static_assert(offsetof(Header, want) == 128);
static_assert(offsetof(Header, tail) == 192);
static_assert(offsetof(Header, served) == 208);
static_assert(offsetof(Header, fault_code) == 256);
static_assert(offsetof(Header, fault_text) == 260);

constexpr size_t GroupsOffset() { return sizeof(Header); }
constexpr size_t RequestsOffset(uint32_t groups) {
  return GroupsOffset() + size_t{groups} * sizeof(GroupWords);
}
// Size of a lane, in whole pages.
constexpr size_t LaneBytes(uint32_t groups) {
  const size_t bytes = RequestsOffset(groups) + kRequests * sizeof(Request);
  return (bytes + 4095) / 4096 * 4096;
}

}  // namespace hoist::lane

#endif  // HOIST_SHARED_LANE_LAYOUT_H_
