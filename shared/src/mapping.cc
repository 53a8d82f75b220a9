#include "hoist/shared/mapping.h"

#include <cerrno>

namespace hoist {
namespace {
int Protection(Mapping::Access access) {
  return access == Mapping::Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
}
}  // namespace

Result<Mapping> Mapping::OfFd(int fd, size_t size, Access access,
                              uint64_t offset) {
  void* data = mmap(nullptr, size, Protection(access), MAP_SHARED, fd,
                    static_cast<off_t>(offset));
  if (data == MAP_FAILED) return ErrnoStatus(errno, "mmap");
  return Mapping(data, size);
}

Result<Mapping> Mapping::Reserve(size_t size) {
  void* data = mmap(nullptr, size, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, "reserve address space");
  return Mapping(data, size);
}

Status Mapping::PlaceFd(size_t at, int fd, size_t size, Access access,
                        uint64_t offset) {
  if (at > size_ || size > size_ - at) {
    return Status(Code::kInternal, "mapping placed outside its reservation");
  }
  void* data = mmap(this->data() + at, size, Protection(access),
                    MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(offset));
  if (data == MAP_FAILED) return ErrnoStatus(errno, "mmap");
  return Status();
}

Status Mapping::Unplace(size_t at, size_t size) {
  if (at > size_ || size > size_ - at) {
    return Status(Code::kInternal, "unmapping outside the reservation");
  }
  void* data =
      mmap(this->data() + at, size, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, "unmap");
  return Status();
}

void Mapping::reset() {
  if (data_ != nullptr) munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

}  // namespace hoist
