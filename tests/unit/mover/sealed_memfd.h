// A client's image, as it is sent.
#ifndef HOIST_TESTS_UNIT_MOVER_SEALED_MEMFD_H_
#define HOIST_TESTS_UNIT_MOVER_SEALED_MEMFD_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <span>

#include "gtest/gtest.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd::testing {

inline hoist::UniqueFd SealedMemfd(std::span<const std::byte> bytes,
                                   int seals) {
  hoist::UniqueFd fd(memfd_create("image", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(write(fd.get(), bytes.data(), bytes.size()),
            static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_UNIT_MOVER_SEALED_MEMFD_H_
