"""Turn raw videos into a verified training set. Each function is a command of `vidprep` under the same name."""

import sys
from types import ModuleType
from typing import Any

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


class _Callable(ModuleType):
    """Lets `vidprep.transcode("raw/", "ready/")` be what its first reader takes it for."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.transcode(*arguments, **keywords)


sys.modules[__name__].__class__ = _Callable
