"""Version and build identity, shown by --version and sent as `system_fingerprint`.

The fingerprint keeps llama.cpp's form `b<build>-<what>`, which clients and its test-suite expect.
`__version__` stays a literal, so that the packager reads it without importing the package.
"""

__version__ = "0.1.0"


def build_number(version: str) -> int:
    """Return one number that grows with the version: "0.1.0" → 100, "1.2.3" → 10203."""
    major, minor, patch = (int(part) for part in version.split("."))
    return major * 10_000 + minor * 100 + patch


BUILD_NUMBER = build_number(__version__)
BUILD_INFO = f"b{BUILD_NUMBER}-{__version__}"
