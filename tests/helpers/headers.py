"""The real headers of NCCL and CUDA, from the wheels of the test extra, and a compiler."""

import pathlib
import re
import subprocess
import sysconfig

import pytest

from pynccl.emulator import build

SITE = pathlib.Path(sysconfig.get_path("purelib"))
NCCL = SITE / "nvidia/nccl/include"
CUDA = SITE / "nvidia/cu13/include"
CCCL = CUDA / "cccl"
EMULATOR = build.SOURCES


def real_headers():
    """Return compiler flags for the real headers; skip the test where the wheels are missing."""
    for wheel, header in (
        ("nvidia-nccl-cu13", NCCL / "nccl.h"),
        ("nvidia-cuda-runtime", CUDA / "cuda_runtime.h"),
        ("nvidia-cuda-crt", CUDA / "crt/host_config.h"),
        ("nvidia-cuda-cccl", CCCL / "nv/target"),
    ):
        if not header.exists():
            pytest.skip(f"needs the wheel {wheel}, which holds {header.name}")
    return [f"-I{NCCL}", f"-I{CUDA}", f"-I{CCCL}", "-Wno-deprecated-declarations"]


def run(source, folder, flags):
    """Compile a C++ program; return the lines that it prints, by their first words."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "program.cc"
    file.write_text(source)
    target = str(folder / "program")
    command = [build._compiler(), "-std=c++17", "-w", *flags, str(file), "-o", target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = subprocess.run([target], capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in printed.stdout.splitlines())


def print_facts(include, names, structs):
    """Return a program that prints the value of each name, and size and offsets of each struct."""
    lines = [f'std::printf("{name} %lld\\n", (long long)({name}));' for name in names]
    for struct, fields in structs.items():
        lines.append(f'std::printf("{struct} %zu\\n", sizeof({struct}));')
        for field in fields:
            lines.append(
                f'std::printf("{struct}.{field} %zu/%zu\\n", offsetof({struct}, {field}),'
                f" sizeof((({struct}*)0)->{field}));"
            )
    body = "\n  ".join(lines)
    return f"#include <cstddef>\n#include <cstdio>\n{include}\nint main() {{\n  {body}\n}}\n"


def declared(header):
    """Return the enumerators and constants of a header of ours, and its structs' fields."""
    text = re.sub(r"//[^\n]*", "", header.read_text())
    names = []
    for body in re.findall(r"\benum\b[^{;]*\{([^}]*)\}", text):
        names += re.findall(r"\b([A-Za-z]\w+)\s*=", body)
    names += re.findall(r"\bconstexpr \w+ ([A-Z]\w+) =", text)
    structs = {}
    for struct, body in re.findall(r"\bstruct (\w+) \{([^}]*)\}", text):
        lines = [line for line in body.split(";") if line.strip()]
        fields = [re.sub(r"\[.*\]$", "", line.split()[-1]) for line in lines]
        # What is reserved in one release is a field in the next.
        structs[struct] = [f.lstrip("*") for f in fields if f != "reserved"]
    return names, structs
