// hoistd's side of permits, controlled by a test over the page's words.
#ifndef HOIST_TESTS_UNIT_CLIENT_FAKE_PERMIT_H_
#define HOIST_TESTS_UNIT_CLIENT_FAKE_PERMIT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "hoist/shared/permit_layout.h"
#include "tests/unit/client/fake_daemon.h"

namespace hoist_test {

// A page as hoistd makes it, and its eventfd.
class FakePage {
 public:
  explicit FakePage(bool sealed = true);
  FakePage(const FakePage&) = delete;
  FakePage& operator=(const FakePage&) = delete;
  ~FakePage();

  hoist::permit::Page& page() const {
    return *reinterpret_cast<hoist::permit::Page*>(data_);
  }
  int memory_fd() const { return memory_; }
  int wake_fd() const { return wake_; }
  // Grants bytes in total, cut to 32 bits; wakes waiters.
  void Grant(uint32_t bytes);
  // False: not within a minute.
  bool AwaitAsked(uint32_t bytes) const;
  bool AwaitDone(uint32_t bytes) const;
  uint64_t TakeWakeUps() const;

 private:
  int memory_ = -1;
  int wake_ = -1;
  std::byte* data_ = nullptr;
};

// A script for FakeDaemon that opens permits, each with its own page.
class PermitScript {
 public:
  FakeDaemon::Script script();

  // The n-th page, once it is open; lives as long as this.
  FakePage& page(size_t n);
  std::vector<pb::OpenPermitRequest> opened();
  std::vector<uint64_t> closed();

  // To be set before the first is opened.
  bool sealed = true;
  std::function<void(FakePage&)> spoil;  // Each page, before it is sent.
  bool refuse = false;                   // As a hoistd that knows no permits.
  bool one_descriptor = false;

 private:
  bool Answer(Peer& peer, const pb::ClientMessage& message);

  std::mutex mu_;
  std::vector<std::unique_ptr<FakePage>> pages_;
  std::vector<pb::OpenPermitRequest> opened_;
  std::vector<uint64_t> closed_;
};

}  // namespace hoist_test

#endif  // HOIST_TESTS_UNIT_CLIENT_FAKE_PERMIT_H_
