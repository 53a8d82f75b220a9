#include "client/ctl/whole_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace hoist::ctl {

namespace {

std::string Beside(const std::string& path) {
  const size_t name = path.rfind('/') + 1;  // npos + 1 is 0.
  return path.substr(0, name) + "." + path.substr(name) + ".XXXXXX";
}

}  // namespace

WholeFile::WholeFile(std::string path, FileReaders readers)
    : path_(std::move(path)) {
  struct stat found;
  if (stat(path_.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    fd_ = UniqueFd(open(path_.c_str(), O_WRONLY | O_CLOEXEC));
  } else {
    beside_ = Beside(path_);
    fd_ = UniqueFd(mkostemp(beside_.data(), O_CLOEXEC));
    if (!fd_.valid()) beside_.clear();
    // Whatever the umask says: who reads it runs as somebody else.
    if (fd_.valid() && readers == FileReaders::kEveryone &&
        fchmod(fd_.get(), 0644) != 0) {
      Failed();
    }
  }
  if (!fd_.valid()) Failed();
}

WholeFile::~WholeFile() {
  if (!beside_.empty()) unlink(beside_.c_str());
}

void WholeFile::Failed() { error_ = path_ + ": " + std::strerror(errno); }

void WholeFile::Write(std::string_view text) {
  while (error_.empty() && !text.empty()) {
    const ssize_t bytes = write(fd_.get(), text.data(), text.size());
    if (bytes >= 0) {
      text.remove_prefix(static_cast<size_t>(bytes));
    } else if (errno != EINTR) {
      Failed();
    }
  }
}

void WholeFile::Keep() {
  if (!error_.empty() || beside_.empty()) return;
  // A disk that is full may say so only now.
  if (fsync(fd_.get()) != 0 && errno != EINVAL) return Failed();
  if (rename(beside_.c_str(), path_.c_str()) != 0) return Failed();
  beside_.clear();
}

}  // namespace hoist::ctl
