// What a bench measured: a table for people, and the same as JSON.
#ifndef HOIST_TESTS_BENCH_REPORT_H_
#define HOIST_TESTS_BENCH_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>

namespace hoist::bench {

using Json = nlohmann::ordered_json;

// {"bench": "stream", "machine": {...}, "options": {...}, "rows": [...]}
class Report {
 public:
  // Machine: CPUs, kernel; `device` is added by whoever opens one.
  Report(const std::string& bench, Json options);

  void SetDevice(const std::string& name) { json_["machine"]["device"] = name; }
  // One line: an object of plain values. Rows of one table have the same keys;
  // another set of keys begins another table. It is shown on stderr at once, so
  // that a long run can be followed.
  void Add(Json row);
  // A remark below the tables.
  void Note(const std::string& text);
  // The tables to stdout, and JSON to `path` ("-": stdout, instead of the
  // tables; "": nowhere).
  void Finish(const std::string& path) const;

 private:
  Json json_;
};

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_REPORT_H_
