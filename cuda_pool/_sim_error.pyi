from typing import Any

ERRORS: tuple[tuple[Any, ...], ...]
