// Which files of a folder hold a model's weights, by their names.
#ifndef HOIST_SHARED_WEIGHT_FILES_H_
#define HOIST_SHARED_WEIGHT_FILES_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hoist {

inline constexpr std::string_view kSafetensorsEnding = ".safetensors";
inline constexpr std::string_view kGgufEnding = ".gguf";
// "-00001-of-00003", before the ending.
inline constexpr size_t kGgufPartBytes = 15;
inline constexpr size_t kMaxGgufParts = 2048;

// Whether `name` is more than one of the endings, and has it.
bool IsWeightFile(std::string_view name);

// Of a folder's `names`: all *.safetensors files, or, if there are none, all
// *.gguf files. By name.
std::vector<std::string> WeightFilesOf(const std::vector<std::string>& names);

// The files of the set that `name` is a part of: "m-00001-of-00002.gguf" and
// "m-00002-of-00002.gguf". Just `name`, if it is no such part, or one of more
// than kMaxGgufParts.
std::vector<std::string> GgufSetOf(const std::string& name);

}  // namespace hoist

#endif  // HOIST_SHARED_WEIGHT_FILES_H_
