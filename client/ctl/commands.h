// hoistctl's commands. Each returns an ExitCode.
#ifndef HOIST_CLIENT_CTL_COMMANDS_H_
#define HOIST_CLIENT_CTL_COMMANDS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "client/ctl/connection.h"
#include "hoist/v1/admin.pb.h"

namespace hoist::ctl {

int ShowStatus(Connection& daemon, const Output& output);
struct TopOptions {
  std::chrono::milliseconds every{1000};
  uint64_t count = 0;  // 0: until it is ended; 1 where nobody looks on.
};
// Status with rates, over and over. As JSON: the statuses, a line each.
int Top(Connection& daemon, const TopOptions& options, const Output& output);
int ShowModels(Connection& daemon, const Output& output);
int ShowGroups(Connection& daemon, const std::string& model,
               const Output& output);
// Of one group all there is; of a whole model, groups that are alike in a row
// together.
int Explain(Connection& daemon, const v1::ExplainRequest& request,
            const Output& output);
int ShowSessions(Connection& daemon, const Output& output);
int ShowPlans(Connection& daemon, const Output& output);

int Load(Connection& daemon, const v1::LoadRequest& request,
         const Output& output);
// kExitDamaged where something was found.
int Check(Connection& daemon, const v1::CheckRequest& request,
          const Output& output);
int Pin(Connection& daemon, const v1::PinRequest& request,
        const Output& output);
int Unpin(Connection& daemon, const v1::UnpinRequest& request,
          const Output& output);
int Evict(Connection& daemon, const v1::EvictRequest& request,
          const Output& output);
int Share(Connection& daemon, const v1::SetShareRequest& request,
          const Output& output);
int Sleep(Connection& daemon, const v1::SleepRequest& request,
          const Output& output);
int Wake(Connection& daemon, const v1::WakeRequest& request,
         const Output& output);
int Drain(Connection& daemon, const v1::DrainRequest& request,
          const Output& output);
int Watch(Connection& daemon, const Output& output);
// `kills`: its process, first.
int End(Connection& daemon, const v1::EndSessionRequest& request, bool kills,
        const Output& output);

// `key`: that key alone, or all that begin with it ("host"); "": all.
int ShowConfig(Connection& daemon, const std::string& key,
               const Output& output);
struct DoctorOptions {
  std::string disk;  // A file or folder to read from; "": below models.roots.
  bool tries_disk = true;
};
// kExitDamaged where something is not as good as it could be.
int Doctor(Connection& daemon, const DoctorOptions& options,
           const Output& output);
int Reload(Connection& daemon, const Output& output);
int SetLogLevel(Connection& daemon, const std::string& level,
                const Output& output);

struct TraceOptions {
  std::chrono::milliseconds length{10'000};
  std::string path;  // "-": standard output.
};
// Ctrl-C ends it with what has come so far.
int RecordTrace(Connection& daemon, const TraceOptions& options,
                const Output& output);

inline constexpr size_t kFewestLabels = 4;
inline constexpr size_t kMostLabels = 512;  // Within NFD's 64 KiB.
struct FeaturesOptions {
  std::string socket;
  std::chrono::milliseconds timeout{5'000};
  std::string out;                     // "": standard output.
  std::chrono::milliseconds every{0};  // 0: once. Else there is `out`.
  size_t labels = 64;
  bool all = false;
};
// With `every` it waits for a hoistd that does not answer, without a file
// meanwhile, and ends by Ctrl-C or SIGTERM, or where it is refused.
int Features(const FeaturesOptions& options, const Output& output);

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_COMMANDS_H_
