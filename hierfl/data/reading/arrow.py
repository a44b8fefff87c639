"""The cells of a parquet or Arrow file, as text: what is sure of a csv is sure of them, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from io import BytesIO
from typing import Any

from ...errors import UserError
from ..readers.limits import check_size, reading
from .cells import Cells
from .options import Reading

#: how parquet files begin, Arrow files, and Arrow streams such as those of saved Hugging Face data sets
PARQUET, ARROW, STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
#: options that say how text is written
OF_TEXT = ("sep", "decimal", "thousands", "encoding")


def is_arrow(content: bytes) -> bool:
    """Whether a file's bytes are of one of these forms."""
    return content.startswith((PARQUET, ARROW, STREAM))


def arrow_cells(data: str, content: bytes, options: Reading) -> Cells:
    """The cells of a file; a missing value is an empty one.

    Args:
        data: what the file is called.
        content: its bytes.
        options: how tables are read; of these files nothing is said of their text.

    Raises:
        UserError: without pyarrow, for a damaged file, and columns of lists or pictures.
    """
    if flags := [name for name in OF_TEXT if getattr(options, name)]:
        raise UserError(f"{data} is no text: {flags[0]} says nothing of it")
    table = arrow_table(data, content)
    columns = [table.column(k).to_pylist() for k in range(table.num_columns)]
    return cells_of_columns(data, dict(zip(map(str, table.column_names), columns, strict=True)))


def arrow_table(data: str, content: bytes) -> Any:
    """A file as pyarrow has it.

    Args:
        data: what the file is called.
        content: its bytes.

    Raises:
        UserError: without pyarrow, and for a damaged file.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(f"{data} needs pyarrow: pip install 'hierfl[parquet]'; or save it as csv") from error
    with reading(data, "parquet or Arrow file"):
        if content.startswith(PARQUET):
            table = parquet.read_table(BytesIO(content))
        elif content.startswith(ARROW):
            table = arrow.ipc.open_file(BytesIO(content)).read_all()
        else:
            table = arrow.ipc.open_stream(BytesIO(content)).read_all()
        check_size(data, table.nbytes, "the unpacked file")
    return table


def cells_of_columns(data: str, columns: Mapping[str, Sequence[Any]]) -> Cells:
    """Columns of values as cells.

    Raises:
        UserError: for none, and columns of lists or pictures.
    """
    rows = len(next(iter(columns.values()), ()))
    if not rows:
        raise UserError(f"{data} has no rows")
    cells = [[_text(value, name, data) for value in column] for name, column in columns.items()]
    decimals = frozenset(name for name, column in columns.items() if not any(isinstance(v, str) for v in column))
    return Cells(list(columns), cells, range(1, rows + 1), decimals)


def _text(value: Any, name: str, data: str) -> str:
    """A value as a csv has it; numbers to their last digit."""
    if value is None:
        return ""
    if isinstance(value, float):
        return "" if value != value else repr(value)
    if isinstance(value, datetime | date):
        return value.isoformat(" ") if isinstance(value, datetime) else value.isoformat()
    if isinstance(value, bool | int | str):
        return str(value)
    if type(value).__name__ == "Decimal":
        return format(value, "f")
    raise UserError(f"{data}: column {name!r} holds {type(value).__name__} entries, and a table's are numbers or text")
