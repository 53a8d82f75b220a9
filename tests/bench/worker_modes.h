// The modes of `hoist-bench worker MODE`; its starter passes arguments as JSON.
#ifndef HOIST_TESTS_BENCH_WORKER_MODES_H_
#define HOIST_TESTS_BENCH_WORKER_MODES_H_

#include <string>
#include <vector>

#include "tests/bench/report.h"

namespace hoist::bench {

void RunStreamWorker(const Json& arguments);
void RunAttachWorker(const Json& arguments);

// This program's path, "worker", the mode and the arguments.
std::vector<std::string> WorkerCommandLine(const std::string& mode,
                                           const Json& arguments);

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_WORKER_MODES_H_
