# SPDX-License-Identifier: Apache-2.0
"""Lets torch's wheel for Linux be imported where CUDA's libraries, gigabytes of them, are not installed.

    python torch_without_cuda.py

The wheel's libraries are linked to those of CUDA, and load no other way; on a machine without a GPU nothing of them is
ever used. This puts, beside torch, a small library in the place of each: it has the functions that torch names, and
each of them says that there is no device. Where torch can be imported already nothing is done. Needs a C compiler and
binutils.
"""

import collections
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

NO_DEVICE = 100  # cudaErrorNoDevice; any error to the other libraries
OF_CUDA = re.compile(r"lib(cu|nccl|nv)")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def can_import():
    return subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode == 0


def wanted(libraries):
    """What the libraries need of CUDA's: by library its symbol versions, and by version ("" for none) the symbols."""
    needed, defined = collections.defaultdict(set), set()
    symbols = collections.defaultdict(set)
    for library in libraries:
        headers = run("objdump", "-p", library)
        for name in re.findall(r"NEEDED\s+(\S+)", headers):
            if OF_CUDA.match(name):
                needed[name] |= set()
        for name, versions in re.findall(r"required from (\S+):\n((?:    0x.*\n)+)", headers):
            if OF_CUDA.match(name):
                needed[name] |= set(re.findall(r"\S+$", versions, re.MULTILINE))
        for line in run("nm", "-D", library).splitlines():
            kind, symbol = line.split()[-2:]
            name, _, version = symbol.partition("@")
            if kind == "U":
                symbols[version.lstrip("@")].add(name)
            elif kind not in "wv":
                defined.add(name)
    symbols[""] = {name for name in symbols[""] - defined if re.match("cu|nccl|nv", name)}
    return needed, symbols


def source_of(names):
    lines = []
    for name in sorted(names):
        if re.search("Error(String|Name)|error_string", name, re.IGNORECASE):
            lines.append(f'const char *{name}(void) {{ return "no CUDA device"; }}')
        else:
            lines.append(f"int {name}(void) {{ return {NO_DEVICE}; }}")
    return "\n".join([*lines, "extern int nothing;", ""])


def make(path, versions, symbols):
    """A library that has the symbols under their versions; one without versions has all that name none."""
    names = set().union(*(symbols[version] for version in versions)) if versions else symbols[""]
    script = "".join(f"{v} {{ {''.join(f'{n};' for n in sorted(symbols[v]))} }};\n" for v in sorted(versions))
    with tempfile.TemporaryDirectory() as folder:
        source, exports = pathlib.Path(folder, "stub.c"), pathlib.Path(folder, "exports")
        source.write_text(source_of(names))
        exports.write_text(script or "{ global: *; };\n")
        linked = [f"-Wl,-soname,{path.name}", f"-Wl,--version-script={exports}"]
        run("cc", "-w", "-fno-builtin", "-shared", "-fPIC", *linked, "-o", path, source)


def main():
    folder = pathlib.Path(sysconfig.get_paths()["platlib"], "torch", "lib")
    if not folder.is_dir():
        sys.exit("torch_without_cuda: torch is not installed")
    if can_import():
        return
    own = [path for path in sorted(folder.glob("lib*.so*")) if not OF_CUDA.match(path.name)]
    needed, symbols = wanted(own)
    for name, versions in sorted(needed.items()):
        make(folder / name, versions, symbols)
    if not can_import():
        sys.exit("torch_without_cuda: torch cannot be imported all the same")


if __name__ == "__main__":
    main()
