"""Mistakes that a person could have written into a Python file: where they go, and what the text becomes.

A mistake replaces one stretch of the text and leaves the rest as it is. Annotations, docstrings, messages and what only
raises or warns are left alone; so is what cannot matter (swapped arguments of ``max``, a device) and what costs memory
but changes no number (a missing ``no_grad``).
"""

from __future__ import annotations

import ast
import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Mutant", "attributes_of", "mutants_of"]

OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"), ast.Pow: ("**", "*"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
    ast.And: ("and", "or"), ast.Or: ("or", "and"), ast.Lt: ("<", ">="), ast.LtE: ("<=", ">"), ast.Gt: (">", "<="),
    ast.GtE: (">=", "<"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
}  # fmt: skip
BOUNDARIES = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
REDUCTIONS = {
    "min": ["max"], "max": ["min"], "amin": ["amax", "mean"], "amax": ["amin", "mean"], "mean": ["sum"],
    "sum": ["mean"],
    "minimum": ["maximum"], "maximum": ["minimum"], "argmax": ["argmin"], "argmin": ["argmax"], "any": ["all"],
    "all": ["any"], "floor": ["ceil"], "ceil": ["floor"], "cumsum": ["cumprod"], "cumprod": ["cumsum"],
    "std": ["var"], "var": ["std"],
}  # fmt: skip
TWINS = [
    ("obs", "next_obs"), ("terminated", "truncated"), ("terminations", "truncations"), ("actions", "next_actions"),
    ("prior", "posterior"), ("logp", "next_logp"), ("mean", "logvar"), ("low", "high"), ("dones", "truncations"),
]  # fmt: skip
TARGET = re.compile("_?(target|slow)_")  # a target network is named after the online one
COPIES = {"clone", "copy", "deepcopy"}
DROPPED = {*COPIES, "detach", "clamp", "clip", "clamp_min", "clamp_max", "abs", "square", "sqrt"}
SYMMETRIC = {
    "min", "max", "minimum", "maximum", "mse_loss", "smooth_l1_loss", "isclose", "allclose", "array_equal", "gcd",
    "isinstance", "issubclass", "logaddexp", "zip", "getattr", "hasattr", "setattr", "descend",
}  # fmt: skip
QUIET = {"warn", "print", "cast", "TypeVar", "ParamSpec", "NewType", "getLogger", "namedtuple", "field", "ConfigDict"}
IDLE = {"device", "stacklevel", "strict", "encoding", "exist_ok", "parents", "non_blocking"}  # keywords
AXES = {"dim", "axis", "dims"}


@dataclass(frozen=True)
class Mutant:
    """One mistake: bytes ``start`` to ``end`` of a file become ``new``."""

    file: str  # relative to the package
    where: str  # function or class around it, by its dotted name
    text: str  # the line it begins on, as it was
    kind: str
    old: str
    new: str
    start: int
    end: int
    line: int
    lines: tuple[int, int]  # first and last line of the statement, which tests must reach
    once: bool  # the statement runs once in a process: when the module is imported, or in a cached function
    nth: int = 0  # of several with all of this in common

    @property
    def change(self) -> str:
        """What a reader is shown, and what a list of ignored mutants names."""
        return f"{self.old} → {self.new or '(nothing)'}"

    @property
    def id(self) -> str:
        """Stays the same when other lines of the file change."""
        words = "\0".join([self.file, self.where, self.text, self.change, str(self.nth)])
        return hashlib.sha256(words.encode()).hexdigest()[:10]

    def apply(self, source: bytes) -> bytes:
        """The text of the file with the mistake in it."""
        new = self.new.encode()
        return source[: self.start] + new + source[self.end :]


def attributes_of(source: bytes) -> set[str]:
    """Names of attributes that are assigned somewhere in a file."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
    return {node.attr for node in nodes if isinstance(node.ctx, ast.Store)}


def mutants_of(file: str, source: bytes, attributes: set[str]) -> list[Mutant]:
    """Every mutant of a file; ``attributes`` are those assigned anywhere in the package."""
    finder = _Finder(file, source, attributes)
    finder.visit(finder.tree)
    seen: dict[str, int] = {}
    numbered = []
    for mutant in sorted(finder.found.values(), key=lambda m: (m.start, m.end, m.new)):
        nth = seen[mutant.id] = seen.get(mutant.id, -1) + 1
        numbered.append(replace(mutant, nth=nth))
    return numbered


def _name(node: ast.AST) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _only_raises(body: list[ast.stmt]) -> bool:
    quiet = [
        s for s in body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and _name(s.value.func) in QUIET
    ]
    return all(isinstance(statement, ast.Raise) or statement in quiet for statement in body)


class _Finder(ast.NodeVisitor):
    """Walks over a file's tree and collects its mutants, by place and new text."""

    def __init__(self, file: str, source: bytes, attributes: set[str]) -> None:
        self.file, self.source, self.attributes = file, source, attributes
        self.tree = ast.parse(source)
        self.found: dict[tuple[int, int, str], Mutant] = {}
        self._starts = [0, *(match.end() for match in re.finditer(b"\n", source))]
        self._lines = source.decode().split("\n")
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self._words = set(re.findall(r"\w+", source.decode()))
        self._strings = {
            n.value for n in ast.walk(self.tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
        }
        known = {node.attr for node in ast.walk(self.tree) if isinstance(node, ast.Attribute)} & attributes
        self._targets = [
            (online, target)
            for target in known
            if TARGET.match(target)
            for online in known
            if not TARGET.match(online) and f"_{online}".endswith(TARGET.sub("_", target))
        ]
        self._names: dict[ast.AST, set[str]] = {}
        self._scopes: list[ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef] = []
        self._statement: tuple[int, int] = (1, 1)

    # places ----------------------------------------------------------------------------------------------------------

    def _start(self, node: Any) -> int:
        place: int = self._starts[node.lineno - 1] + node.col_offset
        return place

    def _end(self, node: Any) -> int:
        place: int = self._starts[node.end_lineno - 1] + node.end_col_offset
        return place

    def _text(self, node: ast.AST) -> str:
        return self.source[self._start(node) : self._end(node)].decode()

    def _whole(self, node: ast.AST) -> str:
        """The text of an expression that may stand anywhere: in brackets, if it needs them."""
        simple = isinstance(node, ast.Call | ast.Name | ast.Attribute | ast.Subscript | ast.Constant | ast.Tuple)
        return self._text(node) if simple else f"({self._text(node)})"

    def _add(self, kind: str, start: int, end: int, new: str) -> None:
        old = " ".join(self.source[start:end].decode().split())
        if old == new:
            return
        line = bisect_right(self._starts, start)
        functions = [scope for scope in self._scopes if not isinstance(scope, ast.ClassDef)]
        cached = any("cache" in ast.unparse(decorator) for f in functions for decorator in f.decorator_list)
        where = ".".join(scope.name for scope in self._scopes)
        text = self._lines[line - 1].strip()
        self.found.setdefault(
            (start, end, new),
            Mutant(self.file, where, text, kind, old, new, start, end, line, self._statement, cached or not functions),
        )

    def _put(self, kind: str, node: ast.AST, new: str) -> None:
        self._add(kind, self._start(node), self._end(node), new)

    def _operator(self, kind: str, left: ast.AST, right: ast.AST, symbol: str, new: str) -> None:
        """Replace the operator that stands between two operands."""
        start, end = self._end(left), self._start(right)
        gap = self.source[start:end].decode()
        match = re.search(re.escape(symbol).replace(r"\ ", r"\s+"), gap)
        if match and "#" not in gap:
            self._add(kind, start + match.start(), start + match.end(), new)

    # statements ------------------------------------------------------------------------------------------------------

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            self._statement = self._header(node)
        super().visit(node)

    def _header(self, node: ast.stmt) -> tuple[int, int]:
        """First and last line of a statement, without the statements in it."""
        body = getattr(node, "body", None)
        last = node.end_lineno or node.lineno
        return node.lineno, max(node.lineno, body[0].lineno - 1) if body else last

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in ("__repr__", "__str__"):
            return
        self._statement = self._header(node)
        for default in [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]:
            self.visit(default)
        self._scopes.append(node)
        for statement in node.body:
            self.visit(statement)
        self._scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scopes.append(node)
        for statement in node.body:
            self.visit(statement)
        self._scopes.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(_name(target) in ("__all__", "__slots__") for target in node.targets):
            return
        inside = self._scopes and self._scopes[-1].name not in ("__init__", "__new__")
        if inside and all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._put("removed", node, "pass")
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._put("removed", node, "pass")
        if type(node.op) in OPERATORS:
            symbol, new = OPERATORS[type(node.op)]
            self._operator("operator", node.target, node.value, f"{symbol}=", f"{new}=")
        self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):  # a docstring
            return
        call = node.value
        if (
            isinstance(call, ast.Call)
            and _name(call.func) not in QUIET
            and "super().__init__" not in self._text(call.func)
        ):
            self._put("removed", node, "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        function = self._scopes[-1] if self._scopes else None
        returns = getattr(function, "returns", None)
        covered = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant)
        if (
            isinstance(returns, ast.Name)
            and returns.id == "bool"
            and node.value
            and not isinstance(node.value, covered)
        ):
            self._put("condition", node.value, f"not ({self._text(node.value)})")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Messages are not ours to judge."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Assertions tell the type checker what is so."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Nor are texts."""

    # conditions ------------------------------------------------------------------------------------------------------

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in self._text(node.test) or "__name__" in self._text(node.test):
            return
        if _only_raises(node.body):  # one mutant for a check: that it is not made
            self._put("check", node.test, "False")
        else:
            self._forced(node.test)
            self.visit(node.test)
        for statement in [*node.body, *node.orelse]:
            self.visit(statement)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._forced(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._put("condition", node.test, "False")
            self.visit(node.test)
        for statement in node.body:
            self.visit(statement)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._put("condition", test, "True")
        self.generic_visit(node)

    def _forced(self, test: ast.expr) -> None:
        if not any(isinstance(part, ast.NamedExpr) for part in ast.walk(test)):
            self._put("condition", test, "True")
            self._put("condition", test, "False")

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        symbol, new = OPERATORS[type(node.op)]
        for left, right in zip(node.values, node.values[1:]):
            self._operator("condition", left, right, symbol, new)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        parent = self._parents[node]
        decides = isinstance(parent, ast.If | ast.IfExp | ast.While) and parent.test is node
        operands = [node.left, *node.comparators]
        continuous = "random" in self._text(node) or isinstance(parent, ast.Attribute | ast.Call)  # arrays, mostly
        continuous |= any(isinstance(getattr(o, "value", None), float) for o in operands)  # rarely met exactly
        for left, right, op in zip(operands, operands[1:], node.ops):
            symbol, opposite = OPERATORS[type(op)]
            if not (decides and len(node.ops) == 1):  # else the condition is forced to be true and false
                self._operator("comparison", left, right, symbol, opposite)
            if type(op) in BOUNDARIES and not continuous:
                self._operator("boundary", left, right, symbol, BOUNDARIES[type(op)])
        self.generic_visit(node)

    # arithmetic ------------------------------------------------------------------------------------------------------

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = any(
            isinstance(o, ast.JoinedStr) or isinstance(getattr(o, "value", 0), str) for o in (node.left, node.right)
        )
        types = isinstance(node.op, ast.BitOr) and (not self._scopes or "None" in self._text(node))
        if type(node.op) in OPERATORS and not texts and not types and not self._tiny(node.right):
            self._operator("operator", node.left, node.right, *OPERATORS[type(node.op)])
        self.generic_visit(node)

    def _tiny(self, node: ast.expr) -> bool:
        """A number against division by zero, whose sign changes nothing."""
        value = getattr(node, "value", None)
        return (isinstance(value, float) and abs(value) < 1e-4) or _name(node).strip("_") in ("eps", "epsilon", "EPS")

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        operand = node.operand
        if isinstance(node.op, ast.USub) and isinstance(operand, ast.Constant):
            self._negative(node, operand.value)
            return
        if isinstance(node.op, ast.Not | ast.USub | ast.Invert):
            kind = "condition" if isinstance(node.op, ast.Not) else "sign"
            self._put(kind, node, self._whole(operand))
        self.visit(operand)

    def _negative(self, node: ast.UnaryOp, value: object) -> None:
        """A sign that is dropped; as an axis or a place, -1 is the last one, and 0 the first."""
        parent = self._parents[node]
        if isinstance(parent, ast.Slice):
            return  # off by one
        axis = isinstance(parent, ast.Subscript | ast.Call | ast.Tuple)
        axis = axis or (isinstance(parent, ast.keyword) and parent.arg in AXES)
        if isinstance(value, int) and axis:
            self._put("constant", node, str(1 - value))
        else:
            self._put("sign", node, self._text(node.operand))

    def visit_Constant(self, node: ast.Constant) -> None:
        value, new = node.value, ""
        if isinstance(value, str):
            parent = self._parents[node]
            if isinstance(parent, ast.Subscript) or (isinstance(parent, ast.Call) and _name(parent.func) == "get"):
                for twin in self._twins(value):
                    if twin in self._strings:
                        self._put("twin", node, f'"{twin}"')
            return
        if isinstance(value, bool):
            new = str(not value)
        elif isinstance(value, int):
            new = str({0: 1, 1: 0}.get(value, value + 1 if value < 10 else 2 * value))
        elif isinstance(value, float):
            new = str(1.0 - value if value in (0.0, 1.0) else 0.01 if abs(value) < 1e-4 else 2 * value)
        if new:
            self._put("constant", node, new)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            if isinstance(part, ast.Slice):
                for bound, step in ((part.lower, "+"), (part.upper, "-")):
                    if bound is not None and not isinstance(bound, ast.Constant):
                        self._put("off by one", bound, f"{self._whole(bound)} {step} 1")
            self.visit(part)

    # names -----------------------------------------------------------------------------------------------------------

    def _twins(self, name: str) -> Iterator[str]:
        """What a name is mistaken for, among the names that the file has."""
        for pair in TWINS:
            if name in pair:
                other = pair[1 - pair.index(name)]
                if other in self._words:
                    yield other

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and self._scopes:
            around = next((s for s in reversed(self._scopes) if not isinstance(s, ast.ClassDef)), None)
            if around is not None and around not in self._names:
                inside = list(ast.walk(around))
                self._names[around] = {n.id for n in inside if isinstance(n, ast.Name)}
                self._names[around] |= {a.arg for a in inside if isinstance(a, ast.arg)}
            for twin in self._twins(node.id):
                if around is not None and twin in self._names[around]:
                    self._put("twin", node, twin)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        end = self._end(node)
        start = end - len(node.attr.encode())
        if isinstance(node.ctx, ast.Load):
            for twin in self._twins(node.attr):
                self._add("twin", start, end, twin)
            for online, target in self._targets:
                if node.attr in (online, target):
                    self._add("target", start, end, online if node.attr == target else target)
        self.visit(node.value)

    # calls -----------------------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node.func)
        if name in QUIET:
            return
        if name in ("opt", "Field"):  # an option: its default counts, its bounds and its meaning do not
            for value in node.args[:1]:
                self.visit(value)
            return
        self._renamed(node, name)
        if name in DROPPED:
            self._dropped(node, name)
        if name == "range":
            last = node.args[0] if len(node.args) == 1 else node.args[1]
            self._put("off by one", last, f"{self._whole(last)} - 1")
        elif name not in SYMMETRIC:
            self._swapped(node)
        for keyword in node.keywords:
            if keyword.arg and keyword.arg not in IDLE:
                self._without(node, keyword)
        self.visit(node.func)
        for value in node.args:
            self.visit(value)
        for keyword in node.keywords:
            if keyword.arg not in IDLE:
                self.visit(keyword.value)

    def _renamed(self, node: ast.Call, name: str) -> None:
        end = self._end(node.func)
        for other in REDUCTIONS.get(name, []):
            if isinstance(node.func, ast.Name) and other in ("mean", "std"):
                continue  # no such function of Python's own
            self._add("reduction", end - len(name), end, other)

    def _dropped(self, node: ast.Call, name: str) -> None:
        """The call is left out, and what it was made on stays: ``x.detach()`` or ``torch.clamp(x, 0, 1)`` is ``x``."""
        owner = getattr(node.func, "value", None)
        function = owner is None or _name(owner) in ("torch", "np", "copy", "math")
        if not function and node.args and name in COPIES:
            return  # a method of that name that does something else
        kept = node.args[0] if function and node.args else owner
        kind = "gradient" if name == "detach" else "copy" if name in COPIES else "dropped"
        if kept is not None and not isinstance(self._parents[node], ast.Expr):
            self._put(kind, node, self._whole(kept))

    def _swapped(self, node: ast.Call) -> None:
        for left, right in zip(node.args, node.args[1:]):
            words = [
                arg
                for arg in (left, right)
                if isinstance(arg, ast.Starred) or isinstance(getattr(arg, "value", 0), str)
            ]
            texts = self._text(left), self._text(right)
            if words or texts[0] == texts[1] or ast.GeneratorExp in (type(left), type(right)):
                continue
            between = self.source[self._end(left) : self._start(right)].decode()
            self._add("swapped", self._start(left), self._end(right), texts[1] + between + texts[0])

    def _without(self, node: ast.Call, keyword: ast.keyword) -> None:
        """The argument, and the comma that goes with it."""
        start, end = self._start(keyword), self._end(keyword)
        after = re.match(rb"\s*,\s*", self.source[end : self._end(node)])
        before = re.search(rb",\s*$", self.source[self._start(node) : start])
        if after:
            end += after.end()
        elif before:
            start -= len(before.group())
        self._add("keyword", start, end, "")
