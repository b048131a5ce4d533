"""`--keep`: a condition on the columns of a table, such as `motion > 0.2 and label in ('run', 'jump')`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
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
    names_in(text)
    return text


def names_in(text: str) -> set[str]:
    """Return the columns that a condition names. Raises SettingsError if it is none."""
    return {node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)}


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
        kept = table.filter(_expression(_parsed(text)))[""].to_numpy()
    except (pa.ArrowException, TypeError) as error:
        raise SettingsError(f"<keep>: {str(error).strip().partition(chr(10))[0]}", keep=text) from error
    found = np.zeros(num_rows, np.bool_)
    found[kept] = True
    return found


def _parsed(text: str) -> ast.expr:
    try:
        if len(text) > LONGEST:
            raise ValueError("it is too long")
        tree = ast.parse(text.strip(), mode="eval").body
        _check(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise SettingsError(f"<keep>: {why}; {GRAMMAR}", keep=text[:100]) from None
    return tree


def _check(node: ast.AST) -> None:
    """Raise ValueError for anything but conditions on columns."""
    match node:
        case ast.BoolOp():
            parts = node.values
        case ast.UnaryOp(op=ast.Not()):
            parts = [node.operand]
        case ast.Compare():
            for op, side in zip(node.ops, node.comparators, strict=True):
                _check_sides(op, side)
            _check_value(node.left)
            parts = []
        case ast.Name():
            parts = []
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is no condition")
    for part in parts:
        _check(part)


def _check_sides(op: ast.cmpop, side: ast.expr) -> None:
    if isinstance(op, ast.Is | ast.IsNot) and not (isinstance(side, ast.Constant) and side.value is None):
        raise ValueError("`is` goes with None only")
    if not isinstance(op, ast.In | ast.NotIn):
        _check_value(side)
        return
    if not isinstance(side, ast.Tuple | ast.List | ast.Set) or not side.elts:
        raise ValueError("`in` needs values such as ('a', 'b')")
    for each in side.elts:
        _check_value(each)
        if isinstance(each, ast.Name):
            raise ValueError("`in` needs values, not columns")


def _check_value(node: ast.expr) -> None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    if not isinstance(node, ast.Name) and not (
        isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str | None)
    ):
        raise ValueError(f"{ast.unparse(node)!r} is neither a column nor a value")


def _expression(node: ast.expr) -> Expression:
    """Return Arrow's expression of a condition that was checked."""
    import pyarrow.compute as pc

    match node:
        case ast.BoolOp():
            first, *others = map(_expression, node.values)
            for other in others:
                first = first & other if isinstance(node.op, ast.And) else first | other
            return first
        case ast.UnaryOp():
            return ~_expression(node.operand)
        case ast.Compare():
            sides = [node.left, *node.comparators]
            parts = [_compare(op, *sides[place : place + 2]) for place, op in enumerate(node.ops)]
            for part in parts[1:]:
                parts[0] = parts[0] & part
            return parts[0]
        case _:
            assert isinstance(node, ast.Name)
            return pc.field(node.id)


def _compare(op: ast.cmpop, left: ast.expr, right: ast.expr) -> Expression:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(op, ast.In | ast.NotIn):
        assert isinstance(right, ast.Tuple | ast.List | ast.Set)
        side = pc.field(left.id) if isinstance(left, ast.Name) else pc.scalar(_value(left))
        within = pc.if_else(
            side.is_valid(), side.isin([_value(each) for each in right.elts]), pa.scalar(None, pa.bool_())
        )
        return ~within if isinstance(op, ast.NotIn) else within
    one, other = (pc.field(side.id) if isinstance(side, ast.Name) else _value(side) for side in (left, right))
    for value, column in ((one, other), (other, one)):
        if value is None:  # as `label == None` asks
            return column.is_valid() if COMPARISONS[type(op)] is operator.ne else column.is_null()
    if not isinstance(left, ast.Name) and not isinstance(right, ast.Name):
        one = pc.scalar(one)
    made: Expression = COMPARISONS[type(op)](one, other)
    return made


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand)
    assert isinstance(node, ast.Constant)
    return node.value
