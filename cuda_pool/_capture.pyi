from types import TracebackType
from typing import Protocol, SupportsIndex, TypeAlias, type_check_only

from typing_extensions import Self

@type_check_only
class _CudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

_Stream: TypeAlias = SupportsIndex | _CudaStream

class Capture:
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None,
                 *exception: BaseException | TracebackType | None) -> None: ...
    def release(self, stream: _Stream | None = None) -> None: ...
