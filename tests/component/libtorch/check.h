// The test framework of check.cc: tests register themselves, and throw.
#ifndef HOIST_TESTS_COMPONENT_LIBTORCH_CHECK_H_
#define HOIST_TESTS_COMPONENT_LIBTORCH_CHECK_H_

#include <c10/util/Exception.h>
#include <hoist/hoist.h>

#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace hoist_check {

struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct LeftOut : std::runtime_error {
  using std::runtime_error::runtime_error;
};
inline void Expect(bool holds, const char* what, int line) {
  if (holds) return;
  throw Failed("line " + std::to_string(line) + ": " + what);
}
#define EXPECT(condition) Expect((condition), #condition, __LINE__)
// Returns the value, or fails the test with the status.
template <typename T>
T Take(hoist::Result<T> result) {
  if (!result.ok()) throw Failed(result.status().ToString());
  return std::move(*result);
}
inline void Ok(const hoist::Status& status) {
  if (!status.ok()) throw Failed(status.ToString());
}
// The message of the c10::Error that the call throws; "": none.
inline std::string Thrown(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}
inline bool Says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Test {
  const char* name;
  void (*run)();
};
inline std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}
inline bool Register(const Test& test) {
  Tests().push_back(test);
  return true;
}
#define TEST(name)                                \
  void name();                                    \
  const bool is_##name = Register({#name, name}); \
  void name()

// True: it passed, or was skipped.
inline bool RunOne(const Test& test, int* left_out) {
  std::string verdict = "ok     ", why;
  try {
    test.run();
  } catch (const LeftOut& reason) {
    verdict = "skip   ";
    why = reason.what();
    ++*left_out;
  } catch (const std::exception& error) {  // c10::Error is one.
    verdict = "FAILED ";
    why = error.what();
  }
  std::printf("%s%s %s\n", verdict.c_str(), test.name, why.c_str());
  std::fflush(stdout);
  return verdict[0] != 'F';
}

}  // namespace hoist_check

#endif  // HOIST_TESTS_COMPONENT_LIBTORCH_CHECK_H_
