"""The bridge without a server."""

from tests.support import triton

triton.install()
