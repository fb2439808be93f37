"""A diagnosis as text, and with tables for a terminal that has rich."""

import re
import textwrap
from dataclasses import dataclass

from .diagnosis import HOLDERS_SHOWN, NAMES, sizes_text
from .sizes import format_size

__all__ = ["Points", "renderables_of", "text_of"]

WIDTH = 110
SIZE = re.compile(r"(\d) ([KMGTP]?i?B)\b")
MARKS = {True: "+", False: "-", None: " "}


@dataclass(frozen=True)
class Points:
    """Texts below a title, numbered."""

    title: str
    texts: list

    def __str__(self):
        lines = [f"{self.title}:"]
        for number, text in enumerate(self.texts, start=1):
            lines += _wrapped(text, f"  {number}. ")
        return "\n".join(lines)

    def __rich__(self):
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(self.title), title_justify="left", show_header=False)
        for _ in range(2):
            table.add_column(overflow="fold")
        for number, text in enumerate(self.texts, start=1):
            table.add_row(str(number), Text(text))
        return table


def text_of(diagnosis):
    """Return a diagnosis as plain text of several lines."""
    lines = [title_of(diagnosis), *_wrapped(numbers_of(diagnosis), "  "), "", str(causes_of(diagnosis))]
    if diagnosis.holders:
        lines += ["", f"{holders_title(diagnosis)}:", *_aligned(holder_rows(diagnosis))]
    if diagnosis.advice:
        lines += ["", f"{advice_title(diagnosis)}:"]
        for advice in diagnosis.advice:
            lines += _wrapped(advice_text(advice), f"  {MARKS[advice.helps]} ")
    return "\n".join(lines)


def renderables_of(diagnosis):
    """Yield what rich prints for a diagnosis."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    yield Text(title_of(diagnosis), style="bold")
    yield Padding(Text(numbers_of(diagnosis)), (0, 0, 0, 2))
    yield causes_of(diagnosis)
    if diagnosis.holders:
        holders = Table(title=Text(holders_title(diagnosis)), title_justify="left", show_header=False)
        for justify in ("right", "left", "left", "left", "right", "left"):
            holders.add_column(justify=justify, overflow="fold")
        for row in holder_rows(diagnosis):
            holders.add_row(*map(Text, row))
        yield holders
    if diagnosis.advice:
        advices = Table(title=Text(advice_title(diagnosis)), title_justify="left", show_header=False)
        for _ in range(2):
            advices.add_column(overflow="fold")
        for advice in diagnosis.advice:
            advices.add_row(MARKS[advice.helps], Text(advice_text(advice)))
        yield advices


def title_of(diagnosis):
    """Return what is said first."""
    return f"Out of memory: no block of {format_size(diagnosis.requested)} could be had."


def numbers_of(diagnosis):
    """Return the figures in a line."""
    figures = (("capacity", diagnosis.capacity), ("reserved", diagnosis.reserved), ("in use", diagnosis.used),
               ("asked for", diagnosis.live), ("free", diagnosis.free), ("largest free", diagnosis.largest_free),
               ("pending", diagnosis.pending))
    return ", ".join(f"{name} {format_size(nbytes)}" for name, nbytes in figures)


def causes_of(diagnosis):
    """Return the causes as Points."""
    return Points("Why", [cause_text(cause) for cause in diagnosis.causes])


def holders_title(diagnosis):
    """Return what the holders are headed by."""
    return "What has the memory, by a sample" if diagnosis.sampled else "What has the memory"


def advice_title(diagnosis):
    """Return what the advice is headed by."""
    if any(advice.helps is not None for advice in diagnosis.advice):
        return "What helps (+ and - were tried by replays)"
    return "What may help"


def cause_text(cause):
    """Return a cause in words."""
    return f"{NAMES[cause.kind]} ({cause.certainty}): {cause.text}."


def advice_text(advice):
    """Return an advice in words, and what a replay said of it."""
    text = f"{advice.setting}: {advice.text}"
    if advice.helps and advice.capacity is not None:
        return f"{text}. Replayed: the trace fits in {format_size(advice.capacity)}."
    if advice.helps:
        return f"{text}. Replayed: the trace goes through."
    if advice.helps is None:
        return f"{text}."
    if advice.capacity is not None:
        return (f"{text}. Replayed: fails at row {advice.failed_row} with this capacity; the trace would need "
                f"{format_size(advice.capacity)}.")
    return f"{text}. Replayed: fails at row {advice.failed_row}."


def holder_rows(diagnosis):
    """Return the largest holders as rows of text."""
    used = diagnosis.used or 1
    return [_holder_row(holder, used) for holder in diagnosis.holders[:HOLDERS_SHOWN]]


def _holder_row(holder, used):
    what = f"block{'s' * (holder.blocks != 1)} of {sizes_text(holder)}"
    stream = "" if holder.stream is None else f"stream {holder.stream}"
    where = ""
    if holder.stack:
        where = " < ".join(holder.stack[:3])
    elif holder.oldest is not None:
        where = f"since row {holder.oldest}"
    return (str(holder.blocks), what, f"{holder.tier} tier", stream, f"{format_size(holder.used)}, "
            f"{holder.used / used:.0%}", where)


def _aligned(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].rjust(widths[0])]
        cells += [cell.ljust(width) for cell, width in zip(row[1:], widths[1:])]
        yield ("  " + "  ".join(cells)).rstrip()


def _wrapped(text, start):
    """Return lines; a number and its unit are in one."""
    lines = textwrap.wrap(SIZE.sub("\\1\xa0\\2", text), WIDTH, initial_indent=start, subsequent_indent=" " * len(start),
                          break_long_words=False, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]
