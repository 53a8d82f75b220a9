// A link, its permits, and plans beside them; time advances at the test's
// command.
#ifndef HOIST_TESTS_UNIT_PERMIT_RIG_H_
#define HOIST_TESTS_UNIT_PERMIT_RIG_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "daemon/permit/permit_desk.h"
#include "tests/support/permit_client.h"
#include "tests/unit/link/rig.h"

namespace hoistd::testing {

inline constexpr uint32_t kPiece = hoist::permit::kPieceBytes;

class PermitRig {
 public:
  explicit PermitRig(const LinkOptions& options = {}) : link_(options) {
    desk_ = std::make_unique<PermitDesk>(link_.link());
  }

  absl::StatusOr<PermitShare> TryOpen(PermitId id,
                                      const ShareOptions& share = {});
  PermitClient Open(PermitId id, const ShareOptions& share = {}) {
    return PermitClient(TryOpen(id, share).value());
  }
  // Like Close, but waits for the permit's end.
  void CloseAndWait(PermitId id);
  PermitStats Stats(PermitId id) const;

  LinkRig& link() { return link_; }
  PermitDesk& desk() { return *desk_; }
  void EndDesk() { desk_.reset(); }

 private:
  LinkRig link_;
  std::unique_ptr<PermitDesk> desk_;
};

// Asks for more than it is ever granted, and copies all granted bytes at once.
class EagerWorker {
 public:
  explicit EagerWorker(PermitClient client);
  ~EagerWorker();
  EagerWorker(const EagerWorker&) = delete;
  EagerWorker& operator=(const EagerWorker&) = delete;

 private:
  PermitClient client_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_UNIT_PERMIT_RIG_H_
