// A bench's results: a table for people, and the same as JSON.
#ifndef HOIST_TESTS_BENCH_REPORT_H_
#define HOIST_TESTS_BENCH_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>

namespace hoist::bench {

using Json = nlohmann::ordered_json;

// {"bench": "stream", "machine": {...}, "options": {...}, "rows": [...]}
class Report {
 public:
  // Fills in the machine: CPUs, kernel. The opener of a device adds `device`.
  Report(const std::string& bench, Json options);

  void SetDevice(const std::string& name) { json_["machine"]["device"] = name; }
  // Adds a row: an object of plain values. Rows of a table have the same keys;
  // other keys begin a new table. It is shown on stderr at once, to follow a
  // long run.
  void Add(Json row);
  // A remark below the tables.
  void Note(const std::string& text);
  // Writes the tables to stdout, and JSON to `path` ("-": stdout, instead of
  // the tables; "": nowhere).
  void Finish(const std::string& path) const;

 private:
  Json json_;
};

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_REPORT_H_
