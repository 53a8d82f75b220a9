#include "daemon/core/counters.h"

#include <iterator>
#include <set>
#include <string>

#include "daemon/rpc/node_reader.h"
#include "gtest/gtest.h"
#include "tests/unit/rpc/lent_books.h"

namespace hoistd {
namespace {

TEST(CounterTable, EveryFieldOfCountersHasOneRow) {
  testing::LentBooks books;
  uint64_t next = 1;
  for (const CounterRow& row : kCounterTable) {
    books.view.counters.*row.value = next++;
  }
  hoist::v1::NodeStatus status;
  NodeReader(books.view).Status(NodeFacts(), NodeNotes(), &status);
  const auto& counters = status.counters();
  const auto& fields = *counters.GetDescriptor();
  std::set<uint64_t> seen;
  for (int i = 0; i < fields.field_count(); ++i) {
    if (fields.field(i)->name() == "longest_event_us") continue;
    const uint64_t value =
        counters.GetReflection()->GetUInt64(counters, fields.field(i));
    EXPECT_NE(value, 0u) << fields.field(i)->name() << " has no row";
    EXPECT_TRUE(seen.insert(value).second) << fields.field(i)->name();
  }
  EXPECT_EQ(seen.size(), std::size(kCounterTable));
}

TEST(CounterTable, AMetricsRowsFollowEachOtherAndTheFirstHasItsHelp) {
  std::set<std::string> metrics;
  std::string before;
  for (const CounterRow& row : kCounterTable) {
    const std::string metric = row.metric == nullptr ? "" : row.metric;
    if (!metric.empty() && metric != before) {
      EXPECT_TRUE(metrics.insert(metric).second) << metric;
      EXPECT_NE(row.help, nullptr) << metric;
    } else {
      EXPECT_EQ(row.help, nullptr) << row.field;
    }
    before = metric;
  }
}

}  // namespace
}  // namespace hoistd
