#include "client/src/image/fetch.h"

#include <pthread.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <new>
#include <string>
#include <utility>

#include "client/src/base/start_thread.h"
#include "hoist/hoist_c.h"

namespace hoist {

Fetch::Fetch(Options options, UniqueFd event)
    : options_(std::move(options)), event_(std::move(event)) {}

Result<std::unique_ptr<Fetch>> Fetch::Start(Options options) {
  UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) return ErrnoStatus(errno, "make an eventfd");
  std::unique_ptr<Fetch> fetch(new Fetch(std::move(options), std::move(event)));
  const Options& asked = fetch->options_;
  // The prefetch lets hoistd read ahead; the thread stages groups one by one.
  Status queued = asked.session->Prefetch(*asked.model, asked.groups,
                                          HOIST_TIER_DEVICE, asked.device);
  if (!queued.ok()) return queued;
  {
    const MutexLock lock(fetch->mu_);
    fetch->leases_.reserve(asked.groups.size());
  }
  Status started =
      StartThread(&fetch->thread_, [one = fetch.get()] { one->Run(); });
  if (!started.ok()) return started;
  return fetch;
}

Fetch::~Fetch() {
  Cancel();
  if (thread_.joinable()) thread_.join();
  options_.session->PostReleases(leases_);
}

void Fetch::Run() {
  pthread_setname_np(pthread_self(), "hoist-fetch");
  Status how;
  for (const uint32_t group : options_.groups) {
    how = StageOne(group);
    if (!how.ok()) break;
  }
  const MutexLock lock(mu_);
  done_ = true;
  how_ = std::move(how);
  changed_.NotifyAll();
  (void)eventfd_write(event_.get(), 1);
}

Status Fetch::StageOne(uint32_t group) {
  const Status called_off(Code::kCancelled, "the fetch was called off");
  if (cancelled_) return called_off;
  Result<LeaseGrant> lease = called_off;
  try {
    lease = options_.session->Stage(*options_.model, group, options_.device,
                                    options_.deadline, &cancelled_);
  } catch (const std::bad_alloc&) {
    lease = Status(Code::kResourceExhausted, "out of memory");
  }
  if (!lease.ok()) {
    if (cancelled_) return called_off;
    return Status(lease.status().code(),
                  "group \"" + options_.model->groups()[group].name +
                      "\": " + lease.status().message());
  }
  const MutexLock lock(mu_);
  leases_.push_back(lease->id);
  return Status();
}

Status Fetch::Wait(std::chrono::milliseconds timeout, size_t* there) const {
  const auto end = std::chrono::steady_clock::now() + timeout;
  const MutexLock lock(mu_);
  while (!done_ && changed_.WaitUntil(mu_, end)) {
  }
  if (there != nullptr) *there = leases_.size();
  if (!done_) {
    return Status(Code::kDeadlineExceeded,
                  std::to_string(leases_.size()) + " of " +
                      std::to_string(options_.groups.size()) +
                      " groups are there by now");
  }
  if (!how_.ok()) return how_;
  return options_.session->Check();
}

void Fetch::Cancel() {
  cancelled_ = true;
  options_.session->WakeCalls();
}

}  // namespace hoist
