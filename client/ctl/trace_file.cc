#include "client/ctl/trace_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace hoist::ctl {

TraceFile::TraceFile(std::string path) : path_(std::move(path)) {
  struct stat found;
  if (stat(path_.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    fd_ = UniqueFd(open(path_.c_str(), O_WRONLY | O_CLOEXEC));
  } else {
    beside_ = path_ + ".XXXXXX";
    fd_ = UniqueFd(mkostemp(beside_.data(), O_CLOEXEC));
    if (!fd_.valid()) beside_.clear();
  }
  if (!fd_.valid()) Failed();
}

TraceFile::~TraceFile() {
  if (!beside_.empty()) unlink(beside_.c_str());
}

void TraceFile::Failed() { error_ = path_ + ": " + std::strerror(errno); }

void TraceFile::Write(std::string_view text) {
  while (error_.empty() && !text.empty()) {
    const ssize_t bytes = write(fd_.get(), text.data(), text.size());
    if (bytes >= 0) {
      text.remove_prefix(static_cast<size_t>(bytes));
    } else if (errno != EINTR) {
      Failed();
    }
  }
}

void TraceFile::Keep() {
  if (!error_.empty() || beside_.empty()) return;
  // A disk that is full may say so only now.
  if (fsync(fd_.get()) != 0 && errno != EINVAL) return Failed();
  if (rename(beside_.c_str(), path_.c_str()) != 0) return Failed();
  beside_.clear();
}

}  // namespace hoist::ctl
