#ifndef HOIST_CLIENT_SRC_BASE_SHA256_H_
#define HOIST_CLIENT_SRC_BASE_SHA256_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace hoist {

using Sha256Digest = std::array<uint8_t, 32>;

// SHA-256 (FIPS 180-4) of a stream, of fields as daemon/base/sha256.h has them.
// libhoist needs no library of digests: this is plain C++, or the SHA
// instructions of x86-64, which are several times as fast.
//
// Threads:  one at a time.
class Sha256 {
 public:
  static bool HasInstructions();
  // `instructions`: not without HasInstructions().
  explicit Sha256(bool instructions = HasInstructions())
      : instructions_(instructions) {}

  Sha256& Bytes(std::span<const std::byte> bytes);
  // 8 bytes, little endian.
  Sha256& Number(uint64_t number);
  // After its length.
  Sha256& String(std::string_view text);
  // Once; no other call follows.
  Sha256Digest Finish();

 private:
  static constexpr size_t kBlock = 64;

  void Mix(std::span<const std::byte> blocks);

  const bool instructions_;
  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372,
                                    0xa54ff53a, 0x510e527f, 0x9b05688c,
                                    0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlock> rest_ = {};  // Of the last block.
  uint64_t bytes_ = 0;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_BASE_SHA256_H_
