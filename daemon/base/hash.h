#ifndef HOIST_DAEMON_BASE_HASH_H_
#define HOIST_DAEMON_BASE_HASH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/strings/string_view.h"

namespace hoistd {

// XXH3-128 in its canonical (big endian) form.
using Hash128 = std::array<uint8_t, 16>;

Hash128 Xxh3(std::span<const std::byte> bytes);

// XXH3-128 of a stream. Numbers go in as 8 bytes little endian, strings after
// their length, so that no two sequences of fields give the same stream.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  Hasher& Bytes(std::span<const std::byte> bytes);
  Hasher& Number(uint64_t number);
  Hasher& String(absl::string_view text);
  Hash128 Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_HASH_H_
