from ._api import Pool
from .leaks import Leaks

def leaks_of(pool: Pool) -> Leaks: ...
