#include "client/src/permit/permit_page.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "client/src/device/word_wait.h"

namespace hoist {
namespace {

Status MalformedPage(const std::string& what) {
  return Status(Code::kInternal,
                "hoistd sent a malformed page of a permit: " + what);
}

}  // namespace

Result<std::unique_ptr<PermitPage>> PermitPage::Map(PermitGrant grant,
                                                    StreamOrder* order) {
  struct stat info;
  if (fstat(grant.memory.get(), &info) != 0) {
    return ErrnoStatus(errno, "a permit's page");
  }
  if (static_cast<uint64_t>(info.st_size) < permit::kBytes) {
    return MalformedPage("it has " + std::to_string(info.st_size) + " bytes");
  }
  // If the memory shrinks, a read raises SIGBUS.
  const int seals = fcntl(grant.memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return MalformedPage("it is not sealed against shrinking");
  }
  Result<Mapping> mapping = Mapping::OfFd(grant.memory.get(), permit::kBytes,
                                          Mapping::Access::kReadWrite);
  if (!mapping.ok()) return mapping.status();
  const auto* page = reinterpret_cast<const permit::Page*>(mapping->data());
  if (page->magic != permit::kMagic) return MalformedPage("it is none");
  if (page->version != permit::kVersion) {
    return Status(Code::kFailedPrecondition,
                  "hoistd grants copies by pages of version " +
                      std::to_string(page->version) +
                      ", and this libhoist reads " +
                      std::to_string(permit::kVersion) +
                      "; update libhoist or hoistd, whichever is older");
  }
  if (Status s = order->Register(mapping->span()); !s.ok()) return s;
  return std::unique_ptr<PermitPage>(new PermitPage(
      grant.id, std::move(mapping).value(), std::move(grant.wake), order));
}

void PermitPage::Put(uint32_t bytes) {
  put_ += bytes;
  page().put.store(put_);  // In one order with the look at `sleeping`.
  Wake();
}

void PermitPage::Wake() {
  if (page().sleeping.load() == 0) return;
  ++wake_ups_;
  // A full eventfd wakes hoistd anyway.
  (void)eventfd_write(wake_.get(), 1);
}

WordOp PermitPage::Ask(uint32_t bytes) {
  asked_ += bytes;
  return {WordOp::Kind::kWrite, &page().asked, asked_};
}

WordOp PermitPage::Granted(uint32_t bytes) {
  granted_ += bytes;
  return {WordOp::Kind::kWait, &page().granted, granted_};
}

WordOp PermitPage::Done(uint32_t bytes) {
  done_ += bytes;
  return {WordOp::Kind::kWrite, &page().done, done_};
}

void PermitPage::Release() {
  page().granted.store(permit::Released(page().done.load()));
  WakeWord(page().granted);
}

}  // namespace hoist
