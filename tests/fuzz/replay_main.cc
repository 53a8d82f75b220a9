// Runs a fuzz target over files and folders of inputs, without libFuzzer:
//
//   fuzz_NAME PATH...                each file, and bits of it flipped
//   fuzz_NAME --write-seeds FOLDER   writes the target's valid inputs
//
// Fails where there is nothing to run: a corpus that was lost tests nothing.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

namespace fs = std::filesystem;

// What a compiler without libFuzzer tries beside the corpus: bits spread over
// the input, and its beginnings.
constexpr size_t kVariants = 16;

void Run(const std::string& bytes) {
  // A copy of exactly this size, so that ASan sees a step beyond it.
  const std::vector<uint8_t> input(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

void RunVariants(const std::string& bytes) {
  for (size_t i = 0; i < kVariants && i < bytes.size(); ++i) {
    const size_t at = bytes.size() * i / kVariants;
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ (1 << (i % 8)));
    Run(changed);
    Run(bytes.substr(0, at));
  }
}

std::vector<fs::path> FilesOf(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

int WriteSeeds(const fs::path& folder) {
  fs::create_directories(folder);
  for (const auto& [name, bytes] : hoistd::fuzz::MakeSeeds()) {
    std::ofstream file(folder / name, std::ios::binary);
    file << bytes;
    if (!file.flush()) {
      std::fprintf(stderr, "cannot write %s\n", (folder / name).c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() == 2 && args[0] == "--write-seeds") {
    return WriteSeeds(args[1]);
  }
  size_t run = 0;
  for (const std::string& arg : args) {
    for (const fs::path& path : FilesOf(arg)) {
      std::ifstream file(path, std::ios::binary);
      const std::string bytes(std::istreambuf_iterator<char>(file), {});
      // Said before, so that an abort names it.
      std::printf("%s: %zu bytes\n", path.c_str(), bytes.size());
      std::fflush(stdout);
      Run(bytes);
      RunVariants(bytes);
      ++run;
    }
  }
  std::printf("%zu inputs\n", run);
  return run == 0 ? 1 : 0;
}
