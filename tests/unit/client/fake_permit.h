// hoistd's side of permits, played by a test over the page's words.
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

// A page that hoistd would make, and its eventfd.
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
  // So many bytes in all, cut to 32 bits; wakes who waits.
  void Grant(uint32_t bytes);
  // False: not in a minute.
  bool AwaitAsked(uint32_t bytes) const;
  bool AwaitDone(uint32_t bytes) const;
  uint64_t TakeWakeUps() const;

 private:
  int memory_ = -1;
  int wake_ = -1;
  std::byte* data_ = nullptr;
};

// A script for FakeDaemon that opens permits, each over a page of its own.
class PermitScript {
 public:
  FakeDaemon::Script script();

  // The n-th, once it is opened; lives as long as this.
  FakePage& page(size_t n);
  std::vector<pb::OpenPermitRequest> opened();
  std::vector<uint64_t> closed();

  // Before the first is opened.
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
