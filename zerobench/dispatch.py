"""The base of the modes that look at every operation at torch's dispatcher."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A TorchDispatchMode without the switch that keeps torch.compile out of it.

    torch turns its compiler off and on again around every operation that a mode sees. That takes longer than the
    operation, and nothing is compiled here.
    """

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)  # type: ignore[no-untyped-call]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
