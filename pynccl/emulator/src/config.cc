#include "config.h"

#include "error.h"
#include "release.h"

namespace emu {

namespace {

// A field exists for the caller when its structure reaches that far, and for the library when its
// release has it.
#define READ_FIELD(config, field, since, target)                                            \
  if (release >= (since) &&                                                                 \
      (config)->size >= offsetof(ncclConfig_t, field) + sizeof((config)->field) &&          \
      (config)->field != NCCL_CONFIG_UNDEF_INT) {                                           \
    *(target) = (config)->field;                                                            \
  }

ncclResult_t check_range(const char* field, int value, int low, int high) {
  if (value >= low && value <= high) return ncclSuccess;
  return fail(ncclInvalidArgument, "config.%s is %d, must be from %d to %d", field, value, low,
              high);
}

}  // namespace

ncclResult_t read_config(const ncclConfig_t* config, const Settings& defaults,
                         Settings* settings) {
  *settings = defaults;
  if (config == nullptr) return ncclSuccess;
  if (config->magic != NCCL_API_MAGIC) {
    return fail(ncclInvalidArgument, "the ncclConfig_t was not initialised: its magic is %#x",
                config->magic);
  }
  int blocking = defaults.blocking ? 1 : 0;
  READ_FIELD(config, blocking, 21403, &blocking)
  READ_FIELD(config, numRmaCtx, 22902, &settings->contexts)
  READ_FIELD(config, numRmaSig, 23102, &settings->signals)
  settings->blocking = blocking != 0;
  ncclResult_t result = check_range("blocking", blocking, 0, 1);
  if (result == ncclSuccess) {
    result = check_range("numRmaCtx", settings->contexts, 1, most_contexts);
  }
  if (result == ncclSuccess) result = check_range("numRmaSig", settings->signals, 1, most_signals);
  return result;
}

ncclResult_t check_config(const ncclCollConfig_t* config) {
  if (config == nullptr) return ncclSuccess;
  if (config->magic != NCCL_API_MAGIC) {
    return fail(ncclInvalidArgument, "the ncclCollConfig_t was not initialised: its magic is %#x",
                config->magic);
  }
  const bool both = config->minCTAs != NCCL_CONFIG_UNDEF_INT &&
                    config->maxCTAs != NCCL_CONFIG_UNDEF_INT;
  if (both && config->minCTAs > config->maxCTAs) {
    return fail(ncclInvalidArgument, "config.minCTAs %d is greater than config.maxCTAs %d",
                config->minCTAs, config->maxCTAs);
  }
  if ((config->minCTAs != NCCL_CONFIG_UNDEF_INT && config->minCTAs < 1) ||
      (config->maxCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs < 1)) {
    return fail(ncclInvalidArgument, "config.minCTAs and maxCTAs must be at least 1");
  }
  return ncclSuccess;
}

}  // namespace emu
