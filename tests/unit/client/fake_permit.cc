#include "tests/unit/client/fake_permit.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdio>
#include <thread>

namespace hoist_test {
namespace {

namespace permit = hoist::permit;

template <typename Holds>
bool Until(const Holds& holds) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::minutes(1);
  while (!holds()) {
    if (Clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

FakePage::FakePage(bool sealed) {
  memory_ = memfd_create("fake-permit", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (ftruncate(memory_, permit::kBytes) != 0) std::perror("ftruncate");
  if (sealed && fcntl(memory_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    std::perror("seal");
  }
  data_ = static_cast<std::byte*>(mmap(
      nullptr, permit::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0));
  page().magic = permit::kMagic;
  page().version = permit::kVersion;
  page().bytes = permit::kBytes;
}

FakePage::~FakePage() {
  munmap(data_, permit::kBytes);
  close(memory_);
  close(wake_);
}

void FakePage::Grant(uint32_t bytes) {
  page().granted.store(bytes);
  syscall(SYS_futex, &page().granted, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool FakePage::AwaitAsked(uint32_t bytes) const {
  return Until([&] { return page().asked.load() == bytes; });
}

bool FakePage::AwaitDone(uint32_t bytes) const {
  return Until([&] { return page().done.load() == bytes; });
}

uint64_t FakePage::TakeWakeUps() const {
  eventfd_t count = 0;
  return eventfd_read(wake_, &count) == 0 ? count : 0;
}

FakeDaemon::Script PermitScript::script() {
  return [this](Peer& peer, const pb::ClientMessage& message,
                const std::vector<int>&) { return Answer(peer, message); };
}

bool PermitScript::Answer(Peer& peer, const pb::ClientMessage& message) {
  const std::lock_guard<std::mutex> lock(mu_);
  pb::DaemonMessage reply;
  reply.set_request_id(message.request_id());
  if (message.has_resume()) {
    reply.mutable_resume();
    peer.Send(reply);
    return true;
  }
  if (message.has_close_permit()) {
    closed_.push_back(message.close_permit().permit_id());
    peer.Send(reply);
    return true;
  }
  if (!message.has_open_permit()) return false;
  if (refuse) {
    reply.set_code(3);
    reply.set_message("the message carries no verb that this hoistd knows");
    peer.Send(reply);
    return true;
  }
  FakePage& page = *pages_.emplace_back(std::make_unique<FakePage>(sealed));
  if (spoil != nullptr) spoil(page);
  opened_.push_back(message.open_permit());
  reply.mutable_permit()->set_id(600 + pages_.size());
  reply.mutable_permit()->set_wake_fd_index(1);
  const std::vector<int> fds = {page.memory_fd(), page.wake_fd()};
  peer.Send(reply, std::span(fds.data(), one_descriptor ? 1 : 2));
  return true;
}

FakePage& PermitScript::page(size_t n) {
  FakePage* found = nullptr;
  Until([&] {
    const std::lock_guard<std::mutex> lock(mu_);
    if (n < pages_.size()) found = pages_[n].get();
    return found != nullptr;
  });
  return *found;
}

std::vector<pb::OpenPermitRequest> PermitScript::opened() {
  const std::lock_guard<std::mutex> lock(mu_);
  return opened_;
}

std::vector<uint64_t> PermitScript::closed() {
  const std::lock_guard<std::mutex> lock(mu_);
  return closed_;
}

}  // namespace hoist_test
