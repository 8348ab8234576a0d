"""MethodWriter: replaces all that numba cannot compile in a method of a Meta-World environment.

`translation` describes the arrays `s` and the index `n` of the result.
"""

from __future__ import annotations

import ast
from types import ModuleType
from typing import Any, Protocol

FUNCTIONS = {
    "np.linalg.norm": "norm",
    "np.hstack": "hstack",
    "np.clip": "clip",
    "np.abs": "absolute",
    "float": "number",
}
"""Function -> function of `package_terms` that numba compiles for all arguments that occur."""
OPERATORS = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
"""Operator -> function of `package_terms` for numbers and vectors."""
TERMS = ("tolerance", "hamacher_product", "rect_prism_tolerance")
"""Functions of the package's module `reward_utils`, which `package_terms` implements for numbers."""
ELEMENTS = ("body", "site", "geom", "joint")
"""Kinds of elements of MuJoCo's data."""


class Untranslatable(Exception):
    """Raised for source that the translation does not cover; the message contains it."""


class Translator(Protocol):
    """What a `MethodWriter` needs: expressions for what a method reads, and the translation of other methods."""

    env: Any
    touch: bool

    def read(self, element: str, quantity: str) -> str:
        """Returns the expression for a quantity of an element, such as "body:hand" and "xpos"."""

    def attribute(self, name: str) -> str:
        """Returns the expression for an attribute of the environment."""

    def method(self, name: str) -> None:
        """Translates another method or property."""


class MethodWriter(ast.NodeTransformer):
    """Replaces all that numba cannot compile in the body of one method.

    Args:
        translator: The translation of the task, which is extended.
        owner: Class that defines the method.
        module: Module of `owner`.
    """

    def __init__(self, translator: Translator, owner: type, module: ModuleType) -> None:
        self.translator, self.owner, self.module = translator, owner, module
        self.elements: dict[str, str] = {}

    # -- statements ---------------------------------------------------------------------------------------------------

    def visit_Assert(self, node: ast.Assert) -> None:
        """Removes assertions."""

    def visit_Delete(self, node: ast.Delete) -> None:
        """Removes ``del``, which marks unused arguments."""

    def visit_Expr(self, node: ast.Expr) -> Any:
        """Removes docstrings."""
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> Any:
        """Keeps only the rewards v2 where a method distinguishes versions."""
        if ast.unparse(node.test) == "self.reward_function_version == 'v2'":
            return [new for statement in node.body for new in as_statements(self.visit(statement))]
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Removes the annotation of an assignment."""
        assert node.value is not None
        return self.visit(ast.Assign([node.target], node.value, lineno=node.lineno))

    def visit_Assign(self, node: ast.Assign) -> Any:
        """Remembers names that stand for an element of the simulation, and writes attributes to the arrays."""
        target, element = node.targets[0], _element(node.value)
        if element and isinstance(target, ast.Name):
            self.elements[target.id] = element
            return None
        if isinstance(target, ast.Attribute) and _of_self(target):
            return ast.Assign([self._attribute(target.attr)], self.visit(node.value), lineno=node.lineno)
        return self.generic_visit(node)

    # -- expressions --------------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> Any:
        """Replaces calls of methods, of numpy and of scipy."""
        name = ast.unparse(node.func)
        if name == "self.get_body_com":
            return self._read(f"body:{ast.literal_eval(node.args[0])}", "xpos")
        if name == "self._get_site_pos":
            return _call("np.copy", [self._read(f"site:{ast.literal_eval(node.args[0])}", "xpos")])
        if name in FUNCTIONS:
            return _call(FUNCTIONS[name], [self.visit(argument) for argument in node.args])
        if name.removeprefix("reward_utils.") in TERMS:
            return self._term(name.removeprefix("reward_utils."), node)
        if isinstance(node.func, ast.Attribute):
            inner, attribute = node.func.value, node.func.attr
            if attribute == "item":
                return self.visit(inner)
            if isinstance(inner, ast.Call) and ast.unparse(inner.func) == "Rotation.from_matrix":
                return _call(attribute, [self.visit(inner.args[0])])
            if isinstance(inner, ast.Name) and inner.id == "self":
                return self._method(attribute, node, ["s", "n"])
            if isinstance(inner, ast.Name) and isinstance(vars(self.module).get(inner.id), type):
                return self._method(attribute, node, [])
        if name == "min" and len(node.args) == 1:
            return _call("np.min", [_call("np.array", [self.visit(node.args[0])])])
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """Replaces quantities of the simulation, attributes and properties of the environment, and constants."""
        named = self.elements.get(node.value.id, "") if isinstance(node.value, ast.Name) else ""
        element = _element(node.value) or named
        if element:
            return self._read(element, node.attr)
        if ast.unparse(node) == "self.touching_main_object":
            self.translator.touch = True
            return ast.Constant(True)
        if _of_self(node):
            member = getattr(type(self.translator.env), node.attr, None)
            if isinstance(member, property):
                return self._method(node.attr, ast.Call(node, [], []), ["s", "n"])
            return ast.Constant(member) if isinstance(member, (int, float)) else self._attribute(node.attr)
        if isinstance(node.value, ast.Name):
            constant = getattr(vars(self.module).get(node.value.id), node.attr, None)
            if isinstance(constant, (int, float)):
                return ast.Constant(constant)
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        """Replaces arithmetic, whose operands may be vectors."""
        left, right = self.visit(node.left), self.visit(node.right)
        if type(node.op) not in OPERATORS:
            return ast.BinOp(left, node.op, right)
        return _call(OPERATORS[type(node.op)], [left, right])

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """Replaces ``a += b`` by ``a = add(a, b)``."""
        value = ast.BinOp(ast.Name(ast.unparse(node.target), ast.Load()), node.op, node.value)
        return self.visit(ast.Assign([node.target], value, lineno=node.lineno))

    def visit_Compare(self, node: ast.Compare) -> Any:
        """Replaces ``self.name is None``: the arrays have NaN for None."""
        if isinstance(node.ops[0], ast.Is) and isinstance(node.left, ast.Attribute):
            return _call("np.isnan", [self._attribute(node.left.attr)])
        return self.generic_visit(node)

    def visit_List(self, node: ast.List) -> Any:
        """Makes lists of integers arrays, because they are indices."""
        if all(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in node.elts):
            return _call("np.array", [node])
        return self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> Any:
        """Makes ``[f(i) for i in range(2)]`` the tuple ``(f(0), f(1))``."""
        loop = node.generators[0]
        if isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) == "range":
            entry, name = ast.unparse(self.visit(node.elt)), ast.unparse(loop.target)
            count = ast.literal_eval(loop.iter.args[0])
            return ast.Tuple([_Substitution(name, value).visit(_parsed(entry)) for value in range(count)], ast.Load())
        return self.generic_visit(node)

    # -- replacements -------------------------------------------------------------------------------------------------

    def _read(self, element: str, quantity: str) -> ast.expr:
        return _parsed(self.translator.read(element, quantity))

    def _attribute(self, name: str) -> ast.expr:
        return _parsed(self.translator.attribute(name))

    def _term(self, name: str, node: ast.Call) -> ast.Call:
        """Returns the call of a term of rewards; the shape of a tolerance becomes a part of its name."""
        keywords = {str(keyword.arg): keyword.value for keyword in node.keywords}
        if name == "tolerance":
            name += "_" + ast.literal_eval(keywords.pop("sigmoid"))
        call = _call(name, [self.visit(argument) for argument in node.args])
        call.keywords = [ast.keyword(keyword, self.visit(value)) for keyword, value in keywords.items()]
        return call

    def _method(self, name: str, node: ast.Call, first: list[str]) -> ast.Call:
        """Returns the call of a translated method with the arguments `first` and those of `node`."""
        self.translator.method(name)
        call = _call(name, [*map(_parsed, first), *(self.visit(argument) for argument in node.args)])
        call.keywords = [ast.keyword(keyword.arg, self.visit(keyword.value)) for keyword in node.keywords]
        return call


class _Substitution(ast.NodeTransformer):
    """Replaces a name by a number."""

    def __init__(self, name: str, value: int) -> None:
        self.name, self.value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.value) if node.id == self.name else node


def as_statements(result: Any) -> list[ast.stmt]:
    """Returns what a visit of a statement returned as a list: a list, a statement, or None for a removed statement."""
    return result if isinstance(result, list) else [] if result is None else [result]


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _call(name: str, arguments: list[ast.expr]) -> ast.Call:
    return ast.Call(_parsed(name), arguments, [])


def _of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _element(node: ast.AST) -> str:
    """Returns "body:hand" for the expression ``self.data.body("hand")``, and "" for all others."""
    if isinstance(node, ast.Call) and len(node.args) == 1:
        kind = ast.unparse(node.func).removeprefix("self.data.")
        if kind in ELEMENTS:
            return f"{kind}:{ast.literal_eval(node.args[0])}"
    return ""
