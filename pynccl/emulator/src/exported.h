#pragma once

#define NCCL_FUNCTION extern "C" __attribute__((visibility("default")))
