#include "region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>

#include "error.h"
#include "process.h"

namespace emu {

namespace {

constexpr char id_magic[8] = {'p', 'y', 'n', 'c', 'c', 'l', 'e', 'm'};

struct IdContent {
  char magic[8];
  std::uint64_t nonce;
  std::uint64_t host;
  std::uint64_t start;
  int pid;
  int fd;
  char host_name[64];
};
static_assert(sizeof(IdContent) <= sizeof(ncclUniqueId));

// Fds of regions made here whose ranks have not all joined.
struct OpenRegions {
  std::mutex mutex;
  std::map<std::uint64_t, int> fds;
};

OpenRegions& open_regions() {
  static OpenRegions* const regions = new OpenRegions;
  return *regions;
}

std::string host_name() {
  utsname names{};
  uname(&names);
  return names.nodename;
}

// What two processes must share to reach each other through /proc: kernel, host and pid namespace.
std::uint64_t host_identity() {
  std::string text = host_name();
  char boot[64] = {};
  const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    if (read(fd, boot, sizeof boot - 1) > 0) text += boot;
    close(fd);
  }
  struct stat name_space {};
  if (stat("/proc/self/ns/pid", &name_space) == 0) text += std::to_string(name_space.st_ino);
  return std::hash<std::string>{}(text);
}

std::size_t round_up(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

struct Layout {
  std::size_t ranks, contributions, inline_data, posts, signals, total;
};

Layout layout_for(int nranks) {
  const std::size_t n = static_cast<std::size_t>(nranks);
  Layout at;
  at.ranks = round_up(sizeof(RegionHeader));
  at.contributions = at.ranks + round_up(n * sizeof(RankRecord));
  at.inline_data = at.contributions + round_up(2 * n * sizeof(Contribution));
  at.posts = at.inline_data + round_up(2 * n * inline_bytes);
  at.signals = at.posts + round_up(n * n * sizeof(PostQueue));
  at.total = at.signals + round_up(n * n * sizeof(SignalCounts));
  return at;
}

void* map_shared(int fd, std::size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  return at == MAP_FAILED ? nullptr : at;
}

constexpr char memory_name[] = "pynccl-communicator";

bool is_region(const char* path) {
  const std::string wanted = std::string("/memfd:") + memory_name;
  char target[128];
  const ssize_t length = readlink(path, target, sizeof target);
  return length >= static_cast<ssize_t>(wanted.size()) &&
         wanted.compare(0, wanted.size(), target, wanted.size()) == 0;
}

// Opens what the maker of an id left open; the negative errno where that cannot be. ENOENT where it
// was closed since: the number of the fd may then stand for any other file, which is left alone.
int open_region(const char* path, std::uint64_t nonce) {
  errno = 0;
  if (!is_region(path)) return errno == 0 ? -ENOENT : -errno;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return -errno;
  static_assert(offsetof(RegionHeader, nonce) == 0);
  std::uint64_t found = 0;
  const std::string own = "/proc/self/fd/" + std::to_string(fd);
  if (is_region(own.c_str()) && pread(fd, &found, sizeof found, 0) == sizeof found &&
      found == nonce) {
    return fd;
  }
  close(fd);
  return -ENOENT;
}

ncclResult_t open_fd(const IdContent& content, int* fd) {
  if (std::memcmp(content.magic, id_magic, sizeof id_magic) != 0) {
    return fail(ncclInvalidArgument,
                "this is no unique id of the emulator; all ranks must use the emulator, and the id "
                "must reach them unchanged");
  }
  if (content.host != host_identity()) {
    return fail(ncclSystemError,
                "the unique id was made on host %s and is used on host %s (or in another "
                "container): the emulator connects ranks of one host only; start all ranks there, "
                "or use the real NCCL",
                content.host_name, host_name().c_str());
  }
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", content.pid, content.fd);
  const bool alive = process_alive(content.pid, content.start);
  const int opened = alive ? open_region(path, content.nonce) : -ENOENT;
  if (opened >= 0) {
    *fd = opened;
    return ncclSuccess;
  }
  if (!alive || !process_alive(content.pid, content.start)) {
    return fail(ncclRemoteError, "process %d, which made the unique id, has ended", content.pid);
  }
  if (opened == -ENOENT) {
    return fail(ncclInvalidUsage,
                "the unique id made by process %d has already served a communicator; each "
                "communicator needs a new one",
                content.pid);
  }
  return fail(ncclSystemError, "cannot open the communicator's memory %s: %s", path,
              std::strerror(-opened));
}

}  // namespace

ncclResult_t Region::create(ncclUniqueId* id) {
  IdContent content{};
  std::memcpy(content.magic, id_magic, sizeof id_magic);
  if (getrandom(&content.nonce, sizeof content.nonce, 0) != sizeof content.nonce) {
    return fail(ncclSystemError, "no random bytes for a unique id: %s", std::strerror(errno));
  }
  content.host = host_identity();
  content.pid = own_pid();
  content.start = own_start();
  std::strncpy(content.host_name, host_name().c_str(), sizeof content.host_name - 1);
  content.fd = memfd_create(memory_name, MFD_CLOEXEC);
  if (content.fd < 0 || ftruncate(content.fd, round_up(sizeof(RegionHeader))) != 0) {
    if (content.fd >= 0) close(content.fd);
    return fail(ncclSystemError, "no memory for a unique id: %s", std::strerror(errno));
  }
  void* const at = map_shared(content.fd, sizeof(RegionHeader));
  if (at == nullptr) {
    close(content.fd);
    return fail(ncclSystemError, "no memory for a unique id: %s", std::strerror(errno));
  }
  auto* const header = static_cast<RegionHeader*>(at);
  header->nonce = content.nonce;
  header->creator_pid = content.pid;
  header->creator_start = content.start;
  munmap(at, sizeof(RegionHeader));
  {
    const std::lock_guard<std::mutex> lock(open_regions().mutex);
    open_regions().fds[content.nonce] = content.fd;
  }
  std::memset(id, 0, sizeof *id);
  std::memcpy(id, &content, sizeof content);
  return ncclSuccess;
}

std::shared_ptr<Region> Region::open(const ncclUniqueId& id, int nranks, ncclResult_t* result) {
  IdContent content;
  std::memcpy(&content, &id, sizeof content);
  int fd = -1;
  *result = open_fd(content, &fd);
  if (*result != ncclSuccess) return nullptr;
  const std::size_t bytes = layout_for(nranks).total;
  struct stat before {};
  fstat(fd, &before);
  // Ranks that disagree on the size map what the first one made; the header tells them.
  const bool grown = static_cast<std::size_t>(before.st_size) >= bytes || ftruncate(fd, bytes) == 0;
  void* const at = grown ? map_shared(fd, bytes) : nullptr;
  close(fd);
  if (at == nullptr) {
    *result = fail(ncclSystemError, "no memory for a communicator of %d ranks: %s", nranks,
                   std::strerror(errno));
    return nullptr;
  }
  std::shared_ptr<Region> region(new Region);
  region->base_ = static_cast<unsigned char*>(at);
  region->bytes_ = bytes;
  region->nranks_ = nranks;
  const Layout layout = layout_for(nranks);
  region->ranks_ = reinterpret_cast<RankRecord*>(region->base_ + layout.ranks);
  region->contributions_ = reinterpret_cast<Contribution*>(region->base_ + layout.contributions);
  region->inline_data_ = region->base_ + layout.inline_data;
  region->posts_ = reinterpret_cast<PostQueue*>(region->base_ + layout.posts);
  region->signals_ = reinterpret_cast<SignalCounts*>(region->base_ + layout.signals);
  if (region->header().nonce != content.nonce) {
    *result = fail(ncclInvalidUsage,
                   "the unique id has already served a communicator; each needs a new one");
    return nullptr;
  }
  int agreed = 0;
  if (!region->header().nranks.compare_exchange_strong(agreed, nranks) && agreed != nranks) {
    const std::string text =
        format("ranks disagree on the size of the communicator: %d and %d", agreed, nranks);
    region->set_failure(ncclInvalidArgument, text);
    *result = fail(ncclInvalidArgument, "%s", text.c_str());
    return nullptr;
  }
  return region;
}

Region::~Region() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

RankRecord& Region::rank(int rank) { return ranks_[rank]; }

Contribution& Region::contribution(int meeting, int rank) {
  return contributions_[meeting * nranks_ + rank];
}

unsigned char* Region::inline_data(int meeting, int rank) {
  return inline_data_ + (static_cast<std::size_t>(meeting) * nranks_ + rank) * inline_bytes;
}

PostQueue& Region::posts(int source, int destination) {
  return posts_[static_cast<std::size_t>(source) * nranks_ + destination];
}

SignalCounts& Region::signals(int source, int destination) {
  return signals_[static_cast<std::size_t>(source) * nranks_ + destination];
}

std::string Region::name() const {
  const auto& header = *reinterpret_cast<const RegionHeader*>(base_);
  return format("%04x", static_cast<unsigned>(header.nonce & 0xffff));
}

void Region::set_failure(ncclResult_t code, const std::string& text) {
  std::uint32_t none = 0;
  RegionHeader& head = header();
  if (!head.failure.compare_exchange_strong(none, 1)) return;
  std::strncpy(head.failure_text, text.c_str(), sizeof head.failure_text - 1);
  head.failure_code.store(code);
  head.failure.store(2, std::memory_order_release);
  wake_everyone();
}

void Region::wake_everyone() {
  RegionHeader& head = header();
  head.joined.wake_all();
  head.agreed.wake_all();
  head.growths.wake_all();
  for (Meeting& meeting : head.meetings) {
    meeting.arrived.wake_all();
    meeting.finished.wake_all();
  }
  // A region whose ranks disagree on its size ends in an error before anybody waits on these.
  if (head.nranks.load() != nranks_) return;
  for (int r = 0; r < nranks_; ++r) {
    rank(r).bell.add_and_wake(1);
    rank(r).letter_number.wake_all();
  }
}

void Region::close_creator_fd() {
  const std::lock_guard<std::mutex> lock(open_regions().mutex);
  const auto found = open_regions().fds.find(header().nonce);
  if (found == open_regions().fds.end()) return;
  close(found->second);
  open_regions().fds.erase(found);
}

}  // namespace emu
