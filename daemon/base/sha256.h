#ifndef HOIST_DAEMON_BASE_SHA256_H_
#define HOIST_DAEMON_BASE_SHA256_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/strings/string_view.h"

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX.

namespace hoistd {

using Sha256Digest = std::array<uint8_t, 32>;

// SHA-256 (FIPS 180-4) of a stream, for data shared between users who do not
// trust each other. Numbers go in as 8 bytes little endian, strings after their
// length, so that no two sequences of fields give the same stream.
//
// Threads: one at a time.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  Sha256& Bytes(std::span<const std::byte> bytes);
  Sha256& Number(uint64_t number);
  Sha256& String(absl::string_view text);
  // Once; no other call follows.
  Sha256Digest Finish();

 private:
  evp_md_ctx_st* context_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_SHA256_H_
