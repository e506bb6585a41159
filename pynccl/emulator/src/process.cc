#include "process.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emu {

namespace {

struct Self {
  int pid;
  std::uint64_t start;
};

Self& self() {
  static Self value = [] {
    pthread_atfork(nullptr, nullptr, [] { self() = {getpid(), process_start(getpid())}; });
    return Self{getpid(), process_start(getpid())};
  }();
  return value;
}

}  // namespace

std::uint64_t process_start(int pid) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[1024];
  const ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0) return 0;
  text[length] = '\0';
  // The command's name stands in parentheses and may itself hold any character.
  const char* field = std::strrchr(text, ')');
  if (field == nullptr || field[1] == '\0') return 0;
  const char state = field[2];
  if (state == 'Z' || state == 'X') return 0;
  field += 2;
  for (int number = 3; number < 22; ++number) {
    field = std::strchr(field, ' ');
    if (field == nullptr) return 0;
    ++field;
  }
  return std::strtoull(field, nullptr, 10);
}

int own_pid() { return self().pid; }
std::uint64_t own_start() { return self().start; }

}  // namespace emu
