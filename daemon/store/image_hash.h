#ifndef HOIST_DAEMON_STORE_IMAGE_HASH_H_
#define HOIST_DAEMON_STORE_IMAGE_HASH_H_

#include <cstddef>
#include <span>

#include "daemon/model/tensor.h"

namespace hoistd {

// XXH3-128 in its canonical byte order: of a whole image, or of one block.
Fingerprint ImageFingerprint(std::span<const std::byte> bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_IMAGE_HASH_H_
