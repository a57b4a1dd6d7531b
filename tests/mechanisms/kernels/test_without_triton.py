import sys

import pytest

from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.kernels import cuda


def test_a_cuda_device_without_triton_is_not_used_and_the_user_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    cuda.available.cache_clear()
    with pytest.warns(UserWarning, match="pip install triton"):
        assert not cuda.available()
    cuda.available.cache_clear()
    with pytest.raises(ParameterError, match="pip install triton"):
        cuda.require_triton()
