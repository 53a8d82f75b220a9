#ifndef HOIST_CLIENT_CTL_TRACE_FILE_H_
#define HOIST_CLIENT_CTL_TRACE_FILE_H_

#include <string>
#include <string_view>

#include "hoist/shared/unique_fd.h"

namespace hoist::ctl {

// A file that is there whole or not at all: it is written beside its place, and
// put there by Keep. What is no regular file, such as a pipe, is written to as
// it is. Only its owner may read it, as it has names of all users' models.
//
// Owns:     the file, which goes with it if it was not kept.
class TraceFile {
 public:
  explicit TraceFile(std::string path);
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile();

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

#endif  // HOIST_CLIENT_CTL_TRACE_FILE_H_
