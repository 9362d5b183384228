"""Count the lines of code that a reader meets between ``learn()`` of an algorithm and its gradient.

    python scripts/lines_on_the_path.py                    # a line for each algorithm
    python scripts/lines_on_the_path.py sac ppo --files    # and one for each file
    python scripts/lines_on_the_path.py sac --symbols      # and one for each function, class and constant
    python scripts/lines_on_the_path.py sac --run          # what a run calls, instead of what names may lead to
    python scripts/lines_on_the_path.py sac --run --everything  # with what NOT_FOLLOWED leaves out

**What a run calls** (``--run``) is exact. A real run with bare defaults (``TINY`` makes what would take minutes
smaller) is watched from the call of ``learn()`` to the end of its second update. Every function of the package that is
called counts whole, whichever of its branches is taken, and so do the fields of its class. Not counted: imports; what
belongs to ``NOT_FOLLOWED``, and whatever that calls in its turn; constants of modules. Nothing is due to be evaluated,
logged or saved before the updates, so none of it is met; and updates run eagerly, as in every short run, so compiled
graphs and kernels are not met either.

**What names may lead to** is static and needs nothing installed; it errs upwards. From the roots (the managed class's
``learn`` and the algorithm's entry in ``SPECS`` of its trainer) it follows every name to the function, class or
constant of the package that it stands for:

- ``self.x`` leads to ``x`` of every class reached that inherits from this one, ``super().x`` to the next one in order;
- ``anything.x`` leads to ``x`` of every class reached, since types are not inferred;
- strings lead to methods too, where they are fields of a class (``PARTS = ("_learn",)``) or given to ``getattr``;
- a class counts with its fields, its special methods and ``forward``; other methods count when something leads there.

Annotations lead nowhere. ``NOT_FOLLOWED`` and ``NOT_CALLED`` list what does not belong to the path: checkpoints and
files, logging, evaluation, videos, environments. In both counts, a line counts if it is neither blank nor comment nor
docstring.

*Own lines* are those of ``algorithms/X.py`` and of X's trainer together, reached or not.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tempfile
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent / "src" / "rl_training"
NOT_FOLLOWED = (  # modules, and all below them
    "artifacts", "base.errors", "base.files", "base.options", "base.state", "data.dataset_files", "envs",
    "experiment.checkpointing", "experiment.migrations", "experiment.registry", "experiment.runs",
    "runtime.evaluation", "runtime.saving", "runtime.workflows", "tracking",
)  # fmt: skip
NOT_CALLED = (  # methods, of any class
    "_open", "_restore", "_save", "checkpoint_state", "load_state_dict", "state_dict",
    "__copy__", "__deepcopy__", "__getstate__", "__reduce__", "__repr__", "__setstate__",
)  # fmt: skip
UPDATES = 2  # of a run that is watched: the first may set up what the second finds
TINY: dict[str, dict[str, Any]] = {"dreamer": {"size": "nano", "batch_size": 3, "sequence_length": 8}}
Definition = ast.FunctionDef | ast.ClassDef | ast.stmt
Lines = set[tuple[str, int]]  # module and number


@dataclass(frozen=True)
class Symbol:
    """A function, class, method or constant: ``runtime.run``, ``Run.drive``."""

    module: str
    name: str


@dataclass
class Module:
    """One file: its definitions, what its names stand for, and which of its lines are code."""

    name: str
    path: Path
    tree: ast.Module
    code: set[int]
    definitions: dict[str, Definition] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)  # local name: module and name there, or ""


class Package:
    """Every file of a package, parsed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, Module] = {}
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            tree = ast.parse(path.read_text())
            self.modules[name] = module = Module(name, path, tree, code_lines(path.read_text(), tree))
            for node in tree.body:
                module.definitions.update(dict.fromkeys(defined_names(node), node))
            module.imports = self.imports(tree)

    def imports(self, node: ast.AST) -> dict[str, tuple[str, str]]:
        """What the imports of the package below a node bind, at any depth."""
        found: dict[str, tuple[str, str]] = {}
        for part in ast.walk(node):
            if isinstance(part, ast.ImportFrom) and part.module and part.module.split(".")[0] == self.root.name:
                home = part.module.partition(".")[2]
                for alias in part.names:
                    below = f"{home}.{alias.name}".lstrip(".")
                    file = (self.root / below.replace(".", "/")).with_suffix(".py")
                    found[alias.asname or alias.name] = (below, "") if file.exists() else (home, alias.name)
        return found

    def resolve(self, module: str, name: str) -> Symbol | None:
        """The definition that a name in a module stands for, through any number of imports."""
        for _ in range(10):
            if module not in self.modules:
                return None
            if name in self.modules[module].definitions:
                return Symbol(module, name)
            if name not in self.modules[module].imports:
                return None
            module, name = self.modules[module].imports[name]
        return None

    def bases(self, symbol: Symbol) -> list[Symbol]:
        """A class and what it inherits from, nearest first (depth first, each once)."""
        found = [symbol]
        node = self.modules[symbol.module].definitions[symbol.name]
        for base in getattr(node, "bases", []):
            inner = base.value if isinstance(base, ast.Subscript) else base
            home = self.resolve(symbol.module, inner.id) if isinstance(inner, ast.Name) else None
            if home is not None and isinstance(self.modules[home.module].definitions[home.name], ast.ClassDef):
                found += [base for base in self.bases(home) if base not in found]
        return found

    def followed(self, module: str, not_followed: tuple[str, ...]) -> bool:
        """Whether a module belongs to the path."""
        return not any(module == name or module.startswith(f"{name}.") for name in not_followed)

    def fields(self, symbol: Symbol) -> Lines:
        """The lines of a class without its methods."""
        module = self.modules[symbol.module]
        node = module.definitions[symbol.name]
        methods = [part for part in getattr(node, "body", []) if isinstance(part, ast.FunctionDef)]  # overloads too
        inside = {line for method in methods for line in span_of(method)}
        return {(symbol.module, n) for n in module.code & set(span_of(node)) - inside}

    def whole(self, module: str, node: ast.AST) -> Lines:
        """The lines of code of a part of a module."""
        return {(module, line) for line in span_of(node) if line in self.modules[module].code}

    def methods(self, symbol: Symbol) -> dict[str, ast.FunctionDef]:
        """The methods that a class itself defines."""
        node = self.modules[symbol.module].definitions[symbol.name]
        return {part.name: part for part in getattr(node, "body", []) if isinstance(part, ast.FunctionDef)}


def defined_names(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines, imports aside."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """The lines that hold code: neither blank nor comment nor docstring."""
    silent = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


class Walk:
    """What is reached from the roots of one algorithm."""

    def __init__(self, package: Package, not_followed: tuple[str, ...] = NOT_FOLLOWED) -> None:
        self.package, self._not_followed = package, not_followed
        self.lines: dict[Symbol, Lines] = {}
        self._classes: dict[Symbol, list[Symbol]] = {}  # classes reached, with their bases
        self._attributes: set[str] = set()  # names that are asked of any object
        self._own: set[tuple[Symbol, str, bool]] = set()  # of self in a class, or (True) of super()

    def start(self, symbol: Symbol, node: ast.AST) -> None:
        """Follow a root: a symbol, and the part of the tree that it stands for."""
        self._reach(symbol, node, None)
        self._settle()

    def _settle(self) -> None:
        """Follow attributes until nothing new is reached."""
        before = (-1, -1)
        while before != (len(self.lines), len(self._classes)):
            before = len(self.lines), len(self._classes)
            for order in list(self._classes.values()):
                for name in sorted(self._requested(order)):
                    self._method(order, name)
                for asker, name, above in sorted(self._own, key=str):
                    if above and asker in order:
                        self._method(order[order.index(asker) + 1 :], name)

    def _requested(self, order: list[Symbol]) -> set[str]:
        """The methods of a class, with its bases in ``order``, that something leads to."""
        names = {name for base in order for name in self.package.methods(base)}
        own = {name for asker, name, above in self._own if not above and asker in order}
        special = {name for name in names if name == "forward" or (name.startswith("__") and name.endswith("__"))}
        return (names & (self._attributes | own)) | special

    def _method(self, order: list[Symbol], name: str) -> None:
        """Follow a method to the first class in ``order`` that defines it."""
        owner = next((base for base in order if name in self.package.methods(base)), None)
        if owner is not None and name not in NOT_CALLED and self._followed(owner.module):
            self._reach(Symbol(owner.module, f"{owner.name}.{name}"), self.package.methods(owner)[name], owner)

    def _followed(self, module: str) -> bool:
        return self.package.followed(module, self._not_followed)

    def _reach(self, symbol: Symbol, node: ast.AST, cls: Symbol | None) -> None:
        """Count a symbol and follow what it names; ``cls`` is the class of a method."""
        if not self._followed(symbol.module):
            return
        if isinstance(node, ast.ClassDef):
            if symbol not in self._classes:
                self._classes[symbol] = self.package.bases(symbol)
                for base in self._classes[symbol]:
                    self._reach_fields(base)
        elif symbol not in self.lines:
            self.lines[symbol] = self.package.whole(symbol.module, node)
            self._follow(symbol.module, node, cls)

    def _reach_fields(self, symbol: Symbol) -> None:
        """Count a class without its methods: of a base class, those that are overridden may not be reached."""
        node = self.package.modules[symbol.module].definitions[symbol.name]
        if symbol in self.lines or not self._followed(symbol.module) or not isinstance(node, ast.ClassDef):
            return
        self.lines[symbol] = self.package.fields(symbol)
        for part in [*node.decorator_list, *node.body]:
            if not isinstance(part, ast.FunctionDef):
                self._follow(symbol.module, part, symbol)
                self._own |= {(symbol, text, False) for text in strings(part)}

    def _follow(self, module: str, node: ast.AST, cls: Symbol | None) -> None:
        """Follow the names and attributes below a node."""
        local = self.package.imports(node)
        for part in without_annotations(node):
            if isinstance(part, ast.Attribute):
                self._attribute(module, part, cls, local)
            elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "getattr":
                self._attributes |= set(strings(part.args[1]))
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                home, name = local.get(part.id, (module, part.id))
                found = self.package.resolve(home, name)
                if found is not None:
                    self._reach(found, self.package.modules[found.module].definitions[found.name], None)

    def _attribute(
        self, module: str, part: ast.Attribute, cls: Symbol | None, local: dict[str, tuple[str, str]]
    ) -> None:
        value = part.value
        if isinstance(value, ast.Name):
            home, name = local.get(value.id, self.package.modules[module].imports.get(value.id, ("", value.id)))
            if not name and home:  # a module's function
                found = self.package.resolve(home, part.attr)
                if found is not None:
                    self._reach(found, self.package.modules[found.module].definitions[found.name], None)
                return
            if value.id in ("self", "cls") and cls is not None:
                self._own.add((cls, part.attr, False))
                return
        above = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super"
        if above and cls is not None:
            self._own.add((cls, part.attr, True))
        elif not above:
            self._attributes.add(part.attr)


class Watch:
    """A profiler (``sys.setprofile``) that notes the functions of a package that are called."""

    def __init__(self, package: Package, not_followed: tuple[str, ...] = NOT_FOLLOWED) -> None:
        self.package, self._not_followed = package, not_followed
        self._modules = {str(module.path.resolve()): module.name for module in package.modules.values()}
        self._called: dict[CodeType, str | None] = {}  # with their modules; None: not followed
        self._left: FrameType | None = None  # within this call, nothing is followed

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and self._left is None:
            code = frame.f_code
            if code not in self._called:
                self._called[code] = self._module(code)
            if self._called[code] is None:
                self._left = frame
        elif event == "return" and frame is self._left:
            self._left = None

    def _module(self, code: CodeType) -> str | None:
        """The module of a function, "" for those of other packages, None for imports and what is not followed."""
        name = self._modules.get(code.co_filename, "")
        importing = code.co_name == "<module>" or code.co_filename.startswith("<frozen importlib")
        return name if not importing and self.package.followed(name, self._not_followed) else None

    @property
    def lines(self) -> dict[Symbol, Lines]:
        """The lines of every function that was called, and of the fields of its class."""
        found: dict[Symbol, Lines] = {}
        for code, name in self._called.items():
            for node in self.package.modules[name].tree.body if name else ():
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and code.co_firstlineno in span_of(node):
                    symbol = Symbol(str(name), node.name)
                    found[symbol] = self.package.whole(symbol.module, node)
                    if isinstance(node, ast.ClassDef):
                        found[symbol] = self.package.fields(symbol)
                        for method in self.package.methods(symbol).values():
                            if code.co_firstlineno in span_of(method):
                                part = Symbol(symbol.module, f"{node.name}.{method.name}")
                                found[part] = self.package.whole(symbol.module, method)
        return found


def span_of(node: Any) -> range:
    """The lines of a definition, decorators included."""
    first = min([node.lineno, *(part.lineno for part in getattr(node, "decorator_list", []))])
    return range(first, node.end_lineno + 1)


def strings(node: ast.AST) -> list[str]:
    """The strings below a node that could be names."""
    found = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return [text for text in found if text.isidentifier()]


def without_annotations(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, except annotations."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield from without_annotations(part)


def specs(package: Package) -> dict[str, tuple[Symbol, ast.AST]]:
    """The entry of each algorithm in ``SPECS`` of its trainer."""
    found: dict[str, tuple[Symbol, ast.AST]] = {}
    for module in package.modules.values():
        value = getattr(module.definitions.get("SPECS"), "value", None)
        if isinstance(value, ast.Dict):
            for key, entry in zip(value.keys, value.values):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found[key.value] = Symbol(module.name, f"SPECS.{key.value}"), entry
    return dict(sorted(found.items()))


def path_of(package: Package, algo: str, not_followed: tuple[str, ...] = NOT_FOLLOWED) -> Walk:
    """Everything on the path of one algorithm."""
    walk = Walk(package, not_followed)
    managed = Symbol("api.algorithms", "ManagedAlgorithm")
    walk.start(Symbol(managed.module, f"{managed.name}.learn"), package.methods(managed)["learn"])
    walk.start(*specs(package)[algo])
    return walk


def called_by(package: Package, algo: str, not_followed: tuple[str, ...] = NOT_FOLLOWED) -> Watch:
    """Everything that a run of one algorithm calls until it has learned."""
    import rl_training
    from rl_training.experiment.registry import get_algorithm_spec, get_entry

    if Path(rl_training.__file__).resolve().parent != package.root.resolve():
        sys.exit(f"{rl_training.__file__} is imported, not {package.root}: set PYTHONPATH")

    class Stop(rl_training.Callback):
        updates = 0

        def on_update_end(self, trainer: Any, result: Any) -> None:
            self.updates += 1
            if self.updates == UPDATES:
                sys.setprofile(None)
                trainer.request_stop("counted")

    watch, stop = Watch(package, not_followed), Stop()
    task = "CartPole-v1" if "discrete" in get_algorithm_spec(algo).actions else "Pendulum-v1"
    plain = {"log_interval": 10**9, "checkpoint_interval": 10**9, "eval_interval": 0, "compile": False}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = {"total_timesteps": 1_000, "eval_episodes": 1, "output_dir": folder, "progress": "off", "device": "cpu"}
        agent = getattr(rl_training, get_entry(algo).public)(task, **{**run, **plain, **TINY.get(algo, {})})
        sys.setprofile(watch)
        try:
            agent.learn(callbacks=[stop])
        finally:
            sys.setprofile(None)
    assert stop.updates >= UPDATES, f"{algo} made {stop.updates} updates"
    return watch


def own_lines(package: Package, algo: str) -> int:
    """All lines of code of an algorithm's file and its trainer."""
    trainer, _ = specs(package)[algo]
    return sum(len(package.modules[name].code) for name in (f"algorithms.{algo}", trainer.module))


def main(arguments: list[str] | None = None) -> int:
    """Print the counts; returns the exit code."""
    parser = argparse.ArgumentParser(description="Lines of code between learn() of an algorithm and its gradient.")
    parser.add_argument("algorithms", nargs="*", help="registry names (default: all)")
    parser.add_argument("--files", action="store_true", help="show the lines of each file")
    parser.add_argument("--symbols", action="store_true", help="show the lines of each function, class and constant")
    parser.add_argument("--run", action="store_true", help="count what a run calls, not what names may lead to")
    parser.add_argument("--everything", action="store_true", help="with checkpoints, files, logging, environments")
    parser.add_argument("--package", type=Path, default=ROOT, help="the package's folder")
    args = parser.parse_args(arguments)
    package = Package(args.package)
    known, how = specs(package), called_by if args.run else path_of
    for algo in args.algorithms or known:
        if algo not in known:
            parser.error(f"unknown algorithm {algo!r}; known: {', '.join(known)}")
        found = how(package, algo, () if args.everything else NOT_FOLLOWED).lines
        reached = {line for lines in found.values() for line in lines}
        print(f"{algo:8} {len(reached):5} lines on the path, {own_lines(package, algo):4} of its own")
        if args.files:
            for module, number in Counter(module for module, _ in reached).most_common():
                print(f"  {number:5} {module}")
        if args.symbols:
            for symbol, lines in sorted(found.items(), key=lambda item: -len(item[1])):
                print(f"  {len(lines):5} {symbol.module}.{symbol.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
