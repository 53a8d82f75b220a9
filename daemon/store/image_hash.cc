#include "daemon/store/image_hash.h"

#include <xxhash.h>

#include <algorithm>

namespace hoistd {

Fingerprint ImageFingerprint(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical,
                           XXH3_128bits(bytes.data(), bytes.size()));
  Fingerprint fingerprint;
  static_assert(sizeof canonical.digest == sizeof fingerprint);
  std::copy_n(canonical.digest, fingerprint.size(), fingerprint.begin());
  return fingerprint;
}

}  // namespace hoistd
