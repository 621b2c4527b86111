"""Expressions of `expect` and `columns`: arithmetic and comparisons over metric names, never run as code.

Allowed are numbers, dotted metric names (`summary.ttft.p99`), items (`replicas[0].utilization`,
`classes["chat"].e2e.p99`), `+ - * / **`, comparisons, `and` `or` `not`, `abs` `min` `max`, and, where a study provides
rows, `row(key=value, ...)` followed by a metric name. The text is parsed with `ast`; every other kind of node is
refused. Numbers are computed as float.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sim.errors import InputError, RunError, nearest

Names = Mapping[str, Any]
RowPicker = Callable[[dict[str, Any]], Names]

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: dict[str, Callable[[list[float | bool]], float]] = {
    "abs": lambda values: abs(values[0]),
    "min": min,
    "max": max,
}
_MAX_LENGTH = 2000
_ALLOWED = "numbers, metric names, + - * / **, comparisons, and/or/not, abs, min, max, row(...)"


class MissingMetric(RunError):
    """A metric that an expression names is null or does not exist; the message has its name."""


def check(text: str) -> None:
    """`InputError` if `text` is not an expression of this language; names are not looked up."""
    _check(_parse(text), text)


def evaluate(text: str, names: Names, row: RowPicker | None = None) -> float | bool:
    """The value of `text`, with metric names looked up in `names` (nested mappings, or flat with dotted keys).

    `row` answers `row(key=value, ...)` of a study with the names of the picked row. Raises `InputError` for a bad
    expression, `MissingMetric` for a metric that is null or unknown, `RunError` where arithmetic fails.
    """
    tree = _parse(text)
    _check(tree, text)
    try:
        return _Evaluator(text, names, row).value(tree)
    except ZeroDivisionError:
        raise RunError(f"'{text}': division by zero") from None
    except OverflowError:
        raise RunError(f"'{text}': a number is too large") from None


def failures(expectations: Sequence[str], names: Names, row: RowPicker | None = None) -> list[str]:
    """One line for every expectation that does not hold: the expression and the values it compared."""
    found = []
    for text in expectations:
        try:
            if not evaluate(text, names, row):
                found.append(f"{text}: does not hold ({_explain(text, names, row)})")
        except RunError as error:
            found.append(f"{text}: {error}")
    return found


def _parse(text: str) -> ast.expr:
    if len(text) > _MAX_LENGTH:
        raise InputError(f"'{text[:40]}...' is too long for an expression (more than {_MAX_LENGTH} characters)")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "it cannot be parsed"
        raise InputError(f"'{text}' is not an expression: {reason}; allowed: {_ALLOWED}") from None


def _check(node: ast.expr, text: str) -> None:
    """Refuse every node that `_Evaluator` does not know, so that a typing error is found before a long run."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise _refused(node, text)
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        _check_all((node.left, node.right), text)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd | ast.Not):
        _check(node.operand, text)
    elif isinstance(node, ast.BoolOp):
        _check_all(node.values, text)
    elif isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
        _check_all((node.left, *node.comparators), text)
    elif _is_function(node):
        _check_all(node.args, text)  # type: ignore[attr-defined]
    else:
        _check_name(node, text)


def _check_all(nodes: Sequence[ast.expr], text: str) -> None:
    for node in nodes:
        _check(node, text)


def _check_name(node: ast.expr, text: str) -> None:
    base, path = _split(node, text)
    if isinstance(base, ast.Call):
        _row_arguments(base, text)
        if not path:
            raise InputError(f"'{text}': row(...) must be followed by a metric name, as in row(x=1).ttft.p99")


def _is_function(node: ast.expr) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS):
        return False
    return bool(node.args) and not node.keywords and (node.func.id != "abs" or len(node.args) == 1)


def _refused(node: ast.expr, text: str) -> InputError:
    return InputError(f"'{text}': '{ast.unparse(node)}' is not allowed here; allowed: {_ALLOWED}")


def _split(node: ast.expr, text: str) -> tuple[ast.expr, list[str | int]]:
    """A name chain as its base (a Name or a `row(...)` call) and the path after it."""
    path: list[str | int] = []
    base = node
    while isinstance(base, ast.Attribute | ast.Subscript):
        path.insert(0, base.attr if isinstance(base, ast.Attribute) else _index(base, text))
        base = base.value
    if isinstance(base, ast.Name):
        return base, [base.id, *path]
    if isinstance(base, ast.Call) and isinstance(base.func, ast.Name) and base.func.id == "row":
        return base, path
    raise _refused(node, text)


def _index(node: ast.Subscript, text: str) -> str | int:
    if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str | int):
        return node.slice.value
    raise _refused(node, text)


def _row_arguments(call: ast.Call, text: str) -> dict[str, Any]:
    if call.args or not call.keywords:
        raise InputError(f"'{text}': row(...) takes key=value arguments")
    arguments: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise _refused(call, text)
        arguments[keyword.arg] = _literal(keyword.value, text)
    return arguments


def _literal(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name):
        return {"true": True, "false": False, "null": None}.get(node.id, node.id)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _refused(node, text) from None


class _Evaluator:
    """Walks a checked tree."""

    def __init__(self, text: str, names: Names, row: RowPicker | None) -> None:
        self.text = text
        self.names = names
        self.row = row

    def value(self, node: ast.expr) -> float | bool:
        if isinstance(node, ast.Constant):
            return float(node.value)  # type: ignore[arg-type]
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.BoolOp):
            return self._boolean(node)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if _is_function(node):
            assert isinstance(node, ast.Call)
            assert isinstance(node.func, ast.Name)
            return _FUNCTIONS[node.func.id]([self.value(argument) for argument in node.args])
        return self._metric(node)

    def _binary(self, node: ast.BinOp) -> float:
        result = _BINARY[type(node.op)](self.value(node.left), self.value(node.right))
        if isinstance(result, complex) or math.isnan(result):
            raise RunError(f"'{self.text}': '{ast.unparse(node)}' has no real value")
        return result

    def _unary(self, node: ast.UnaryOp) -> float | bool:
        operand = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return not operand
        return -operand if isinstance(node.op, ast.USub) else operand

    def _boolean(self, node: ast.BoolOp) -> bool:
        answers = (bool(self.value(value)) for value in node.values)
        return all(answers) if isinstance(node.op, ast.And) else any(answers)

    def _compare(self, node: ast.Compare) -> bool:
        left = self.value(node.left)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.value(comparator)
            if not _COMPARE[type(op)](left, right):
                return False
            left = right
        return True

    def _metric(self, node: ast.expr) -> float | bool:
        base, path = _split(node, self.text)
        names = self.names
        if isinstance(base, ast.Call):
            if self.row is None:
                raise InputError(f"'{self.text}': row(...) is only known in a study")
            names = self.row(_row_arguments(base, self.text))
        return _number(_look_up(names, path, ast.unparse(node)), ast.unparse(node))


def _look_up(names: Any, path: Sequence[str | int], shown: str) -> Any:
    found = names
    for depth, part in enumerate(path):
        rest = ".".join(str(p) for p in path[depth:])
        if isinstance(found, Mapping) and rest in found:
            return found[rest]
        if found is None:
            raise MissingMetric(f"metric '{shown}' is null")
        if not _has(found, part):
            known = [str(key) for key in found] if isinstance(found, Mapping) else []
            raise MissingMetric(f"there is no metric '{shown}'{nearest(str(part), known)}")
        found = found[part]
    return found


def _has(group: Any, part: str | int) -> bool:
    if isinstance(group, Mapping):
        return part in group
    return isinstance(group, Sequence) and isinstance(part, int) and 0 <= part < len(group)


def _number(value: Any, shown: str) -> float | bool:
    if value is None:
        raise MissingMetric(f"metric '{shown}' is null")
    if isinstance(value, bool):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise MissingMetric(f"'{shown}' is not a number but {_kind(value)}") from None
    if math.isnan(number):
        raise MissingMetric(f"metric '{shown}' is null")
    return number


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a group of metrics: {', '.join(str(key) for key in value)}"
    return "a list" if isinstance(value, list | tuple) else f"the text {value!r}"


def _explain(text: str, names: Names, row: RowPicker | None) -> str:
    """`name = value` for every metric in a failed expectation."""
    evaluator = _Evaluator(text, names, row)
    shown: dict[str, str] = {}
    for node in _metric_nodes(_parse(text)):
        try:
            value = evaluator.value(node)
            shown[ast.unparse(node)] = str(value) if isinstance(value, bool) else f"{value:.6g}"
        except MissingMetric:
            shown[ast.unparse(node)] = "null"
    return ", ".join(f"{name} = {value}" for name, value in shown.items()) or "it has no metric"


def _metric_nodes(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.Attribute | ast.Subscript | ast.Name):
        return [node]
    found: list[ast.expr] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) and not (isinstance(node, ast.Call) and child is node.func):
            found += _metric_nodes(child)
    return found
