"""The optional C extension; everything else about the package is in pyproject.toml.

Without a working compiler the package installs all the same, and numpy gives the same bits.
"""

import sysconfig
from glob import glob

from setuptools import Extension, setup

# Interpreters without a lock have no stable interface yet, and wheels that claim it are refused.
stable = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            "sottovoce._native",
            sources=[
                f"src/native/{name}.c"
                for name in (
                    "module",
                    "buffers",
                    "sampling",
                    "extension",
                    "seeded",
                    "server",
                    "packing",
                    "sums",
                    "ladder_tables",
                    "row_source",
                    "rows",
                    "workers",
                    "gather",
                    "row_sums",
                    "keys",
                    "portable",
                    "avx2",
                    "avx512",
                    "neon",
                )
            ],
            depends=sorted(glob("src/native/*.h")),
            # Contracted multiply-adds would round differently on machines that have them.
            extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if stable else [],
            py_limited_api=stable,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if stable else {},
)
