"""Builds the native kernels, one shared library per instruction set level, all from the same
sources.

Everything else about the package stands in pyproject.toml. A level that does not compile is left
out with a warning: the program runs on what is there, and on torch when nothing is. The libraries
are loaded through ctypes.
"""

import platform
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

FOLDER = Path("app/kernels/cpu/csrc")
COMMON = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-g0",
    "-Wno-psabi",
]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [
    *AVX2,
    *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni", "bf16")),
    *(f"-mamx-{part}" for part in ("tile", "bf16", "int8")),
]
IS_X86_64 = platform.machine().lower() in ("x86_64", "amd64")
LEVELS = {"avx512": AVX512, "avx2": AVX2, "portable": []} if IS_X86_64 else {"portable": []}


class BuildLevels(build_ext):
    """Compiles the sources of a level side by side, into a folder of its own."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the file's name without the interpreter's tag: Python does not import it."""
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Compile and link one level, unless the source tree has it from an earlier install."""
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        kept = FOLDER.parent / target.name
        if not self.force and not newer_group([*ext.sources, *ext.depends, __file__], str(kept)):
            if kept.resolve() != target.resolve():
                shutil.copy2(kept, target)
            return
        folder = Path(self.build_temp) / ext.name
        folder.mkdir(parents=True, exist_ok=True)

        def compile_one(source: str) -> list[str]:
            objects: list[str] = self.compiler.compile(
                [source], output_dir=str(folder), extra_postargs=ext.extra_compile_args
            )
            return objects

        with ThreadPoolExecutor(cpu_count() or 1) as pool:
            objects = [name for part in pool.map(compile_one, ext.sources) for name in part]
        self.compiler.link_shared_object(
            objects, str(target), extra_postargs=ext.extra_link_args, target_lang="c++"
        )


def _level(name: str, flags: list[str]) -> Extension:
    return Extension(
        f"app.kernels.cpu._native_{name}",
        sources=sorted(map(str, FOLDER.glob("*.cpp"))),
        depends=sorted(map(str, FOLDER.glob("*.h"))),
        extra_compile_args=[*COMMON, *flags],
        extra_link_args=["-pthread"],
        language="c++",
        optional=True,
    )


setup(
    ext_modules=[] if sys.platform == "win32" else [_level(*item) for item in LEVELS.items()],
    cmdclass={"build_ext": BuildLevels},
)
