from ._api import Pool
from .profile import Profile

def profile_of(pool: Pool) -> Profile: ...
