#pragma once

#include <memory>
#include <string>
#include <vector>

#include "board.h"

namespace emu {

// One wait for other ranks that has lasted for some time.
class LongWait {
 public:
  LongWait() = default;
  ~LongWait();
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

  // Tells the other processes of it, and looks whether any of those that keep each other waiting
  // can still go on. The account of who waits for whom where none can; empty otherwise.
  std::string look(const std::vector<Awaited>& awaited, const std::string& text);

  int seconds() const;  // so far
  bool told = false;    // that it takes long
  bool told_of_group = false;

 private:
  void publish(const std::vector<Awaited>& awaited, const std::string& text);
  std::string verdict() const;

  const std::uint64_t begin_ = board_clock();
  int place_ = -1;
  std::string text_;
  std::unique_ptr<WaitsForRanks> waiting_;
  std::uint64_t serial_ = 0;
  std::uint64_t signature_ = 0;
  int unchanged_ = 0;
};

}  // namespace emu
