#pragma once

#include "communicator.h"

namespace emu {

// Of a user's structure; the defaults where it is null.
ncclResult_t read_config(const ncclConfig_t* config, const Settings& defaults, Settings* settings);
ncclResult_t check_config(const ncclCollConfig_t* config);

}  // namespace emu
