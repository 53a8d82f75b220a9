// The tests' framework: they register themselves, and throw. libtorch_test.py
// runs each program beside a hoistd, on an emulated device or on a GPU:
//
//   PROGRAM SOCKET FOLDER PID HOISTD HOISTCTL CONFIG [NAME...]
//
// FOLDER is for models that it writes. PID listens at SOCKET; others are
// started as HOISTD --config CONFIG. Exit status: 0 if none failed.
#ifndef HOIST_TESTS_COMPONENT_LIBTORCH_CHECK_H_
#define HOIST_TESTS_COMPONENT_LIBTORCH_CHECK_H_

#include <c10/util/Exception.h>
#include <hoist/hoist.h>
#include <sys/types.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace hoist_check {

inline std::string socket_path, folder, binary, hoistctl, config;
inline pid_t hoistd = 0;

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
inline hoist::Result<hoist::Session> TryToConnect(int seconds = 0) {
  hoist::ConnectOptions options;
  options.socket_path = socket_path;
  options.connect_deadline = std::chrono::seconds(seconds);
  return hoist::Session::Connect(options);
}
inline hoist::Session Connect(int seconds = 0) {
  return Take(TryToConnect(seconds));
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

inline int RunTests(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(stderr, "%s: see check.h\n", argv[0]);
    return 2;
  }
  socket_path = argv[1];
  folder = argv[2];
  hoistd = std::atoi(argv[3]);
  binary = argv[4];
  hoistctl = argv[5];
  config = argv[6];
  const std::vector<std::string> named(argv + 7, argv + argc);
  const torch::NoGradGuard no_grad;
  torch::set_num_threads(1);
  int ran = 0, failed = 0, left_out = 0;
  for (const Test& test : Tests()) {
    if (!named.empty() &&
        std::find(named.begin(), named.end(), test.name) == named.end()) {
      continue;
    }
    ++ran;
    if (!RunOne(test, &left_out)) ++failed;
  }
  std::printf("%d passed, %d failed, %d skipped\n", ran - failed - left_out,
              failed, left_out);
  return failed == 0 && ran > 0 ? 0 : 1;
}

}  // namespace hoist_check

#endif  // HOIST_TESTS_COMPONENT_LIBTORCH_CHECK_H_
