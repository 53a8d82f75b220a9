// A client of one permit, in its page's own words: the parts of libhoist and a
// GPU, for tests of servers of permits. CPUs wait by futex, as on the emulated
// device.
#ifndef HOIST_TESTS_SUPPORT_PERMIT_CLIENT_H_
#define HOIST_TESTS_SUPPORT_PERMIT_CLIENT_H_

#include <unistd.h>

#include <cstdint>
#include <utility>

#include "daemon/permit/permit_memory.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/permit_layout.h"
#include "tests/support/until.h"

namespace hoistd::testing {

// Threads:  one at a time.
class PermitClient {
 public:
  explicit PermitClient(PermitShare share) : wake_(std::move(share.wake)) {
    mapping_ = hoist::Mapping::OfFd(share.memory.get(), hoist::permit::kBytes,
                                    hoist::Mapping::Access::kReadWrite)
                   .value();
  }

  hoist::permit::Page& page() {
    return *reinterpret_cast<hoist::permit::Page*>(mapping_.data());
  }
  // Puts bytes on a stream that reaches them at once.
  void Ask(uint32_t bytes) {
    page().put.store(page().put.load() + bytes);
    page().asked.store(page().asked.load() + bytes);
    WakeLink();
  }
  // Reports more bytes as copied.
  void Done(uint32_t bytes) {
    page().done.store(page().done.load() + bytes);
    WakeLink();
  }
  uint32_t granted() { return page().granted.load(); }
  // False: not granted within a minute.
  bool AwaitGranted(uint32_t bytes) {
    return Until([&] { return hoist::lane::Reached(granted(), bytes); });
  }
  void WakeLink() {
    if (page().sleeping.load() == 1) Wake();
  }
  void Wake() {
    const uint64_t one = 1;
    if (write(wake_.get(), &one, sizeof(one)) != sizeof(one)) return;
  }

 private:
  hoist::UniqueFd wake_;
  hoist::Mapping mapping_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_PERMIT_CLIENT_H_
