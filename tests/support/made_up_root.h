// A fake root directory for /proc and /sys.
#ifndef HOIST_TESTS_SUPPORT_MADE_UP_ROOT_H_
#define HOIST_TESTS_SUPPORT_MADE_UP_ROOT_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace hoistd::testing {

class MadeUpRoot : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/hoist-root-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  std::string root_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_MADE_UP_ROOT_H_
