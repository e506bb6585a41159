// The one source that is compiled anew for each release.

#include "release.h"

namespace emu {

const int release = EMULATED_RELEASE;

}  // namespace emu
