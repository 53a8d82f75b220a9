#include "daemon/base/hash.h"

#include <xxhash.h>

#include <cstring>

#include "daemon/base/check.h"

namespace hoistd {
namespace {

Hash128 Canonical(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Hash128 out;
  static_assert(sizeof(canonical.digest) == sizeof(out));
  std::memcpy(out.data(), canonical.digest, sizeof(out));
  return out;
}

}  // namespace

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
};

Hash128 Xxh3(std::span<const std::byte> bytes) {
  return Canonical(XXH3_128bits(bytes.data(), bytes.size()));
}

Hasher::Hasher() : state_(std::make_unique<State>()) {
  HOIST_CHECK(state_->xxh != nullptr);
  XXH3_128bits_reset(state_->xxh);
}

Hasher::~Hasher() { XXH3_freeState(state_->xxh); }

Hasher& Hasher::Bytes(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
  return *this;
}

Hasher& Hasher::Number(uint64_t number) {
  std::array<std::byte, 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(number >> (8 * i));
  }
  return Bytes(bytes);
}

Hasher& Hasher::String(absl::string_view text) {
  Number(text.size());
  return Bytes(std::as_bytes(std::span<const char>(text.data(), text.size())));
}

Hash128 Hasher::Finish() const {
  return Canonical(XXH3_128bits_digest(state_->xxh));
}

}  // namespace hoistd
