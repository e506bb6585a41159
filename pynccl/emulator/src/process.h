#pragma once

#include <cstdint>

namespace emu {

// Clock ticks after boot at which the process started, 0 when there is no such process (or only
// its zombie). With the pid it names a process for ever.
std::uint64_t process_start(int pid);

inline bool process_alive(int pid, std::uint64_t start) { return process_start(pid) == start; }

// Of this process; right also in a forked child.
int own_pid();
std::uint64_t own_start();

}  // namespace emu
