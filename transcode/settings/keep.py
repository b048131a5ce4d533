"""`--keep`: a condition on the columns of a table, such as `motion > 0.2 and label in ('run', 'jump')`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from vidprep.formats.errors import SettingsError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from pyarrow.compute import Expression

COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
}
LONGEST = 10_000
GRAMMAR = "give columns, numbers and 'texts' with < <= > >= == != in, and, or, not"


def check_condition(text: str) -> str:
    """Return a condition. Raises SettingsError if it is none."""
    _parse(text)
    return text


def names_in(text: str) -> set[str]:
    """Return the columns that a condition names. Raises SettingsError if it is none."""
    _parse(text)
    return {node.id for node in ast.walk(ast.parse(text.strip(), mode="eval")) if isinstance(node, ast.Name)}


def rows_kept(text: str, columns: Mapping[str, pa.Array], num_rows: int, path: str) -> npt.NDArray[np.bool_]:
    """Return (N,) for which rows a condition holds. It does not hold for a row without a value of a column that it needs.

    Args:
        text: The condition.
        columns: Columns of the table by name.
        num_rows: Number of rows.
        path: The table, for messages.

    Raises:
        SettingsError: A column is not there, or is compared with values of another type.
    """
    import numpy as np
    import pyarrow as pa

    if missing := sorted(names_in(text) - columns.keys()):
        raise SettingsError(f"<keep>: {path} has no column {missing[0]}", keep=text)
    table = pa.table({**columns, "": pa.array(np.arange(num_rows))})
    try:
        kept = table.filter(_parse(text))[""].to_numpy()
    except (pa.ArrowException, TypeError) as error:
        why = "it compares a column with a value of another type, or names a column that is neither true nor false"
        raise SettingsError(f"<keep>: {why} ({str(error).strip().partition(chr(10))[0]})", keep=text) from error
    found = np.zeros(num_rows, np.bool_)
    found[kept] = True
    return found


def _parse(text: str) -> Expression:
    """Return Arrow's expression of a condition. Raises SettingsError if it is none."""
    try:
        if len(text) > LONGEST:
            raise ValueError("it is too long")
        return _condition(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise SettingsError(f"<keep>: {why}; {GRAMMAR}", keep=text[:100]) from None


def _condition(node: ast.expr) -> Expression:
    """Return the expression of a condition. Raises ValueError for anything else."""
    import pyarrow.compute as pc

    match node:
        case ast.BoolOp():
            join = operator.and_ if isinstance(node.op, ast.And) else operator.or_
            return reduce(join, map(_condition, node.values))
        case ast.UnaryOp(op=ast.Not()):
            return ~_condition(node.operand)
        case ast.Compare():
            sides = pairwise([node.left, *node.comparators])
            return reduce(operator.and_, (_compare(op, *both) for op, both in zip(node.ops, sides, strict=True)))
        case ast.Name():
            return pc.field(node.id)
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is no condition")


def _compare(op: ast.cmpop, left: ast.expr, right: ast.expr) -> Expression:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(op, ast.In | ast.NotIn):
        if not isinstance(right, ast.Tuple | ast.List | ast.Set) or not right.elts:
            raise ValueError("`in` needs values such as ('a', 'b')")
        side, within = _side(left), [_value(each) for each in right.elts]
        known = pc.if_else(side.is_valid(), side.isin(within), pa.scalar(None, pa.bool_()))
        return ~known if isinstance(op, ast.NotIn) else known
    compare = COMPARISONS[type(op)]
    for value, column in ((right, left), (left, right)):
        if isinstance(value, ast.Constant) and value.value is None:  # as `label == None` asks
            return _side(column).is_valid() if compare is operator.ne else _side(column).is_null()
    if isinstance(op, ast.Is | ast.IsNot):
        raise ValueError("`is` goes with None only")
    made: Expression = compare(_side(left), _side(right))
    return made


def _side(node: ast.expr) -> Expression:
    import pyarrow.compute as pc

    return pc.field(node.id) if isinstance(node, ast.Name) else pc.scalar(_value(node))


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -_value(node.operand)
    if not isinstance(node, ast.Constant) or not isinstance(node.value, bool | int | float | str | None):
        raise ValueError(f"{ast.unparse(node)!r} is neither a column nor a value")
    return node.value
