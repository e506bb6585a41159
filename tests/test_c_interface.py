"""The table of functions, the structures and the enumerations, against the real nccl.h."""

import ctypes
import re

import pytest
from helpers import headers

from pynccl import types
from pynccl.functions import FUNCTIONS

LATEST = types.version_code(".".join(map(str, types.LATEST)))


@pytest.fixture(scope="module")
def flags():
    return headers.real_headers()


@pytest.fixture(scope="module")
def header(flags):
    return (headers.NCCL / "nccl.h").read_text()


def test_the_table_has_every_function_of_the_header_and_no_other(header):
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    declared = set(re.findall(r"\b(nccl[A-Z]\w+)\s*\(", text))
    assert set(FUNCTIONS) == declared
    assert len(FUNCTIONS) == 73


def test_every_function_takes_the_arguments_that_the_header_says(flags, tmp_path):
    source = """
#include <cstdio>
#include <string>
#include <type_traits>
#include <nccl.h>
template <class T> std::string kind() {
  if constexpr (std::is_void_v<T>) return "void";
  else if constexpr (std::is_pointer_v<T>) return "pointer";
  else if constexpr (std::is_class_v<T>) return "struct" + std::to_string(sizeof(T));
  else if constexpr (std::is_enum_v<T>) return "int" + std::to_string(sizeof(T));
  else return (std::is_signed_v<T> ? "int" : "unsigned") + std::to_string(sizeof(T));
}
template <class F> struct Signature;
template <class R, class... A> struct Signature<R (*)(A...)> {
  static void tell(const char* name) {
    std::string line = kind<R>();
    ((line += " " + kind<A>()), ...);
    std::printf("%s %s\\n", name, line.c_str());
  }
};
int main() {
""" + "".join(f'  Signature<decltype(&{name})>::tell("{name}");\n' for name in FUNCTIONS) + "}\n"
    told = headers.run(source, tmp_path, [*flags, "-DNCCL_OS_LINUX"])
    for name, (_, restype, arguments) in FUNCTIONS.items():
        ours = " ".join(kind_of(ctype) for ctype in (restype, *arguments.values()))
        assert ours == told[name], name


def kind_of(ctype):
    if ctype is None:
        return "void"
    if ctype in (ctypes.c_void_p, ctypes.c_char_p) or hasattr(ctype, "contents"):
        return "pointer"
    if issubclass(ctype, ctypes.Structure):
        return f"struct{ctypes.sizeof(ctype)}"
    signed = ctype(-1).value < 0
    return f"{'int' if signed else 'unsigned'}{ctypes.sizeof(ctype)}"


def test_argument_names_are_the_headers(header):
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    for name, row in FUNCTIONS.items():
        found = re.search(rf"\b{name}\s*\(([^)]*)\)", text)
        arguments = [part.split()[-1].lstrip("*") for part in found[1].split(",") if part.strip()]
        if arguments == ["void"]:
            arguments = []
        assert list(row.arguments) == arguments, name


def test_structures_have_the_headers_sizes_and_offsets(flags, tmp_path):
    structs = {name: [f.name for f in fields] for name, fields in types.STRUCTURES.items()}
    structs["ncclUniqueId"] = ["internal"]
    facts = headers.run(headers.print_facts("#include <nccl.h>", [], structs), tmp_path, flags)
    for name, fields in structs.items():
        ours = types.UniqueIdStruct if name == "ncclUniqueId" else types.structure(name, LATEST)
        assert ctypes.sizeof(ours) == int(facts[name]), name
        for field in fields:
            place = getattr(ours, field)
            assert f"{place.offset}/{place.size}" == facts[f"{name}.{field}"], (name, field)


def test_enumerators_and_macros_have_the_headers_values(flags, tmp_path):
    ours = {name: value for members in types.ENUMS.values() for name, (value, _) in members.items()}
    ours.update({name: value for name, (value, _) in types.MACROS.items()})
    facts = headers.run(headers.print_facts("#include <nccl.h>", ours, {}), tmp_path, flags)
    assert {name: int(value) for name, value in facts.items()} == dict(ours)


def test_initializers_are_the_headers(flags, tmp_path):
    macros = {
        "ncclConfig_t": "NCCL_CONFIG_INITIALIZER",
        "ncclCollConfig_t": "NCCL_COLLCONFIG_INITIALIZER",
        "ncclSimInfo_t": "NCCL_SIM_INFO_INITIALIZER",
        "ncclEncryptionConfig_t": "NCCL_ENCRYPTION_CONFIG_INITIALIZER",
    }
    lines = []
    for struct, macro in macros.items():
        lines.append(f"  {struct} v_{struct} = {macro};")
        for field in types.STRUCTURES[struct]:
            value = f"v_{struct}.{field.name}"
            lines.append(f'  std::printf("{struct}.{field.name} %.0f\\n", number({value}));')
    source = (
        "#include <cstdio>\n#include <nccl.h>\n"
        "template <class T> double number(T* p) { return p == nullptr ? 0 : 1; }\n"
        "template <class T> double number(T v) { return double(v); }\n"
        "int main() {\n" + "\n".join(lines) + "\n}\n"
    )
    facts = headers.run(source, tmp_path, flags)
    for struct in macros:
        made = types.initialized(struct, LATEST)
        for field in types.STRUCTURES[struct]:
            assert float(getattr(made, field.name) or 0) == float(facts[f"{struct}.{field.name}"])


@pytest.mark.parametrize("release", ["2.18.1", "2.21.5", "2.27.3", "2.29.2", "2.31.2", "2.32.3"])
def test_structures_grow_with_the_releases(release):
    version = types.version_code(release)
    config = types.initialized("ncclConfig_t", version)
    names = [name for name, _ in config._fields_]
    fields = types.STRUCTURES["ncclConfig_t"]
    later = [f.name for f in fields if types.version_code(f.since) > version]
    assert config.size == ctypes.sizeof(config)
    assert config.version == version
    assert not set(names) & set(later)
    assert names == [f.name for f in types.STRUCTURES["ncclConfig_t"]][: len(names)]


def test_version_numbers_follow_nccls_formula():
    for release, code in {"2.3.5": 2305, "2.8.4": 2804, "2.9.6": 20906, "2.18.1": 21801}.items():
        assert types.version_code(release) == code
        assert types.version_text(code) == release
    assert types.version_text(22900) == "2.29.0"


def test_the_emulators_nccl_has_the_real_headers_sizes_offsets_and_values(flags, tmp_path):
    header = headers.EMULATOR / "nccl_abi.h"
    names, structs = headers.declared(header)
    names += re.findall(r"#define (NCCL_\w+) ", header.read_text())
    assert len(names) > 40
    assert len(structs) >= 6
    real = headers.print_facts("#include <nccl.h>", names, structs)
    ours = headers.print_facts('#include "nccl_abi.h"', names, structs)
    assert headers.run(ours, tmp_path / "ours", [f"-I{headers.EMULATOR}"]) == headers.run(
        real, tmp_path / "real", flags
    )


def test_the_emulators_cuda_has_the_real_headers_sizes_offsets_and_values(flags, tmp_path):
    names, structs = headers.declared(headers.EMULATOR / "cuda_abi.h")
    results = (headers.EMULATOR / "cuda_results.h").read_text()
    names += re.findall(r"X\((CUDA_\w+),", results)
    # What the emulator names itself, and what counts the attributes of one release.
    names = [n for n in names if n not in ("CUDA_VERSION", "CU_DEVICE_ATTRIBUTE_MAX", "name")]
    assert len(names) > 200
    real = headers.print_facts("#include <cuda.h>", names, structs)
    ours = headers.print_facts('#include "cuda_abi.h"', names, structs)
    assert headers.run(ours, tmp_path / "ours", [f"-I{headers.EMULATOR}"]) == headers.run(
        real, tmp_path / "real", flags
    )
