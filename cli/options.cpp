#include "options.hpp"

#include <CLI/CLI.hpp>
#include <limits>
#include <string>
#include <vector>

#include "advice.hpp"
#include "parse.hpp"

namespace evix::cli {

namespace {

constexpr const char* exit_codes =
    "Exit codes:\n"
    "  0  done\n"
    "  1  it failed, or bytes were lost or wrong; the reason is on the standard error stream\n"
    "  2  wrong usage";

constexpr std::uint64_t connections_max = 200'000;
constexpr std::uint64_t pipeline_max = 65'536;
constexpr std::uint64_t size_bytes_max = std::uint64_t{1} << 30;
// What the server does not take is queued here, and each message keeps the time of its sending.
constexpr std::uint64_t messages_in_flight_max = std::uint64_t{1} << 24;
constexpr std::uint64_t bytes_in_flight_max = std::uint64_t{1} << 30;

// Every option reports a value that it cannot read in this way, which ends with exit_usage.
[[noreturn]] void reject(const std::string& option, const std::string& reason) {
  throw CLI::ValidationError(option, reason);
}

Address address_or_reject(const std::string& option, const std::string& text) {
  const Result<Address> address = Address::parse(text);
  if (address) return *address;
  reject(option, "'" + text + "': " + advice(address.error()));
}

std::string backend_names() {
  std::string names;
  for (const BackendKind kind : {BackendKind::automatic, BackendKind::io_uring, BackendKind::epoll,
                                 BackendKind::kqueue, BackendKind::poll, BackendKind::sim}) {
    if (!names.empty()) names += ", ";
    names += to_string(kind);
  }
  return names;
}

void add_backend(CLI::App& app, BackendKind& backend) {
  app.add_option_function<std::string>(
         "--backend",
         [&backend](const std::string& name) {
           const Result<BackendKind> kind = backend_kind(name);
           if (!kind) reject("--backend", "'" + name + "' is none of " + backend_names());
           backend = *kind;
         },
         "How to wait for the kernel: automatic, io_uring, epoll, poll; see 'evix doctor'. Without "
         "this option the environment variable EVIX_BACKEND decides, and without that evix itself")
      ->type_name("BACKEND");
}

template <std::uint64_t max, class T>
void add_whole_number(CLI::App& app, const char* option, T& number, const std::string& help) {
  static_assert(max <= std::numeric_limits<T>::max());
  app.add_option_function<std::string>(
         option,
         [option, &number](const std::string& text) {
           const Parsed<std::uint64_t> parsed = parse_number(text, max);
           if (!parsed) reject(option, parsed.error());
           number = static_cast<T>(*parsed);
         },
         help)
      ->type_name("N");
}

void add_doctor(CLI::App& app, DoctorOptions& options) {
  app.footer(
      "Prints the backend that a loop would use and why, every other backend with the reason why\n"
      "not, what stands in for calls that this kernel refuses, and the limits of this process.\n"
      "Exit code 1: no loop can run in this way.\n\n" +
      std::string(exit_codes));
  add_backend(app, options.backend);
  app.add_flag("--json", options.json, "Print JSON");
}

void add_echo(CLI::App& app, EchoOptions& options) {
  app.footer(
      "Prints 'listening on ADDRESS:PORT' when it is ready. SIGINT and SIGTERM end it, with a\n"
      "line of totals on the standard error stream and exit code 0.\n\n" +
      std::string(exit_codes));
  app.add_option_function<std::string>(
         "--listen",
         [&options](const std::string& text) {
           options.address = address_or_reject("--listen", text);
         },
         "Where to listen: 127.0.0.1:3000, [::1]:3000; port 0 is any free port")
      ->type_name("ADDRESS:PORT")
      ->required();
  add_backend(app, options.backend);
  add_whole_number<std::numeric_limits<std::uint64_t>::max()>(
      app, "--echoes", options.echoes_max,
      "End after N echoes; an echo is whatever one receive gives. For measuring");
  app.add_flag("--quiet", options.quiet, "No line of totals at the end");
}

void add_load_amounts(CLI::App& app, LoadOptions& options) {
  add_whole_number<connections_max>(app, "--connections", options.connections,
                                    "Connections at once (50)");
  app.add_option_function<std::string>(
         "--size",
         [&options](const std::string& text) {
           const Parsed<std::uint64_t> size = parse_size_bytes(text);
           if (!size) reject("--size", size.error());
           if (*size > size_bytes_max) reject("--size", text + " is too large: at most 1g");
           options.size_bytes = *size;
         },
         "Bytes of a message: 64, 64k, 1m (64)")
      ->type_name("BYTES");
  add_whole_number<pipeline_max>(app, "--pipeline", options.pipeline,
                                 "Messages in flight on each connection (1)");
  add_whole_number<std::numeric_limits<std::uint64_t>::max()>(
      app, "--echoes", options.echoes_max,
      "Send N messages in all and end when they are back, or after the duration");
  app.add_option_function<std::string>(
         "--duration",
         [&options](const std::string& text) {
           const Parsed<Duration> duration = parse_duration(text);
           if (!duration) reject("--duration", duration.error());
           options.duration = *duration;
         },
         "How long to send, once all are connected: 500ms, 5s, 1m (5s)")
      ->type_name("TIME");
}

void reject_too_much_in_flight(const LoadOptions& options) {
  const std::uint64_t messages = std::uint64_t{options.connections} * options.pipeline;
  if (messages > messages_in_flight_max) {
    reject("--pipeline", "too many messages in flight: connections times pipeline is " +
                             format_count(messages) + ", at most " +
                             format_count(messages_in_flight_max) + " are possible");
  }
  if (messages > bytes_in_flight_max / options.size_bytes) {
    reject("--size", "too many bytes in flight: connections times pipeline times size may be " +
                         format_count(bytes_in_flight_max) + " at most");
  }
}

void add_load(CLI::App& app, LoadOptions& options) {
  app.footer(
      "Keeps K messages in flight on each of N connections and compares every byte that comes\n"
      "back. At the end all messages in flight are awaited, for 5 s at most; what is missing then\n"
      "is lost. requests/s counts what came back in the measured time; the latencies are those of\n"
      "all messages. SIGINT and SIGTERM end the measured time early.\n"
      "Exit code 0 only with 0 errors, 0 lost and 0 wrong bytes.\n\n" +
      std::string(exit_codes));
  app.add_option_function<std::string>(
         "address",
         [&options](const std::string& text) {
           options.address = address_or_reject("ADDRESS:PORT", text);
           if (options.address.port() == 0) reject("ADDRESS:PORT", "port 0 is no server's port");
         },
         "The server: 127.0.0.1:3000, [::1]:3000")
      ->type_name("ADDRESS:PORT")
      ->required();
  add_load_amounts(app, options);
  add_backend(app, options.backend);
  app.add_flag("--json", options.json, "Print JSON");
  app.add_flag("--idle", options.idle, "Connect and send nothing for the duration");
  app.add_flag("--hold", options.hold,
               "Keep the connections open after the report, until SIGINT or SIGTERM");
  app.final_callback([&options] { reject_too_much_in_flight(options); });
}

// What CLI11 says, but "a subcommand is required" helps nobody who misspelled one.
std::string explain(const CLI::App* app, const CLI::Error& error) {
  const std::vector<std::string> rest = app->remaining();
  const bool misspelled = app->get_subcommands().empty() && !rest.empty();
  return (misspelled ? "'" + rest.front() + "' is no command of evix" : std::string(error.what())) +
         "\nRun with --help for more information.\n";
}

}  // namespace

std::expected<Command, int> parse_command(int argument_count, const char* const* arguments) {
  CLI::App app("The program of evix, an event loop library", "evix");
  app.set_version_flag("--version", "evix " EVIX_VERSION_TEXT);
  app.require_subcommand(1);
  app.failure_message(explain);
  app.footer("'evix COMMAND --help' explains a command.\n\n" + std::string(exit_codes));

  DoctorOptions doctor;
  EchoOptions echo;
  LoadOptions load;
  CLI::App* const doctor_app =
      app.add_subcommand("doctor", "Tell which backend a loop uses here, and why");
  CLI::App* const echo_app = app.add_subcommand("echo", "Send back whatever a client sends");
  CLI::App* const load_app =
      app.add_subcommand("load", "Load an echo server, check every byte, measure latencies");
  add_doctor(*doctor_app, doctor);
  add_echo(*echo_app, echo);
  add_load(*load_app, load);

  try {
    app.parse(argument_count, arguments);
  } catch (const CLI::ParseError& error) {
    return std::unexpected(app.exit(error) == 0 ? exit_ok : exit_usage);
  }
  if (doctor_app->parsed()) return doctor;
  if (echo_app->parsed()) return echo;
  return load;
}

}  // namespace evix::cli
