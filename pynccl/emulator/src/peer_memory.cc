#include "peer_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "error.h"
#include "process.h"

namespace emu {

namespace {

using Key = std::tuple<int, std::uint64_t, int>;  // pid, its start, the heap's fd there

struct Mappings {
  std::mutex mutex;
  std::map<Key, std::weak_ptr<PeerMemory>> known;
};

Mappings& mappings() {
  static Mappings* const all = new Mappings;
  return *all;
}

}  // namespace

std::shared_ptr<PeerMemory> PeerMemory::map(const RankRecord& rank) {
  const std::lock_guard<std::mutex> lock(mappings().mutex);
  std::weak_ptr<PeerMemory>& known =
      mappings().known[Key(rank.pid, rank.process_start, rank.heap_fd)];
  if (std::shared_ptr<PeerMemory> mapped = known.lock()) return mapped;
  auto memory = std::make_shared<PeerMemory>();
  memory->peer_base_ = rank.heap_base;
  if (rank.pid == own_pid()) {
    memory->base_ = reinterpret_cast<unsigned char*>(rank.heap_base);
    known = memory;
    return memory;
  }
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", rank.pid, rank.heap_fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  void* at = MAP_FAILED;
  if (fd >= 0) {
    at = mmap(nullptr, rank.heap_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  }
  const int reason = errno;
  if (fd >= 0) close(fd);
  if (at == MAP_FAILED) {
    fail(ncclSystemError, "cannot map GPU memory of process %d (%s): %s", rank.pid, path,
         std::strerror(reason));
    return nullptr;
  }
  memory->base_ = static_cast<unsigned char*>(at);
  memory->mapped_bytes_ = rank.heap_bytes;
  known = memory;
  return memory;
}

PeerMemory::~PeerMemory() {
  if (mapped_bytes_ != 0) munmap(base_, mapped_bytes_);
}

}  // namespace emu
