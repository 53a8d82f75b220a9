#include "client/ctl/completion.h"

#include <sstream>

namespace hoist::ctl {
namespace {

std::string Joined(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : " ") + word;
  return all;
}

// Within single quotes of a shell.
std::string Quoted(const std::string& text) {
  std::string quoted;
  for (char c : text)
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted;
}

std::string Bash(const std::vector<CompletedCommand>& commands) {
  std::ostringstream out;
  out << "# hoistctl completion bash > /etc/bash_completion.d/hoistctl\n"
         "_hoistctl() {\n"
         "  local word=\"${COMP_WORDS[COMP_CWORD]}\" command=\"\" i\n"
         "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "    case \"${COMP_WORDS[i]}\" in\n"
         "      --socket) ((i++)) ;;\n"
         "      -*) ;;\n"
         "      *) command=\"${COMP_WORDS[i]}\"; break ;;\n"
         "    esac\n"
         "  done\n"
         "  case \"$command\" in\n"
         "    \"\") COMPREPLY=($(compgen -W '";
  for (const CompletedCommand& command : commands) out << command.name << ' ';
  out << "--json --socket --help' -- \"$word\")) ;;\n";
  for (const CompletedCommand& command : commands) {
    out << "    " << command.name << ")\n"
        << "      COMPREPLY=($(compgen -W '" << Joined(command.options)
        << "' -- \"$word\"))\n";
    if (command.name == "load") {
      out << "      [[ \"$word\" == -* ]] ||"
             " COMPREPLY=($(compgen -f -- \"$word\"))\n";
    }
    out << "      ;;\n";
  }
  out << "  esac\n}\ncomplete -o filenames -F _hoistctl hoistctl\n";
  return out.str();
}

std::string Zsh(const std::vector<CompletedCommand>& commands) {
  std::ostringstream out;
  out << "#compdef hoistctl\n"
         "# hoistctl completion zsh > \"${fpath[1]}/_hoistctl\"\n"
         "_hoistctl() {\n"
         "  local -a commands=(\n";
  for (const CompletedCommand& command : commands) {
    out << "    '" << command.name << ":" << Quoted(command.help) << "'\n";
  }
  out << "  )\n"
         "  if (( CURRENT == 2 )); then\n"
         "    _describe command commands\n"
         "    return\n"
         "  fi\n"
         "  case \"$words[2]\" in\n";
  for (const CompletedCommand& command : commands) {
    out << "    " << command.name << ") compadd -- " << Joined(command.options);
    if (command.name == "load") out << "; _files";
    out << " ;;\n";
  }
  out << "  esac\n}\n_hoistctl \"$@\"\n";
  return out.str();
}

std::string Fish(const std::vector<CompletedCommand>& commands) {
  std::ostringstream out;
  out << "# hoistctl completion fish > "
         "~/.config/fish/completions/hoistctl.fish\n"
         "complete -c hoistctl -n __fish_use_subcommand -f\n";
  for (const CompletedCommand& command : commands) {
    out << "complete -c hoistctl -n __fish_use_subcommand -a " << command.name
        << " -d '" << Quoted(command.help) << "'\n";
    for (const std::string& option : command.options) {
      if (option.rfind("--", 0) != 0) continue;
      out << "complete -c hoistctl -n '__fish_seen_subcommand_from "
          << command.name << "' -l " << option.substr(2) << '\n';
    }
  }
  return out.str();
}

}  // namespace

std::string CompletionScript(const std::string& shell,
                             const std::vector<CompletedCommand>& commands) {
  if (shell == "bash") return Bash(commands);
  if (shell == "zsh") return Zsh(commands);
  if (shell == "fish") return Fish(commands);
  return "";
}

}  // namespace hoist::ctl
