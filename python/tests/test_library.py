# SPDX-License-Identifier: Apache-2.0
"""What the modules say of the C library is what its headers say."""

import ctypes
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import pagedcl
from pagedcl import _library, arrays

ROOT = pathlib.Path(__file__).parents[2]
STRUCTS = {
    name: value
    for name, value in vars(_library).items()
    if isinstance(value, type) and issubclass(value, _library.Struct) and value is not _library.Struct
}


def c_name(name):
    return "pagedcl_" + re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Sizes and offsets as a C compiler has them, by "struct" and "struct.field"."""
    if not (ROOT / "include" / "pagedcl").is_dir() or not shutil.which("cc"):
        pytest.skip("needs a C compiler and the headers of the source tree")
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({c_name(name)}));')
        for field, *_ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({c_name(name)}, {field}));')
    for name in pagedcl.Status.__members__:
        lines.append(f'printf("Status.{name} %zu\\n", (size_t)PAGEDCL_{name});')
    for name in arrays.DTYPES:
        lines.append(f'printf("dtype.{name} %zu\\n", (size_t)PAGEDCL_{name.upper()});')
    folder = tmp_path_factory.mktemp("layout")
    source = folder / "layout.c"
    source.write_text(
        "#include <pagedcl/pagedcl.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    program = folder / "layout"
    subprocess.run(["cc", "-std=c11", "-I", ROOT / "include", "-o", program, source], check=True)
    output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in output.splitlines())}


@pytest.mark.parametrize("name", STRUCTS)
def test_structs_are_laid_out_as_in_c(measured, name):
    struct = STRUCTS[name]
    if struct._fields_[0][0] == "struct_size":  # then C may have fields behind ours: it is told where ours end
        assert ctypes.sizeof(struct) <= measured[name]
    else:
        assert ctypes.sizeof(struct) == measured[name]
    for field, *_ in struct._fields_:
        assert getattr(struct, field).offset == measured[f"{name}.{field}"], field


def test_every_status_and_dtype_has_its_value(measured):
    for status in pagedcl.Status:
        assert measured[f"Status.{status.name}"] == status
        assert _library.lib.status_name(status).decode() == f"PAGEDCL_{status.name}"
    for name, value in arrays.DTYPES.items():
        assert measured[f"dtype.{name}"] == value


def test_no_status_is_missing():
    header = (ROOT / "include" / "pagedcl" / "status.h").read_text()
    assert set(re.findall(r"X\((\w+), \d+", header)) == set(pagedcl.Status.__members__)


def test_version_is_that_of_the_header():
    header = (ROOT / "include" / "pagedcl" / "version.h").read_text()
    assert f'"{pagedcl.__version__}"' in header


def test_a_library_that_is_not_there_is_named():
    code = "import pagedcl"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PAGEDCL_LIBRARY": "/nowhere/libpagedcl.so", "PYTHONPATH": str(pathlib.Path(pagedcl.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "/nowhere/libpagedcl.so" in result.stderr
