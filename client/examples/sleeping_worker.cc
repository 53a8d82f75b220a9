// A worker that sleeps: while it does it has no memory of hoistd's, no session
// and no lease, and when it wakes up its pointers are right.
//
//   sleeping_worker [--socket PATH] FILE.safetensors
//
// Adds up all bytes of the file's groups on hoistd's emulated device, sleeps,
// and does so again by the same pointers and a new session. Prints "asleep"
// when it begins to sleep, and sleeps until a line comes on its standard input.
// Exit status: 0 if both sums are equal, 1 if not, 2 on an error.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "hoist/hoist_fixed_mapping.h"

namespace {

constexpr std::chrono::milliseconds kPatience{60'000};

template <typename Value>
Value Take(hoist::Result<Value> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "sleeping_worker: %s\n",
                 result.status().ToString().c_str());
    std::exit(2);
  }
  return std::move(result).value();
}

void Check(const hoist::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "sleeping_worker: %s\n", status.ToString().c_str());
  std::exit(2);
}

// A session and the model in it: what a worker has while it is awake.
struct Awake {
  explicit Awake(const std::string& socket, const std::string& file)
      : session(Take(hoist::Session::Connect(OptionsOf(socket)))),
        model(Take(session.RegisterModel({.name = "sleeping", .path = file}))) {
  }

  static hoist::ConnectOptions OptionsOf(const std::string& socket) {
    hoist::ConnectOptions options;
    options.socket_path = socket;
    options.connect_deadline = kPatience;
    return options;
  }

  hoist::Session session;
  hoist::Model model;
};

uint64_t Sum(const hoist::FixedMapping& mapping, const hoist::Model& model) {
  uint64_t sum = 0;
  for (uint32_t group = 0; group < model.group_count(); ++group) {
    const auto* bytes = static_cast<const uint8_t*>(mapping.address(group));
    for (uint64_t i = 0; i < model.group_image_bytes(group); ++i) {
      sum = sum * 31 + bytes[i];
    }
  }
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  std::string socket;
  if (argc == 4 && std::string(argv[1]) == "--socket") {
    socket = argv[2];
  } else if (argc != 2 || argv[1][0] == '-') {
    std::fprintf(stderr, "sleeping_worker [--socket PATH] FILE.safetensors\n");
    return 2;
  }
  const std::string file = argv[argc - 1];
  std::vector<uint32_t> groups;
  uint64_t before = 0;
  hoist::FixedMapping mapping(nullptr);
  {
    Awake awake(socket, file);
    for (uint32_t i = 0; i < awake.model.group_count(); ++i) {
      groups.push_back(i);
    }
    mapping =
        Take(hoist::FixedMapping::Create(awake.session, awake.model, groups));
    Check(mapping.Fill(awake.session, awake.model, groups, kPatience));
    before = Sum(mapping, awake.model);
    Check(mapping.Empty());
  }
  std::puts("asleep");
  std::fflush(stdout);
  std::string line;
  std::getline(std::cin, line);
  Awake awake(socket, file);
  Check(mapping.Fill(awake.session, awake.model, groups, kPatience));
  const bool equal = Sum(mapping, awake.model) == before;
  std::printf("%zu groups, %s\n", groups.size(), equal ? "equal" : "NOT equal");
  return equal ? 0 : 1;
}
