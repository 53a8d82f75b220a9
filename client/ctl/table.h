#ifndef HOIST_CLIENT_CTL_TABLE_H_
#define HOIST_CLIENT_CTL_TABLE_H_

#include <ostream>
#include <string>
#include <vector>

namespace hoist::ctl {

// Aligned columns under a heading, for people. Cells are written as they are:
// what a client chose goes through Shown first.
class Table {
 public:
  // ">SIZE": on the right.
  explicit Table(std::vector<std::string> headings)
      : headings_(std::move(headings)) {}

  // One cell a column.
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }
  void Print(std::ostream& out) const;

 private:
  std::vector<std::string> headings_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_TABLE_H_
