// The lane: the shared memory over which one plan's groups are staged without
// system calls. hoistd makes it, sealed in size; the client maps it for
// writing, and both register it with CUDA, so that GPUs wait for its words and
// write them.
//
//   Header | GroupWords[groups] | Request[kRequests]
//
// Positions. The plan's streamed groups in the order of a pass, over and over,
// are counted from 0: position p is the group order[p % order_length]. A word
// that stands for "position p" holds p + 1, cut to 32 bits, and is compared as
// a wrapping counter (Reached), as CUDA's CU_STREAM_WAIT_VALUE_GEQ does.
// Positions only grow. A client that leaves the order takes the next position
// of the group that it wants, and says what it skipped in the request ring; so
// a position stands for one group for ever, and groups that lie in their slots
// already serve the new positions without a copy.
//
// Counted form (streams). Stage: unless `ready` reached p + 1, the worker's
// stream waits for it. Done: the stream writes p + 1 to `done` behind the
// kernels. hoistd loads a slot only when the positions of all groups in that
// place are done or skipped, and its copy stream writes `ready`.
//
// Captured form (CUDA graphs, whose values are fixed at capture). Chosen once
// by a kCapture request; from then on, also outside of graphs:
//   Stage: want = i + 1; wait flag >= kFlagReady; flag = kFlagTaken
//   Done:  flag = kFlagEmpty; done_flag = 1; want = 0
// where i is the position's place in the order. hoistd sets flags to
// kFlagReady, clears done_flag, and sees by `want` where the GPU stands.
//
// Everything here is hostile to hoistd until checked, and the words of a plan
// whose hoistd is gone for good are written by the client itself, so that
// nothing waits for ever (see fault_code).
//
// A hoistd that dies leaves the lane to its successor, who goes on where it
// stood, by what the words say:
//   - a group lies in its slot, and may be read there, if `ready` is beyond
//     `done`, or its flag is set. A slot is not loaded while that is so, and
//     `ready` is written behind the copy. So a slot holds what a word says,
//     whenever hoistd died; what no word says to be in use is loaded again.
//   - a position that is skipped though it was ready is marked as done;
//   - `served` says from where to go on. Positions beyond it may be ready, too:
//     their words say so. The tail passes a request when `served` is beyond it.
//
// Versions. hoistd makes lanes of kVersion; a client maps no other, and a
// hoistd goes on with no other, nor with one of another kAdoption. kVersion
// moves on when anything here changes that both sides look at, kAdoption when
// only what hoistds leave to each other does.
//   - A client to whom a lane of another version comes has no plan:
//     FAILED_PRECONDITION, with both numbers. hoistd and libhoist are then of
//     releases too far apart for plans.
//   - A hoistd that finds one ends the plan by its fault words: ABORTED, with
//     both numbers; its client makes the plan anew. All else goes on.
// So in every version `magic`, `version` and `bytes` are the first 16 bytes,
// and the fault words are where they are here, in at least as many bytes as a
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

// What a word is in both processes and for the GPU.
using Word = std::atomic<uint32_t>;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free);

inline constexpr uint32_t kFlagEmpty = 0;
inline constexpr uint32_t kFlagReady = 1;
inline constexpr uint32_t kFlagTaken = 2;

// The word that says that `position` is ready, or done.
constexpr uint32_t WordOf(uint64_t position) {
  return static_cast<uint32_t>(position + 1);
}
// Whether `word` has come as far as `target`; they are less than 2^31 apart.
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
  alignas(64) Word ready;  // By hoistd: the last position it is ready for.
  Word flag;               // By both, in turns: kFlag*.
  // By the client: the last position it is done with. By hoistd, only while
  // nobody uses the group: a value far behind, brought closer, or a position
  // that was skipped.
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

  // By the client. `cursor`: the position that is staged next, cut to 32 bits;
  // what is below was staged or skipped. `head` counts requests ever made.
  alignas(64) Word cursor;
  Word head;
  // By the client's GPU, captured form: place in the order + 1; 0: none.
  alignas(64) Word want;

  // By hoistd. `tail` counts requests ever taken. While `sleeping` is 1, who
  // changes cursor, head or a done word from a CPU writes 1 to the eventfd that
  // came with the lane.
  alignas(64) Word tail;
  Word sleeping;
  // By hoistd, for its successor; clients do not look at them. `adoption`:
  // kAdoption, if the others are kept. `served`: all positions below are ready
  // or skipped. `captured_from`: the captured form holds from the position one
  // below on; 0: it does not hold.
  Word adoption;
  uint32_t reserved;
  std::atomic<uint64_t> served;
  std::atomic<uint64_t> captured_from;
  // By hoistd or by the client's watchdog, once: one of gRPC's codes. The plan
  // is dead, its waits are released, and what was computed meanwhile is void.
  // The text is written first; it ends in NUL.
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
// Of a lane, in whole pages.
constexpr size_t LaneBytes(uint32_t groups) {
  const size_t bytes = RequestsOffset(groups) + kRequests * sizeof(Request);
  return (bytes + 4095) / 4096 * 4096;
}

}  // namespace hoist::lane

#endif  // HOIST_SHARED_LANE_LAYOUT_H_
