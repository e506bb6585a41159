#include "device.h"

#include <pthread.h>
#include <sys/utsname.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "context.h"

namespace emu {

namespace {

constexpr long max_devices = 1024;
constexpr std::size_t default_memory = std::size_t{16} << 30;
constexpr std::size_t page = 4096;

struct Configuration {
  int devices = 8;
  std::size_t memory = default_memory;
  std::vector<int> visible;  // physical index of each ordinal
  std::string error;
};

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

void read_device_count(Configuration& config) {
  const char* const text = std::getenv("PYNCCL_EMULATOR_DEVICES");
  if (text == nullptr || *text == '\0') return;
  char* end = nullptr;
  const long count = std::strtol(text, &end, 10);
  if (*end != '\0' || count < 0 || count > max_devices) {
    config.error = "PYNCCL_EMULATOR_DEVICES is \"" + std::string(text) +
                   "\"; it must be a number of GPUs from 0 to " + std::to_string(max_devices);
    return;
  }
  config.devices = static_cast<int>(count);
}

void read_memory(Configuration& config) {
  const char* const text = std::getenv("PYNCCL_EMULATOR_MEMORY");
  if (text == nullptr || *text == '\0') return;
  char* end = nullptr;
  errno = 0;
  const unsigned long long number = std::strtoull(text, &end, 10);
  int shift = 0;
  const bool suffixed = *end != '\0';
  if (suffixed) {
    const char suffix = static_cast<char>(std::toupper(static_cast<unsigned char>(*end)));
    shift = suffix == 'K' ? 10 : suffix == 'M' ? 20 : suffix == 'G' ? 30 : 64;
  }
  // 2^46 bytes is what a process can address in all.
  const bool sound = std::isdigit(static_cast<unsigned char>(*text)) && errno == 0 && shift < 64 &&
                     (!suffixed || end[1] == '\0') && number <= (1ULL << 46 >> shift) &&
                     (number << shift) >= page;
  if (!sound) {
    config.error = "PYNCCL_EMULATOR_MEMORY is \"" + std::string(text) +
                   "\"; it must be a number of bytes, at least 4096, optionally with K, M or G";
    return;
  }
  config.memory = (number << shift) / page * page;
}

std::string uuid_text(int physical) {
  const Uuid uuid = device_uuid(physical);
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x", uuid[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

// Physical index that one entry of CUDA_VISIBLE_DEVICES names, -1 for none.
int device_named(const std::string& entry, int devices) {
  if (entry.empty()) return -1;
  if (std::all_of(entry.begin(), entry.end(), [](unsigned char c) { return std::isdigit(c); })) {
    const long index = entry.size() > 6 ? max_devices : std::stol(entry);
    return index < devices ? static_cast<int>(index) : -1;
  }
  if (entry.compare(0, 4, "GPU-") != 0) return -1;
  int found = -1;
  for (int physical = 0; physical < devices; ++physical) {
    if (uuid_text(physical).compare(0, entry.size(), entry) != 0) continue;
    if (found != -1) return -1;  // not the beginning of one UUID alone
    found = physical;
  }
  return found;
}

// As CUDA: entries after the first invalid or repeated one are not seen.
void read_visible(Configuration& config) {
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int i = 0; i < config.devices; ++i) config.visible.push_back(i);
    return;
  }
  const std::string list = text;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const int physical = device_named(trimmed(list.substr(begin, end - begin)), config.devices);
    const auto seen = std::find(config.visible.begin(), config.visible.end(), physical);
    if (physical == -1 || seen != config.visible.end()) return;
    config.visible.push_back(physical);
    begin = end + 1;
  }
}

const Configuration& configuration() {
  static const Configuration* const read = [] {
    auto* const config = new Configuration;
    read_device_count(*config);
    read_memory(*config);
    read_visible(*config);
    return config;
  }();
  return *read;
}

std::uint64_t hash(const std::string& text, std::uint64_t seed) {
  std::uint64_t value = 0xcbf29ce484222325u ^ seed;
  for (const unsigned char c : text) value = (value ^ c) * 0x100000001b3u;
  value ^= value >> 32;
  return value * 0x9e3779b97f4a7c15u ^ value >> 29;
}

std::atomic<bool> forked{false};

}  // namespace

int device_count() {
  if (in_forked_child()) return 0;
  return static_cast<int>(configuration().visible.size());
}

int physical_device(int ordinal) {
  return ordinal >= 0 && ordinal < device_count() ? configuration().visible[ordinal] : -1;
}

int current_device() {
  const Context* const context = current_context();
  return context == nullptr ? -1 : context->device;
}

void set_current_device(int ordinal) {
  if (Context* const primary = primary_context(ordinal)) set_current_context(primary);
}

Uuid device_uuid(int physical) {
  static const std::string node = [] {
    utsname names{};
    uname(&names);
    return std::string(names.nodename);
  }();
  Uuid uuid;
  const std::string name = node + "/" + std::to_string(physical);
  for (int half = 0; half < 2; ++half) {
    const std::uint64_t bits = hash(name, static_cast<std::uint64_t>(half + 1));
    for (int i = 0; i < 8; ++i) uuid[half * 8 + i] = static_cast<unsigned char>(bits >> (8 * i));
  }
  return uuid;
}

std::string pci_bus_id(int physical) {
  char text[16];
  std::snprintf(text, sizeof text, "%04x:%02x:00.0", physical / 255, physical % 255 + 1);
  return text;
}

std::size_t device_memory() { return configuration().memory; }

const std::string& configuration_error() { return configuration().error; }

bool in_forked_child() { return forked.load(std::memory_order_relaxed); }

void watch_for_fork() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
  (void)registered;
}

}  // namespace emu
