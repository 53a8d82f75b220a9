// The page over which a copier is granted bytes: a worker that itself copies
// from the host to a device, or back, does so in the turns that hoistd's link
// gives it. hoistd makes the page, sealed in size; the client maps it for
// writing and registers it with CUDA, so that its streams write and wait for
// the words.
//
// To the device. All words but `read` count bytes from 0, cut to 32 bits, and
// are compared as wrapping counters (lane::Reached).
//   1. A CPU adds to `put` what it puts on a stream, and if `sleeping` is 1
//      writes 1 to the eventfd that came with the page.
//   2. The stream adds it to `asked`, once it has come so far that it could
//      copy: no ask stands for a copy that waits for kernels.
//   3. hoistd adds to `granted`, at most kPieceBytes in a turn of the link.
//   4. The stream waits for each piece of at most kPieceBytes, copies it, and
//      adds it to `done`.
// Who asks on several streams puts them in one order: what is asked later is
// granted later.
//
// From the device nothing is asked: the link goes both ways at once, and
// nothing of hoistd's goes that way but what is read to be checked. `read` is
// what a CPU has put on streams.
//
// hoistd believes nothing of it. An `asked` that is behind `granted` asks for
// nothing; a `done` that goes back, or is beyond `granted`, says nothing. A
// grant holds its place in the link's queue until it is done, but no longer
// than its bytes take over the link: so a lie costs others no more than the
// copy would.
//
// A copier ends with its session, and with hoistd: the next one makes a new
// page. Whoever ends it lets the waits through (Released).
//
// `magic`, `version` and `bytes` are the first 16 bytes in every version; a
// client maps no other than kVersion.
#ifndef HOIST_SHARED_COPIER_LAYOUT_H_
#define HOIST_SHARED_COPIER_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "hoist/shared/lane_layout.h"

namespace hoist::copier {

using lane::Word;

inline constexpr uint32_t kMagic = 0x52595043;  // "CPYR"
inline constexpr uint32_t kVersion = 1;
// The most that is waited for at once.
inline constexpr uint32_t kPieceBytes = uint32_t{32} << 20;
// The most that is asked for and not done, so that counters can be compared.
inline constexpr uint32_t kMostAsked = uint32_t{1} << 30;

// One 64-byte line for each writer.
struct Page {
  // Fixed before the client sees it.
  uint32_t magic;
  uint32_t version;
  uint64_t bytes;  // Of the whole page.

  // By the client's CPUs.
  alignas(64) Word put;
  std::atomic<uint64_t> read;  // Not cut.
  // By the client's streams.
  alignas(64) Word asked;
  Word done;
  // By hoistd, and by the client once that is gone.
  alignas(64) Word granted;
  Word sleeping;
};
static_assert(sizeof(Page) == 256 && offsetof(Page, bytes) == 8);
static_assert(offsetof(Page, put) == 64 && offsetof(Page, asked) == 128);
static_assert(offsetof(Page, granted) == 192);

inline constexpr size_t kBytes = 4096;

// A `granted` that lets through what is asked for next. Of what lies further
// behind on streams a wrapping counter cannot tell, so the client says it again
// as `done` grows, until that is what was put.
constexpr uint32_t Released(uint32_t done) { return done + kMostAsked; }

}  // namespace hoist::copier

#endif  // HOIST_SHARED_COPIER_LAYOUT_H_
