#ifndef HOIST_CLIENT_CTL_WHOLE_FILE_H_
#define HOIST_CLIENT_CTL_WHOLE_FILE_H_

#include <string>
#include <string_view>

#include "hoist/shared/unique_fd.h"

namespace hoist::ctl {

enum class FileReaders { kOwner, kEveryone };

// A file that is there whole or not at all: it is written beside its place,
// under a name that begins with a dot, and put there by Keep. What is no
// regular file, such as a pipe, is written to as it is.
//
// Owns:     the file, which goes with it if it was not kept.
class WholeFile {
 public:
  WholeFile(std::string path, FileReaders readers);
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;
  ~WholeFile();

  // "t.json: No such file or directory"; "": all went well so far.
  const std::string& error() const { return error_; }
  // Nothing happens after an error.
  void Write(std::string_view text);
  // It is complete.
  void Keep();

 private:
  void Failed();

  const std::string path_;
  std::string beside_;  // "": it is not there, or is the place itself.
  UniqueFd fd_;
  std::string error_;
};

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_WHOLE_FILE_H_
