#include "client/ctl/table.h"

#include <algorithm>

#include "client/ctl/text.h"

namespace hoist::ctl {

void Table::Print(std::ostream& out) const {
  std::vector<std::string> headings;
  std::vector<size_t> widths;
  for (const Column& column : columns_) {
    headings.push_back(column.heading);
    widths.push_back(Columns(column.heading));
  }
  for (const auto& row : rows_) {
    for (size_t i = 0; i < columns_.size(); ++i) {
      widths[i] = std::max(widths[i], Columns(row[i]));
    }
  }
  const auto print = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string pad(widths[i] - Columns(row[i]), ' ');
      if (i > 0) line += "  ";
      line += columns_[i].align == Align::kRight ? pad + row[i] : row[i] + pad;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  };
  print(headings);
  for (const auto& row : rows_) print(row);
}

}  // namespace hoist::ctl
