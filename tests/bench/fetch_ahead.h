// A simulated decode of a mixture whose cold experts are copied ahead of their
// reads into a ring of places.
#ifndef HOIST_TESTS_BENCH_FETCH_AHEAD_H_
#define HOIST_TESTS_BENCH_FETCH_AHEAD_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace hoist::bench {

// Of one layer, in seconds, bytes and bytes a second.
struct FetchTimes {
  double attention = 0;  // And all else until the router's answer.
  double experts = 0;    // All of them in device memory.
  double expert_bytes = 0;
  double piece_bytes = 0;  // Of a copy: a started one is not cut short.
  double link = 0;         // A copy's rate.
  double in_place = 0;     // A kernel's.
  double copy_share = 0;   // Of the link, beside a kernel that reads in place.
  // Of the last guesses, the part that was read. Below it nothing is copied.
  double least_right = 0;
  bool waits = false;  // A layer, for a copy that it needs and has started.
};

// One layer in one token. All experts here are cold.
struct FetchLayer {
  std::vector<uint32_t> reads;     // Chosen by its router.
  std::vector<uint32_t> foreseen;  // Named by the predictor, likeliest first.
  size_t known_at = 0;             // The layer before whose attention it is so.
};

struct FetchResult {
  double seconds = 0;
  double in_place_bytes = 0;  // Read over the link.
  double used_bytes = 0;      // Copied, and read.
  double wasted_bytes = 0;    // Copied, and not read.
  size_t places = 0;          // In use at the most.
};

// Copies run in the order of `foreseen`, one at a time, and none begins a piece
// while a kernel reads in place. A router's answer ends those of its layer:
// what has not come by then is read in place. A piece under way and a kernel
// share the link in halves. An expert's place is free again after its layer.
// `known_at` may not decrease.
FetchResult FetchAhead(std::span<const FetchLayer> layers,
                       const FetchTimes& times,
                       size_t places = std::numeric_limits<size_t>::max());

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_FETCH_AHEAD_H_
