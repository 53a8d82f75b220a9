#include "daemon/base/sha256.h"

#include <openssl/evp.h>

#include "daemon/base/check.h"

namespace hoistd {

// The calls below fail only without memory, or without SHA-256.
Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  HOIST_CHECK(context_ != nullptr);
  HOIST_CHECK(EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(context_); }

Sha256& Sha256::Bytes(std::span<const std::byte> bytes) {
  HOIST_CHECK(EVP_DigestUpdate(context_, bytes.data(), bytes.size()) == 1);
  return *this;
}

Sha256& Sha256::Number(uint64_t number) {
  std::array<std::byte, 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(number >> (8 * i));
  }
  return Bytes(bytes);
}

Sha256& Sha256::String(absl::string_view text) {
  Number(text.size());
  return Bytes(std::as_bytes(std::span<const char>(text.data(), text.size())));
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  HOIST_CHECK(EVP_DigestFinal_ex(context_, digest.data(), nullptr) == 1);
  return digest;
}

}  // namespace hoistd
