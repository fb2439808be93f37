from ._api import Pool
from .profile import Profile

SETTINGS: tuple[str, ...]

def profile_of(pool: Pool) -> Profile: ...
