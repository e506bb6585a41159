// NCCL's runtime parameters: those that its documentation publishes, read from the environment.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "exported.h"
#include "faults.h"

using emu::fail;

namespace {

enum class Form { text, flag, levels, subsystems, level };

struct Parameter {
  const char* key;
  Form form;
  const char* initial;
};

constexpr Parameter parameters[] = {
    {"NCCL_DEBUG", Form::level, "<unknown>"},
    {"NCCL_DEBUG_FILE", Form::text, ""},
    {"NCCL_DEBUG_LEVELS", Form::levels, "NONE"},
    {"NCCL_DEBUG_SUBSYS", Form::subsystems, "INIT,ENV,BOOTSTRAP"},
    {"NCCL_DEBUG_TIMESTAMP_FORMAT", Form::text, "[%F %T] "},
    {"NCCL_DEBUG_TIMESTAMP_LEVELS", Form::levels, "WARN,ATTN"},
    {"NCCL_SET_THREAD_NAME", Form::flag, "FALSE"},
};

const std::vector<std::string> level_names = {"NONE", "VERSION", "WARN", "INFO",
                                              "ABORT", "TRACE", "ATTN"};
const std::vector<std::string> subsystem_names = {
    "INIT", "COLL", "P2P",  "SHM",   "NET",  "GRAPH",     "TUNING", "ENV",
    "ALLOC", "CALL", "PROXY", "NVLS", "BOOTSTRAP", "REG", "PROFILE", "RAS"};

std::string value_of(const Parameter& parameter) {
  const char* const set = std::getenv(parameter.key);
  return set != nullptr ? set : parameter.initial;
}

// One bit for each name in a list with commas; unknown names have none.
std::uint64_t mask(const std::string& list, const std::vector<std::string>& names) {
  std::uint64_t bits = 0;
  std::size_t begin = 0;
  while (begin <= list.size()) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (list.compare(begin, end - begin, names[i]) == 0) bits |= std::uint64_t{1} << i;
    }
    begin = end + 1;
  }
  return bits;
}

std::uint64_t number_of(const Parameter& parameter) {
  const std::string value = value_of(parameter);
  switch (parameter.form) {
    case Form::levels:
      return mask(value, level_names) & ~std::uint64_t{1};
    case Form::subsystems:
      return mask(value, subsystem_names);
    case Form::flag:
      return value == "1" || value == "TRUE" || value == "true";
    case Form::level:
      for (std::size_t i = 0; i < level_names.size(); ++i) {
        if (value == level_names[i]) return i;
      }
      return 0;
    case Form::text:
      break;
  }
  return 0;
}

// Bytes of the parameter's own type.
std::string raw(const Parameter& parameter) {
  if (parameter.form == Form::text) return value_of(parameter) + '\0';
  const std::uint64_t number = number_of(parameter);
  const std::size_t width =
      parameter.form == Form::flag ? 1 : parameter.form == Form::subsystems ? 8 : 4;
  return std::string(reinterpret_cast<const char*>(&number), width);
}

const Parameter* find(const char* key) {
  for (const Parameter& parameter : parameters) {
    if (key != nullptr && std::strcmp(parameter.key, key) == 0) return &parameter;
  }
  fail(ncclInvalidArgument, "there is no parameter %s", key == nullptr ? "(null)" : key);
  return nullptr;
}

const Parameter* from_handle(ncclParamHandle_t handle) {
  for (const Parameter& parameter : parameters) {
    if (reinterpret_cast<const Parameter*>(handle) == &parameter) return &parameter;
  }
  fail(ncclInvalidArgument, "not a handle from ncclParamBind");
  return nullptr;
}

ncclResult_t mismatch(const Parameter& parameter, const char* asked) {
  return fail(ncclInvalidArgument, "%s is not of type %s", parameter.key, asked);
}

template <class T>
ncclResult_t get(ncclParamHandle_t handle, T* out, Form form, const char* name) {
  const Parameter* const parameter = from_handle(handle);
  if (parameter == nullptr || out == nullptr) return ncclInvalidArgument;
  if (parameter->form != form) return mismatch(*parameter, name);
  *out = static_cast<T>(number_of(*parameter));
  return ncclSuccess;
}

// No published parameter has one of these types.
ncclResult_t refuse(ncclParamHandle_t handle, const char* name) {
  const Parameter* const parameter = from_handle(handle);
  return parameter == nullptr ? ncclInvalidArgument : mismatch(*parameter, name);
}

}  // namespace

NCCL_FUNCTION ncclResult_t ncclParamBind(ncclParamHandle_t* out, const char* key) {
  MAY_FAIL(emu::launcher);
  if (out == nullptr) return fail(ncclInvalidArgument, "out is null");
  const Parameter* const parameter = find(key);
  if (parameter == nullptr) return ncclInvalidArgument;
  *out = reinterpret_cast<ncclParamHandle_t>(const_cast<Parameter*>(parameter));
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclParamGetI8(ncclParamHandle_t h, int8_t*) {
  MAY_FAIL(emu::launcher);
  return refuse(h, "I8");
}
NCCL_FUNCTION ncclResult_t ncclParamGetI16(ncclParamHandle_t h, int16_t*) {
  MAY_FAIL(emu::launcher);
  return refuse(h, "I16");
}
NCCL_FUNCTION ncclResult_t ncclParamGetI32(ncclParamHandle_t h, int32_t*) {
  MAY_FAIL(emu::launcher);
  return refuse(h, "I32");
}
NCCL_FUNCTION ncclResult_t ncclParamGetI64(ncclParamHandle_t h, int64_t*) {
  MAY_FAIL(emu::launcher);
  return refuse(h, "I64");
}
NCCL_FUNCTION ncclResult_t ncclParamGetU8(ncclParamHandle_t h, uint8_t*) {
  MAY_FAIL(emu::launcher);
  return refuse(h, "U8");
}
NCCL_FUNCTION ncclResult_t ncclParamGetU16(ncclParamHandle_t h, uint16_t*) {
  MAY_FAIL(emu::launcher);
  return refuse(h, "U16");
}
NCCL_FUNCTION ncclResult_t ncclParamGetU32(ncclParamHandle_t h, uint32_t* out) {
  MAY_FAIL(emu::launcher);
  return get(h, out, Form::levels, "U32");
}
NCCL_FUNCTION ncclResult_t ncclParamGetU64(ncclParamHandle_t h, uint64_t* out) {
  MAY_FAIL(emu::launcher);
  return get(h, out, Form::subsystems, "U64");
}

NCCL_FUNCTION ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char** out) {
  MAY_FAIL(emu::launcher);
  static thread_local std::string value;
  const Parameter* const parameter = from_handle(h);
  if (parameter == nullptr || out == nullptr) return ncclInvalidArgument;
  value = value_of(*parameter);
  *out = value.c_str();
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclParamGet(ncclParamHandle_t h, void* out, int room, int* length) {
  MAY_FAIL(emu::launcher);
  const Parameter* const parameter = from_handle(h);
  if (parameter == nullptr || out == nullptr || length == nullptr) return ncclInvalidArgument;
  const std::string bytes = raw(*parameter);
  *length = static_cast<int>(bytes.size());
  if (*length > room) {
    return fail(ncclInvalidArgument, "%s has %d bytes, the buffer %d", parameter->key, *length,
                room);
  }
  std::memcpy(out, bytes.data(), bytes.size());
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclParamGetParameter(const char* key, const char** out, int* length) {
  MAY_FAIL(emu::launcher);
  static thread_local std::string value;
  const Parameter* const parameter = find(key);
  if (parameter == nullptr || out == nullptr) return ncclInvalidArgument;
  value = value_of(*parameter);
  *out = value.c_str();
  if (length != nullptr) *length = static_cast<int>(value.size());
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclParamGetAllParameterKeys(const char*** table, int* length) {
  MAY_FAIL(emu::launcher);
  static thread_local std::vector<const char*> keys;
  if (table == nullptr || length == nullptr) return ncclInvalidArgument;
  keys.clear();
  for (const Parameter& parameter : parameters) keys.push_back(parameter.key);
  *table = keys.data();
  *length = static_cast<int>(keys.size());
  return ncclSuccess;
}

NCCL_FUNCTION void ncclParamDumpAll() {
  for (const Parameter& parameter : parameters) {
    std::printf("%s=%s\n", parameter.key, value_of(parameter).c_str());
  }
  std::fflush(stdout);
}
