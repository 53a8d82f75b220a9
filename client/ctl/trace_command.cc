#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "client/ctl/commands.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/text.h"
#include "client/ctl/trace_json.h"
#include "client/ctl/whole_file.h"
#include "google/protobuf/struct.pb.h"

namespace hoist::ctl {
namespace {

constexpr char kStandardOutput[] = "-";
// Until hoistd has sent what it has recorded: it does every 20 ms.
constexpr std::chrono::milliseconds kUnderWay(100);

// A file, or standard output.
class Sink {
 public:
  Sink(const std::string& path, std::ostream& out) : out_(out) {
    // It names all users' models.
    if (path != kStandardOutput) file_.emplace(path, FileReaders::kOwner);
  }

  void Write(const std::string& text) {
    if (file_.has_value()) return file_->Write(text);
    out_ << text << std::flush;
  }
  void Keep() {
    if (file_.has_value()) file_->Keep();
  }
  // "": all went well.
  std::string error() const {
    if (file_.has_value()) return file_->error();
    return out_.good() ? "" : "standard output cannot be written to";
  }

 private:
  std::ostream& out_;
  std::optional<WholeFile> file_;
};

int CannotWrite(const Sink& sink, const Output& output) {
  WriteError(output, "INVALID_ARGUMENT", sink.error(), /*show_code=*/false);
  return kExitUsage;
}

void PrintSummary(const TraceJson& json, const TraceOptions& options,
                  const Output& output) {
  const double seconds = static_cast<double>(json.recorded_ns()) / 1e9;
  if (output.json) {
    google::protobuf::Struct all;
    auto& fields = *all.mutable_fields();
    fields["path"].set_string_value(options.path);
    fields["recorded_seconds"].set_number_value(seconds);
    fields["slices"].set_number_value(static_cast<double>(json.slices()));
    fields["dropped_events"].set_number_value(
        static_cast<double>(json.dropped_events()));
    auto& links = *fields["links"].mutable_list_value();
    for (const auto& [device, link] : json.links()) {
      *links.add_values() = link.Json(device);
    }
    PrintJson(all, JsonStyle::kLine, output);
    return;
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", seconds);
  output.out << "recorded " << text << " s in " << Shown(options.path) << ": "
             << json.slices() << " slices, "
             << (json.dropped_events() == 0
                     ? "nothing"
                     : std::to_string(json.dropped_events()) + " events")
             << " dropped\n"
             << "open it at https://ui.perfetto.dev or chrome://tracing\n";
  Table table = LinkUse::Heading();
  for (const auto& [device, link] : json.links()) {
    link.AddRows(device, json.recorded_ns(), table);
  }
  if (!table.empty()) table.Print(output.out << '\n');
}

}  // namespace

int RecordTrace(Connection& daemon, const TraceOptions& options,
                const Output& output) {
  Sink sink(options.path, output.out);
  if (!sink.error().empty()) return CannotWrite(sink, output);
  const auto context = daemon.context(Lasts::kWork);
  const Interrupt interrupt([&context] {
    // So that what has happened by now comes, too.
    std::this_thread::sleep_for(kUnderWay);
    context->TryCancel();
  });
  v1::TraceRequest request;
  request.set_duration_ms(static_cast<uint64_t>(options.length.count()));
  const auto stream = daemon.admin().Trace(context.get(), request);
  TraceJson json;
  v1::TraceChunk chunk;
  bool began = false;
  while (stream->Read(&chunk)) {
    if (!std::exchange(began, true) && !output.json) {
      output.err << "recording for " << HumanTime(request.duration_ms())
                 << "; Ctrl-C ends it early" << std::endl;
    }
    json.Add(chunk);
    sink.Write(json.Take());
    if (!sink.error().empty()) context->TryCancel();
  }
  const grpc::Status status = daemon.Finish(*context, *stream);
  if (!began) return daemon.Fail(status, output);
  json.Finish();
  sink.Write(json.Take());
  sink.Keep();
  if (!sink.error().empty()) return CannotWrite(sink, output);
  // What has come before an error is there all the same.
  if (!status.ok() && !interrupt.came()) return daemon.Fail(status, output);
  if (options.path != kStandardOutput) PrintSummary(json, options, output);
  return kExitOk;
}

}  // namespace hoist::ctl
