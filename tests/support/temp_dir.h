#ifndef HOIST_TESTS_SUPPORT_TEMP_DIR_H_
#define HOIST_TESTS_SUPPORT_TEMP_DIR_H_

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace hoistd::testing {

// A directory for one test on the disk (TEST_TMPDIR or /var/tmp, since /tmp may
// be a tmpfs), removed with its contents.
class TempDir {
 public:
  TempDir() {
    const char* base = getenv("TEST_TMPDIR");
    path_ = std::string(base != nullptr ? base : "/var/tmp") + "/hoist-XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~TempDir() {
    std::error_code ignored;  // A leftover directory fails no test.
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  // Empty: it could not be created.
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const {
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_TEMP_DIR_H_
