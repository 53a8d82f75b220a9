#include "tests/bench/report.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <vector>

#include "tests/bench/basics.h"

namespace hoist::bench {
namespace {

std::string Cell(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number_float()) return value.is_null() ? "" : value.dump();
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", value.get<double>());
  return text;
}

std::vector<std::string> Keys(const Json& row) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : row.items()) keys.push_back(key);
  return keys;
}

void PrintTable(const std::vector<std::vector<std::string>>& lines) {
  std::vector<size_t> widths(lines[0].size());
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      widths[i] = std::max(widths[i], line[i].size());
    }
  }
  for (const auto& line : lines) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      text += line[i] + std::string(widths[i] - line[i].size() + 2, ' ');
    }
    text.erase(text.find_last_not_of(' ') + 1);
    std::cout << text << "\n";
  }
}

}  // namespace

Report::Report(const std::string& bench, Json options) {
  utsname system = {};
  uname(&system);
  json_["bench"] = bench;
  json_["machine"] = {{"cpus", sysconf(_SC_NPROCESSORS_ONLN)},
                      {"kernel", system.release}};
  json_["options"] = std::move(options);
  json_["rows"] = Json::array();
  json_["notes"] = Json::array();
}

void Report::Add(Json row) {
  std::cerr << row.dump() << std::endl;
  json_["rows"].push_back(std::move(row));
}

void Report::Note(const std::string& text) { json_["notes"].push_back(text); }

void Report::Finish(const std::string& path) const {
  if (path == "-") {
    std::cout << json_.dump(1) << std::endl;
    return;
  }
  std::cout << json_["bench"].get<std::string>() << ": "
            << json_["machine"].dump() << "\n";
  std::vector<std::vector<std::string>> lines;
  for (const Json& row : json_["rows"]) {
    if (lines.empty() || lines[0] != Keys(row)) {
      if (!lines.empty()) PrintTable(lines);
      lines = {Keys(row)};
      std::cout << "\n";
    }
    lines.emplace_back();
    for (const auto& [key, value] : row.items()) {
      lines.back().push_back(Cell(value));
    }
  }
  if (!lines.empty()) PrintTable(lines);
  for (const Json& note : json_["notes"]) {
    std::cout << note.get<std::string>() << "\n";
  }
  std::cout.flush();
  if (path.empty()) return;
  std::ofstream file(path);
  file << json_.dump(1) << "\n";
  file.close();
  if (!file) Fail("cannot write " + path);
}

}  // namespace hoist::bench
