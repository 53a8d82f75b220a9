// The page through which hoistd grants bytes to a permit: a worker's own copies
// between host and device take turns on hoistd's link. hoistd makes the page,
// sealed in size; the client maps it writable and registers it with CUDA, so
// that its streams write and wait for the words.
//
// To the device. All words but `read` count bytes from 0, cut to 32 bits, and
// are compared as wrapping counters (lane::Reached).
//   1. A CPU adds the bytes that it enqueues to `put`, and if `sleeping` is 1
//      writes 1 to the page's eventfd.
//   2. The stream adds them to `asked` when it could copy: no ask stands for a
//      copy that waits for kernels.
//   3. hoistd adds to `granted`, at most kPieceBytes per turn of the link.
//   4. The stream waits for each piece of at most kPieceBytes, copies it, and
//      adds it to `done`.
// A client with several streams serializes its asks: grants follow the order of
// asks.
//
// From the device nothing is asked: the link is full duplex, and hoistd uses
// that direction only to read images for checks. `read` counts bytes that a CPU
// has enqueued.
//
// hoistd trusts none of it. An `asked` behind `granted` asks for nothing; a
// `done` that goes back, or is beyond `granted`, is ignored. A grant keeps its
// place in the link's queue until it is done, but no longer than the link needs
// for its bytes. So a lie costs others no more than the copy.
//
// A permit ends with its session, and with hoistd: the next one makes a new
// page. The side that ends it lets the waits through (Released).
//
// `magic`, `version` and `bytes` are the first 16 bytes in every version; a
// client maps no other than kVersion.
#ifndef HOIST_SHARED_PERMIT_LAYOUT_H_
#define HOIST_SHARED_PERMIT_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "hoist/shared/lane_layout.h"

namespace hoist::permit {

using lane::Word;

inline constexpr uint32_t kMagic = 0x52595043;  // "CPYR"
inline constexpr uint32_t kVersion = 1;
// The maximum of one wait.
inline constexpr uint32_t kPieceBytes = uint32_t{32} << 20;
// The maximum asked for and not done, so that counters can be compared.
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
  // By hoistd, and by the client after hoistd's end.
  alignas(64) Word granted;
  Word sleeping;
};
static_assert(sizeof(Page) == 256 && offsetof(Page, bytes) == 8);
static_assert(offsetof(Page, put) == 64 && offsetof(Page, asked) == 128);
static_assert(offsetof(Page, granted) == 192);

inline constexpr size_t kBytes = 4096;

// A `granted` that lets the next asks through. A wrapping counter cannot cover
// later ones, so the client repeats it as `done` grows, until `done` equals
// `put`.
constexpr uint32_t Released(uint32_t done) { return done + kMostAsked; }

}  // namespace hoist::permit

#endif  // HOIST_SHARED_PERMIT_LAYOUT_H_
