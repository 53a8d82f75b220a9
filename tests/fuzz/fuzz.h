// The parts of a fuzz target: one function that takes bytes and aborts on a
// broken property, and valid seed inputs.
//
// With the preset `fuzz` a target is a libFuzzer program; in other builds
// replay_main.cc runs it over its corpus.
#ifndef HOIST_TESTS_FUZZ_FUZZ_H_
#define HOIST_TESTS_FUZZ_FUZZ_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "daemon/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// A property of the code under test. Aborts on failure, as libFuzzer requires.
#define FUZZ_REQUIRE(condition) HOIST_CHECK(condition)

namespace hoistd::fuzz {

// A name, and the input. Each target has its own; --write-seeds writes them.
using Seeds = std::vector<std::pair<std::string, std::string>>;
Seeds MakeSeeds();

// Reads an input from its front; zeros after its end.
class Input {
 public:
  Input(const uint8_t* data, size_t size)
      : left_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return left_.empty(); }
  template <typename T = uint8_t>
  T Take() {
    static_assert(std::is_integral_v<T>);
    T value = 0;
    const std::string_view bytes = Bytes(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  // At most `most`, fewer at the end.
  std::string_view Bytes(size_t most) {
    const std::string_view taken = left_.substr(0, most);
    left_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view Rest() { return Bytes(left_.size()); }

 private:
  std::string_view left_;
};

// Writes input for Input.
class Output {
 public:
  template <typename T>
  Output& Put(T value) {
    static_assert(std::is_integral_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Output& Bytes(std::string_view bytes) {
    bytes_.append(bytes);
    return *this;
  }
  const std::string& str() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace hoistd::fuzz

#endif  // HOIST_TESTS_FUZZ_FUZZ_H_
