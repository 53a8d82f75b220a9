// A link, its copiers, and plans beside them; time passes when a test says so.
#ifndef HOIST_TESTS_UNIT_COPIER_RIG_H_
#define HOIST_TESTS_UNIT_COPIER_RIG_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "daemon/copier/copier_desk.h"
#include "tests/support/copier_client.h"
#include "tests/unit/link/rig.h"

namespace hoistd::testing {

inline constexpr uint32_t kPiece = hoist::copier::kPieceBytes;

class CopierRig {
 public:
  explicit CopierRig(const LinkOptions& options = {}) : link_(options) {
    desk_ = std::make_unique<CopierDesk>(link_.link());
  }

  absl::StatusOr<CopierShare> TryOpen(CopierId id,
                                      const ShareOptions& share = {});
  CopierClient Open(CopierId id, const ShareOptions& share = {}) {
    return CopierClient(TryOpen(id, share).value());
  }
  // As Close, but that it is gone when this returns.
  void CloseAndWait(CopierId id);
  CopierStats Stats(CopierId id) const;

  LinkRig& link() { return link_; }
  CopierDesk& desk() { return *desk_; }
  void EndDesk() { desk_.reset(); }

 private:
  LinkRig link_;
  std::unique_ptr<CopierDesk> desk_;
};

// Copies all that it is granted, at once.
class EagerWorker {
 public:
  explicit EagerWorker(CopierClient client);
  ~EagerWorker();
  EagerWorker(const EagerWorker&) = delete;
  EagerWorker& operator=(const EagerWorker&) = delete;

 private:
  CopierClient client_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_UNIT_COPIER_RIG_H_
