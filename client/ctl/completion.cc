#include "client/ctl/completion.h"

#include <algorithm>
#include <cstddef>

namespace hoist::ctl {
namespace {

// Names come from clients: they are offered in quotes, never as code (%q). What
// Readline takes for a word begins behind the last '=' or ':'.
constexpr char kBash[] =
    R"(# hoistctl completion bash > /etc/bash_completion.d/hoistctl
_hoistctl() {
  local line="${COMP_LINE:0:COMP_POINT}" words said one word before i
  read -a words <<<"$line"
  [[ "$line" == *[[:space:]] ]] && words+=("")
  said=$("$1" __complete "${words[@]:1}" 2>/dev/null) || return
  COMPREPLY=()
  if [[ "$said" == :files* ]]; then
    compopt -o filenames
    while IFS= read -r one; do
      COMPREPLY+=("$one")
    done < <(compgen -f -- "${words[-1]}")
    return
  fi
  word="${words[-1]}" before=""
  for ((i = 0; i < ${#word}; i++)); do
    one="${word:i:1}"
    if [[ "$one" == [=:] && "$COMP_WORDBREAKS" == *"$one"* ]]; then
      before="${word:0:i+1}"
    fi
  done
  while IFS=$'\t' read -r one _; do
    [[ -n "$one" ]] || continue
    printf -v one %q "${one#"$before"}"
    COMPREPLY+=("$one")
  done <<<"$said"
}
complete -F _hoistctl hoistctl
)";

constexpr char kZsh[] = R"(#compdef hoistctl
# hoistctl completion zsh > "${fpath[1]}/_hoistctl"
_hoistctl() {
  local -a said values shown
  local one
  said=("${(@f)$("${words[1]}" __complete "${(@Q)words[2,CURRENT-1]}" \
    "${(Q)PREFIX}" 2>/dev/null)}")
  if [[ "${said[1]}" == ":files" ]]; then
    _files
    return
  fi
  for one in "${said[@]}"; do
    [[ -n "$one" ]] || continue
    values+=("${one%%$'\t'*}")
    shown+=("${one/$'\t'/  -- }")
  done
  compadd -l -d shown -a -- values
}
if [[ "${funcstack[1]}" == _hoistctl ]]; then
  _hoistctl "$@"
else
  compdef _hoistctl hoistctl
fi
)";

constexpr char kFish[] =
    R"(# hoistctl completion fish > ~/.config/fish/completions/hoistctl.fish
function __hoistctl_complete
  set -l words (commandline -opc)
  set -l word (commandline -ct)
  set -l program $words[1]
  set -e words[1]
  set -l said ($program __complete $words "$word" 2>/dev/null)
  if test "$said[1]" = ":files"
    __fish_complete_path "$word"
  else if test (count $said) -gt 0
    printf '%s\n' $said
  end
end
complete -c hoistctl -f -a '(__hoistctl_complete)'
)";

bool StartsWith(const std::string& text, const std::string& begin) {
  return text.compare(0, begin.size(), begin) == 0;
}

const CompletedArgument* Find(const std::vector<CompletedArgument>& options,
                              const std::string& name) {
  const auto found =
      std::find_if(options.begin(), options.end(),
                   [&](const auto& option) { return option.name == name; });
  return found == options.end() ? nullptr : &*found;
}

// The words before the one that is completed, as they were meant.
struct Read {
  const CompletedCommand* command = nullptr;
  const CompletedArgument* open = nullptr;  // An option without its value yet.
  bool unknown = false;                     // There is no such command.
  std::vector<std::string> positionals;
  std::string socket;
};

class Reader {
 public:
  explicit Reader(const CompletedLine& line) : line_(line) {}

  const CompletedArgument* Option(const std::string& name) const {
    if (read_.command != nullptr) {
      if (const auto* found = Find(read_.command->options, name)) return found;
    }
    return Find(line_.options, name);
  }

  void Take(const std::string& word) {
    if (read_.open != nullptr) {
      if (read_.open->name == "--socket") read_.socket = word;
      read_.open = nullptr;
    } else if (StartsWith(word, "-")) {
      const size_t equals = word.find('=');
      const CompletedArgument* option = Option(word.substr(0, equals));
      if (option == nullptr || !option->takes_value) return;
      if (equals == std::string::npos) {
        read_.open = option;
      } else if (option->name == "--socket") {
        read_.socket = word.substr(equals + 1);
      }
    } else if (read_.command == nullptr && !read_.unknown) {
      for (const CompletedCommand& command : line_.commands) {
        if (command.name == word) read_.command = &command;
      }
      read_.unknown = read_.command == nullptr;
    } else {
      read_.positionals.push_back(word);
    }
  }

  const Read& read() const { return read_; }

 private:
  const CompletedLine& line_;
  Read read_;
};

// Readable as one word of one line, whoever has named it.
bool CanBeWritten(const std::string& word) {
  return !word.empty() && std::none_of(word.begin(), word.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
  });
}

class Writer {
 public:
  // `before`: what of the word is not to be offered anew, "--tier=".
  Writer(std::string before, std::string begin, std::ostream& out)
      : before_(std::move(before)), begin_(std::move(begin)), out_(out) {}

  void Write(const Candidate& candidate) {
    if (!CanBeWritten(candidate.word) || !StartsWith(candidate.word, begin_)) {
      return;
    }
    out_ << before_ << candidate.word;
    const std::string help = candidate.help.substr(0, candidate.help.find(';'));
    if (CanBeWritten(help)) out_ << '\t' << help;
    out_ << '\n';
  }

  void WriteOptions(const std::vector<CompletedArgument>& options) {
    for (const auto& option : options) Write({option.name, option.help});
  }

 private:
  const std::string before_;
  const std::string begin_;
  std::ostream& out_;
};

}  // namespace

void WriteCandidates(const CompletedLine& line,
                     const std::vector<std::string>& words,
                     const AskDaemon& ask, std::ostream& out) {
  Reader reader(line);
  for (size_t i = 0; i + 1 < words.size(); ++i) reader.Take(words[i]);
  const std::string last = words.empty() ? "" : words.back();
  const Read& read = reader.read();
  const auto write_values = [&](const CompletedArgument& argument,
                                const std::string& before) {
    Writer writer(before, last.substr(before.size()), out);
    for (const std::string& value : argument.values) writer.Write({value, ""});
    if (!argument.values.empty()) return;
    if (argument.name == "--socket" || argument.name == "PATH" ||
        argument.name == "--out") {
      out << kCompleteFiles << '\n';
    } else if (argument.name == "COMMAND") {
      for (const CompletedCommand& command : line.commands) {
        writer.Write({command.name, command.help});
      }
    } else {
      for (const Candidate& candidate :
           ask(argument.name, read.positionals, read.socket)) {
        writer.Write(candidate);
      }
    }
  };
  const size_t equals = last.find('=');
  if (read.open != nullptr) {
    write_values(*read.open, "");
  } else if (StartsWith(last, "--") && equals != std::string::npos) {
    const CompletedArgument* option = reader.Option(last.substr(0, equals));
    if (option != nullptr) write_values(*option, last.substr(0, equals + 1));
  } else if (StartsWith(last, "-")) {
    Writer writer("", last, out);
    if (read.command != nullptr) writer.WriteOptions(read.command->options);
    writer.WriteOptions(line.options);
  } else if (read.command != nullptr) {
    const size_t at = read.positionals.size();
    if (at < read.command->positionals.size()) {
      write_values(read.command->positionals[at], "");
    }
  } else if (!read.unknown) {
    write_values({"COMMAND", "", true, {}}, "");
  }
}

std::string CompletionScript(const std::string& shell) {
  if (shell == "bash") return kBash;
  if (shell == "zsh") return kZsh;
  if (shell == "fish") return kFish;
  return "";
}

}  // namespace hoist::ctl
