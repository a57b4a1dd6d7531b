"""Triton's interpreter, for tests of the CUDA kernels."""

import os
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _loops_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a scalar argument bound a loop: numpy 2.4 makes no number of an array of shape (1,)."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        from triton.runtime import interpreter

        patch = interpreter._patch_lang_tensor

        def patched(tensor: Any, scope: Any) -> None:
            patch(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

        monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
