#include "client/ctl/command_line.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/ctl/commands.h"
#include "client/ctl/completion.h"
#include "client/ctl/described.h"
#include "client/ctl/parsed.h"
#include "client/ctl/schema.h"
#include "client/ctl/values.h"
#include "hoist/shared/nearest.h"

namespace hoist::ctl {
namespace {

constexpr char kFooter[] =
    "\nExit codes: 0 done; 1 refused by the daemon; 2 wrong usage; 3 no daemon "
    "answers at the socket; 4 check, or doctor, found something.\nWith --json, "
    "commands that "
    "follow "
    "something (load, check, drain, watch, top) print one object a line; bytes "
    "are base64; errors are {\"error\":{\"code\",\"message\"}} on stderr; "
    "`hoistctl schema COMMAND` tells the fields.";

// The commands: CLI11's half, and what each does.
class CommandLine {
 public:
  CommandLine(Parsed* parsed, std::ostream& out) : parsed_(*parsed), out_(out) {
    app_.name("hoistctl");
    app_.footer(kFooter);
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.set_version_flag("--version", "hoistctl " HOIST_VERSION);
    app_.add_flag("--json", parsed_.json, "print JSON");
    app_.add_option("--socket", parsed_.socket,
                    "hoistd's, either of its two (default: $HOIST_SOCKET, else "
                    "your own hoistd's, else the node's)");
    app_.add_option("--timeout", parsed_.timeout_s,
                    "seconds without a sign of life of hoistd's after which "
                    "any command ends (default: 5)")
        ->check(CLI::Range(0.1, 86400.0));
    AddLists();
    AddCopies();
    AddRest();
    AddTrace();
    AddFeatures();
  }

  CLI::App& app() { return app_; }

  // What stands where a command should, if it is none.
  int Misspelt(const std::string& word, const Output& output) const {
    std::vector<std::string> names;
    for (const CLI::App* command : app_.get_subcommands({})) {
      names.push_back(command->get_name());
    }
    const std::string nearest = NearestName(word, names);
    WriteError(output, "INVALID_ARGUMENT",
               word.empty()
                   ? "which command? `hoistctl help` lists them"
                   : "there is no command \"" + word + "\"; " +
                         (nearest.empty() ? "`hoistctl help` lists them"
                                          : "did you mean " + nearest + "?"),
               /*show_code=*/false);
    return kExitUsage;
  }

  // After a refusal of the command line: the first word of it, where no command
  // was found; nullopt: one was.
  std::optional<std::string> WordForCommand() const {
    if (!app_.get_subcommands().empty()) return std::nullopt;
    for (const std::string& word : app_.remaining()) {
      if (word.rfind('-', 0) != 0) return word;
    }
    return app_.remaining().empty() ? std::optional<std::string>("")
                                    : std::nullopt;
  }

  // What can stand where, for completion.
  CompletedLine Described() {
    CompletedLine line;
    line.options = ArgumentsOf(app_, /*positional=*/false);
    for (const CLI::App* command : app_.get_subcommands({})) {
      line.commands.push_back({command->get_name(), command->get_description(),
                               ArgumentsOf(*command, /*positional=*/false),
                               ArgumentsOf(*command, /*positional=*/true)});
    }
    return line;
  }

  int Run(const Output& output) {
    for (auto& [name, local] : local_) {
      if (app_.got_subcommand(name)) return local(output);
    }
    Connection daemon(parsed_.socket, std::chrono::milliseconds(
                                          Milliseconds(parsed_.timeout_s)));
    if (const int exit = daemon.Check(output); exit != kExitOk) return exit;
    for (auto& [name, remote] : remote_) {
      if (app_.got_subcommand(name)) return remote(daemon, output);
    }
    return kExitUsage;  // require_subcommand has refused it already.
  }

 private:
  using Remote = std::function<int(Connection&, const Output&)>;

  CLI::App* Add(const std::string& name, const std::string& help, Remote run) {
    remote_[name] = std::move(run);
    return app_.add_subcommand(name, help);
  }

  void AddLists() {
    Add("status", "the node: tiers, I/O, what was moved", ShowStatus);
    CLI::App* top =
        Add("top",
            "status, rates, plans and sessions, live; one screen where "
            "this is no terminal",
            [this](Connection& daemon, const Output& output) {
              TopOptions options;
              options.every =
                  std::chrono::milliseconds(Milliseconds(parsed_.every_s));
              options.count = parsed_.count;
              return Top(daemon, options, output);
            });
    top->add_option("--every", parsed_.every_s,
                    "seconds from one screen to the next (default: 1)")
        ->check(CLI::Range(0.1, 3600.0));
    top->add_option("--count", parsed_.count,
                    "screens (default: until Ctrl-C)");
    Add("models", "all models and where their bytes are", ShowModels);
    Add("groups", "a model's groups and their copies",
        [this](Connection& daemon, const Output& output) {
          return ShowGroups(daemon, parsed_.model, output);
        })
        ->add_option("MODEL", parsed_.model, "its name, or USER:NAME")
        ->required();
    CLI::App* explain =
        Add("explain",
            "why a model's groups are where they are, what would move them, "
            "and what it costs to have them back",
            [this](Connection& daemon, const Output& output) {
              v1::ExplainRequest request;
              request.set_model(parsed_.model);
              request.set_group(parsed_.group);
              return Explain(daemon, request, output);
            });
    explain->add_option("MODEL", parsed_.model, "its name, or USER:NAME")
        ->required();
    explain->add_option("GROUP", parsed_.group, "one of them (default: all)");
    Add("sessions",
        "who is connected and what they hold; of others than admins, their "
        "own",
        ShowSessions);
    Add("plans", "who streams what, and who gets how much of the link",
        ShowPlans);
    Add("watch", "what happens, as it happens", Watch);
  }

  void AddTier(CLI::App* command, bool required) {
    auto* tier = command->add_option("--tier", parsed_.tier, "device or host");
    tier->check(CLI::IsMember({"device", "host"}));
    if (required) tier->required();
    command->add_option("--device", parsed_.device,
                        "which, for --tier device (default: 0)");
  }

  CLI::App* AddCopy(const std::string& name, const std::string& help,
                    bool tier_required, Remote run) {
    CLI::App* command = Add(name, help, std::move(run));
    command->add_option("MODEL", parsed_.model, "its name, or USER:NAME")
        ->required();
    command->add_option("GROUP", parsed_.group, "one group (default: all)");
    AddTier(command, tier_required);
    return command;
  }

  void AddCopies() {
    AddCopy("pin", "bring copies up and keep them", true,
            [this](Connection& daemon, const Output& output) {
              v1::PinRequest request;
              *request.mutable_copies() = CopiesOf(parsed_);
              request.set_deadline_ms(Milliseconds(parsed_.deadline_s));
              return Pin(daemon, request, output);
            })
        ->add_option("--deadline", parsed_.deadline_s,
                     "seconds to wait for space (default: 0)")
        ->check(CLI::Range(0.0, 86400.0));
    AddCopy("unpin", "let copies be evicted again", true,
            [this](Connection& daemon, const Output& output) {
              v1::UnpinRequest request;
              *request.mutable_copies() = CopiesOf(parsed_);
              return Unpin(daemon, request, output);
            });
    AddCopy("evict", "take copies out of a tier (default: of both)", false,
            [this](Connection& daemon, const Output& output) {
              v1::EvictRequest request;
              *request.mutable_copies() = CopiesOf(parsed_);
              request.set_forget(parsed_.forget);
              return Evict(daemon, request, output);
            })
        ->add_flag("--forget", parsed_.forget,
                   "forget the model altogether, what was spilled included");
  }

  void AddShare(CLI::App* share) {
    CLI::Option* plan = share->add_option_function<uint64_t>(
        "PLAN", [this](uint64_t id) { parsed_.share.set_plan_id(id); },
        "its number, as `hoistctl plans` shows it");
    CLI::Option* loads = share->add_option_function<uint32_t>(
        "--loads",
        [this](uint32_t device) { parsed_.share.set_loads_of_device(device); },
        "no plan, but what is loaded and prefetched to this device; it has "
        "what others leave, and --max-rate alone");
    CLI::Option* permit = share->add_option_function<uint64_t>(
        "--permit", [this](uint64_t id) { parsed_.share.set_permit_id(id); },
        "no plan, but copies that a worker makes itself; `hoistctl status` has "
        "its number");
    loads->excludes(plan, permit);
    permit->excludes(plan);
    CLI::Option* of_weight =
        share
            ->add_option_function<uint32_t>(
                "--weight",
                [this](uint32_t weight) {
                  parsed_.share.mutable_change()->set_change_weight(true);
                  parsed_.share.mutable_change()->set_weight(weight);
                },
                "bytes are shared in proportion; a new plan has 1")
            ->check(CLI::Range(1, 1000));
    CLI::Option* of_priority =
        share
            ->add_option_function<int32_t>(
                "--priority",
                [this](int32_t priority) {
                  parsed_.share.mutable_change()->set_change_priority(true);
                  parsed_.share.mutable_change()->set_priority(priority);
                },
                "-10 to 10; higher goes first; a new plan has 0")
            ->check(CLI::Range(-10, 10));
    loads->excludes(of_weight, of_priority);
    share
        ->add_option_function<uint64_t>(
            "--max-rate",
            [this](uint64_t rate) {
              v1::ShareChange* change = parsed_.share.mutable_change();
              change->set_change_max_bytes_per_second(true);
              change->set_max_bytes_per_second(rate);
            },
            "such as 10GB/s or 1.5GiB/s; 0: no cap")
        ->transform(AsRate());
    share->callback([this] {
      if (parsed_.share.of_case() == v1::SetShareRequest::OF_NOT_SET) {
        throw CLI::RequiredError("PLAN, --permit or --loads");
      }
      if (parsed_.share.has_change()) return;
      throw CLI::RequiredError("--weight, --priority or --max-rate");
    });
  }

  void AddTrace() {
    CLI::App* trace =
        Add("trace",
            "record what moves and what waits, for https://ui.perfetto.dev or "
            "chrome://tracing; Ctrl-C ends it early",
            [this](Connection& daemon, const Output& output) {
              TraceOptions options;
              options.length =
                  std::chrono::milliseconds(Milliseconds(parsed_.for_s));
              options.path = parsed_.out;
              return RecordTrace(daemon, options, output);
            });
    trace->add_option("ACTION", parsed_.action, "record")
        ->required()
        ->check(CLI::IsMember({"record"}));
    trace
        ->add_option("--for", parsed_.for_s,
                     "how long: seconds, or 500ms, 10s, 2min; at most 10min "
                     "(default: 10)")
        ->transform(AsSeconds())
        ->check(CLI::Range(0.001, 600.0));
    trace
        ->add_option("--out", parsed_.out,
                     "the file to write, once all is there; - for standard "
                     "output")
        ->required();
  }

  void AddFeatures() {
    FeaturesOptions& features = parsed_.features;
    CLI::App* command = app_.add_subcommand(
        "features",
        "which models are here, and the room, as labels for Kubernetes' Node "
        "Feature Discovery");
    CLI::Option* out =
        command->add_option("--out", features.out,
                            "the file to write, in NFD's features.d (default: "
                            "standard output)");
    command
        ->add_option_function<double>(
            "--every",
            [&features](double seconds) {
              features.every = std::chrono::milliseconds(Milliseconds(seconds));
            },
            "write it again after so many seconds (30s, 2min), until ended, "
            "which removes it; NFD lets go of it after three times as long")
        ->transform(AsSeconds())
        ->check(CLI::Range(0.1, 3600.0))
        ->needs(out);
    command
        ->add_option("--labels", features.labels,
                     "at most so many, the models with most bytes in memory "
                     "first (default: 64)")
        ->check(CLI::Range(kFewestLabels, kMostLabels));
    command->add_flag("--all", features.all,
                      "models that only their owners may read, too");
    local_["features"] = [this](const Output& output) {
      parsed_.features.socket = parsed_.socket;
      parsed_.features.timeout =
          std::chrono::milliseconds(Milliseconds(parsed_.timeout_s));
      return Features(parsed_.features, output);
    };
  }

  void AddSleep() {
    CLI::App* sleep = Add(
        "sleep",
        "have a session's idle models return their device memory, until their "
        "next pass; for admins, and of each user's own",
        [this](Connection& daemon, const Output& output) {
          v1::SleepRequest request;
          request.set_session_id(parsed_.session);
          request.set_idle_ms(Milliseconds(parsed_.idle_s));
          return Sleep(daemon, request, output);
        });
    sleep
        ->add_option("--idle", parsed_.idle_s,
                     "once idle for so long: seconds, or 500ms, 10s, 2min "
                     "(default: 0, after the running pass)")
        ->transform(AsSeconds())
        ->check(CLI::Range(0.0, 86400.0));
    CLI::App* wake =
        Add("wake",
            "have a session's sleeping models take device memory again, before "
            "their next pass; likewise",
            [this](Connection& daemon, const Output& output) {
              v1::WakeRequest request;
              request.set_session_id(parsed_.session);
              return Wake(daemon, request, output);
            });
    for (CLI::App* command : {sleep, wake}) {
      command
          ->add_option("SESSION", parsed_.session,
                       "its number, as `hoistctl sessions` shows it")
          ->required();
    }
  }

  void AddRest() {
    CLI::App* load = Add("load", "register a model by path and bring it up",
                         [this](Connection& daemon, const Output& output) {
                           return Load(daemon, LoadOf(parsed_), output);
                         });
    load->add_option("PATH", parsed_.path,
                     "a safetensors or GGUF file, or a folder of them, below "
                     "models.roots")
        ->required();
    load->add_option("--name", parsed_.name,
                     "the model's name (default: the folder's or file's)");
    AddTier(load, false);
    load->add_option("--grouping", parsed_.grouping,
                     "block (default), module or whole")
        ->check(CLI::IsMember({"block", "module", "whole"}));
    load->add_option("--readers", parsed_.readers,
                     "owner or everyone (default: as hoistd.toml says)")
        ->check(CLI::IsMember({"owner", "everyone"}));
    CLI::App* check =
        Add("check",
            "read published groups on the host, on the disk and on devices and "
            "compare them with their checksums; what is damaged is put aside",
            [this](Connection& daemon, const Output& output) {
              v1::CheckRequest request;
              request.set_model(parsed_.model);
              request.set_repair(parsed_.repair);
              return Check(daemon, request, output);
            });
    check->add_option("MODEL", parsed_.model,
                      "default: all that are published");
    check->add_flag("--repair", parsed_.repair,
                    "write again what the host has and the disk has not, and "
                    "load again what is damaged on a device, where it lies");
    CLI::App* share =
        Add("share",
            "change how a plan, a worker's own copies, or what is loaded, "
            "share a device's link with others; what is not named stays as it "
            "is",
            [this](Connection& daemon, const Output& output) {
              return Share(daemon, parsed_.share, output);
            });
    AddShare(share);
    CLI::App* end =
        Add("end",
            "have a session let go of all that it has; for admins, and of "
            "each user's own",
            [this](Connection& daemon, const Output& output) {
              v1::EndSessionRequest request;
              request.set_session_id(parsed_.session);
              request.set_deadline_ms(Milliseconds(parsed_.wait_s));
              return End(daemon, request, parsed_.kill, output);
            });
    end->add_option("SESSION", parsed_.session,
                    "its number, as `hoistctl sessions` shows it")
        ->required();
    end->add_option("--deadline", parsed_.wait_s,
                    "seconds to wait until it has (default: 5)")
        ->check(CLI::Range(0.0, 86400.0));
    end->add_flag("--kill", parsed_.kill,
                  "end its process first; what is stopped or hangs lets go of "
                  "nothing else");
    AddSleep();
    CLI::App* drain =
        Add("drain", "refuse new work and wait for leases to end",
            [this](Connection& daemon, const Output& output) {
              v1::DrainRequest request;
              request.set_deadline_ms(Milliseconds(parsed_.deadline_s));
              request.set_resume(parsed_.resume);
              return Drain(daemon, request, output);
            });
    drain
        ->add_option("--deadline", parsed_.deadline_s,
                     "seconds to wait (default: 0, look once)")
        ->check(CLI::Range(0.0, 86400.0));
    drain->add_flag("--resume", parsed_.resume, "take new work again");
    Add("config",
        "what hoistd.toml's keys are, what \"auto\" has come to, and "
        "where each is set",
        [this](Connection& daemon, const Output& output) {
          return ShowConfig(daemon, parsed_.name, output);
        })
        ->add_option("KEY", parsed_.name,
                     "a key, or a table, such as host (default: all)");
    CLI::App* doctor =
        Add("doctor",
            "what this node lacks, and the remedy; reads a model for the "
            "disk's rate",
            [this](Connection& daemon, const Output& output) {
              return Doctor(daemon, parsed_.doctor, output);
            });
    CLI::Option* disk = doctor->add_option(
        "--disk", parsed_.doctor.disk,
        "a file, or a folder of models (default: below models.roots)");
    doctor
        ->add_flag_callback(
            "--no-disk", [this] { parsed_.doctor.tries_disk = false; },
            "read none")
        ->excludes(disk);
    Add("reload",
        "have hoistd.toml read again; what needs a restart stays, and is named",
        Reload);
    Add("log-level", "have hoistd log more, or less, from now on",
        [this](Connection& daemon, const Output& output) {
          return SetLogLevel(daemon, parsed_.name, output);
        })
        ->add_option("LEVEL", parsed_.name, "debug, info, warning or error")
        ->required()
        ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
    app_.add_subcommand("version", "hoistctl's version");
    local_["version"] = [this](const Output&) {
      out_ << (parsed_.json ? "{\"version\":\"" HOIST_VERSION "\"}\n"
                            : "hoistctl " HOIST_VERSION "\n");
      return kExitOk;
    };
    app_.add_subcommand("help", "what a command does, and its options")
        ->add_option("COMMAND", parsed_.name, "which (default: all)");
    local_["help"] = [this](const Output& output) {
      if (parsed_.name.empty()) {
        // App::help would be that of the command that was given: this one.
        out_ << app_.get_formatter()->make_help(&app_, app_.get_name(),
                                                CLI::AppFormatMode::Normal);
        return static_cast<int>(kExitOk);
      }
      for (const CLI::App* command : app_.get_subcommands({})) {
        if (command->get_name() != parsed_.name) continue;
        out_ << command->help("hoistctl");
        return static_cast<int>(kExitOk);
      }
      return Misspelt(parsed_.name, output);
    };
    app_.add_subcommand("schema",
                        "the JSON Schema of what a command prints with --json")
        ->add_option("COMMAND", parsed_.name, "which, or error for errors")
        ->required()
        ->check(CLI::IsMember(SchemaNames()));
    local_["schema"] = [this](const Output&) {
      out_ << SchemaOf(parsed_.name) << '\n';
      return kExitOk;
    };
    app_.add_subcommand("completion", "a completion script for a shell")
        ->add_option("SHELL", parsed_.shell, "bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
    local_["completion"] = [this](const Output&) {
      out_ << CompletionScript(parsed_.shell);
      return kExitOk;
    };
  }

  Parsed& parsed_;
  std::ostream& out_;
  CLI::App app_{"hoistctl looks at hoistd and tells it what to do."};
  std::map<std::string, Remote> remote_;
  std::map<std::string, std::function<int(const Output&)>> local_;
};

}  // namespace

int RunCommandLine(int argc, const char* const* argv, std::ostream& out,
                   std::ostream& err, bool terminal) {
  Parsed parsed;
  CommandLine line(&parsed, out);
  // Of the shells' scripts; no command of people's.
  if (argc > 1 && std::string(argv[1]) == "__complete") {
    WriteCandidates(line.Described(), {argv + 2, argv + argc}, NamesOfDaemon,
                    out);
    return kExitOk;
  }
  try {
    line.app().parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const Output output{out, err, parsed.json, terminal};
    // That a command, or an option of one, is missing.
    if (error.get_name() == "RequiredError") {
      if (const auto word = line.WordForCommand()) {
        return line.Misspelt(*word, output);
      }
    }
    if (error.get_exit_code() != 0 && parsed.json) {
      WriteError(output, "INVALID_ARGUMENT", error.what());
      return kExitUsage;
    }
    // CLI11's way of saying so; 0 is --help.
    return line.app().exit(error, out, err) == 0 ? kExitOk : kExitUsage;
  }
  return line.Run(Output{out, err, parsed.json, terminal});
}

}  // namespace hoist::ctl
