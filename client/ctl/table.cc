#include "client/ctl/table.h"

#include <algorithm>

#include "client/ctl/text.h"

namespace hoist::ctl {

void Table::Print(std::ostream& out) const {
  std::vector<std::string> headings = headings_;
  std::vector<size_t> widths;
  for (std::string& heading : headings) {
    if (heading.starts_with('>')) heading.erase(0, 1);
    widths.push_back(Columns(heading));
  }
  for (const auto& row : rows_) {
    for (size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], Columns(row[i]));
    }
  }
  const auto print = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string pad(widths[i] - Columns(row[i]), ' ');
      if (i > 0) line += "  ";
      line += headings_[i].starts_with('>') ? pad + row[i] : row[i] + pad;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  };
  print(headings);
  for (const auto& row : rows_) print(row);
}

}  // namespace hoist::ctl
