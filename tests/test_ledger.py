"""The live blocks of a recorded program, against a dict."""

from hypothesis import given
from hypothesis import strategies as st

from cuda_pool._testing import Ledger

from .models import effort

KEYS = st.one_of(st.integers(1, 40).map(lambda number: number << 8), st.integers(1, (1 << 64) - 1))


def check(ledger, model):
    keys = ledger.keys
    assert ledger.count == len(model) == sum(key != 0 for key in keys) <= ledger.room // 2
    assert {key: ledger.find(key) for key in keys if key} == model


@effort(100)
@given(st.lists(st.tuples(KEYS, st.booleans()), max_size=300))
def test_against_a_dict(steps):
    ledger, model = Ledger(), {}
    for number, (key, wanted) in enumerate(steps):
        assert ledger.find(key) == model.get(key)
        if key not in model:
            ledger.open(key, number)
            model[key] = number
        elif not wanted:
            ledger.close(key)
            del model[key]
    check(ledger, model)


def test_full_to_the_brim_and_empty_again():
    """So many that the table grows, and that searches run into each other."""
    ledger, model = Ledger(), {}
    for number in range(2000):
        ledger.open(number * 256 + 256, number)
        model[number * 256 + 256] = number
    check(ledger, model)
    for key in list(model)[::2]:
        ledger.close(key)
        del model[key]
        assert ledger.find(key) is None
    check(ledger, model)
    for key in list(model):
        ledger.close(key)
    assert ledger.count == 0 and set(ledger.keys) == {0}
