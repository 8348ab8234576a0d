"""Translates the observation and the reward of a Meta-World task to Python functions that numba compiles.

The input is the source of the task's class in the metaworld package. The result computes the same values from arrays
(`RewardArrays`): what a method reads from the simulation becomes a slice of ``s.flat[n]``, and what a reset has set
becomes an entry of ``s.start[n]``, where `n` is the index of a simulation. Parts without influence on observation,
reward and success are removed.
"""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from powerband.recipes.metaworld.env import metaworld_private
from powerband.recipes.metaworld.env.threads.reward_terms import COMMON_PLACES

METHODS = ("_get_pos_objects", "_get_quat_objects", "_get_pos_goal", "evaluate_state")
"""Methods of a task from which an observation, a reward and a success are computed."""
SIZES = {"xpos": 3, "xquat": 4, "xmat": 9, "qpos": 1}
"""Quantity of an element of MuJoCo's data -> number of its values; joints are hinges or slides."""
FUNCTIONS = {"np.linalg.norm": "norm", "np.hstack": "hstack", "np.clip": "clip", "float": "number"}
"""Function -> function of `package_terms` that numba compiles for all arguments that occur."""
TERMS = ("tolerance", "hamacher_product", "rect_prism_tolerance")
"""Functions of the package's module `reward_utils`, which `package_terms` implements for numbers."""


class Untranslatable(Exception):
    """Raised for source that the translation does not cover; the message contains it."""


@dataclass
class Translation:
    """Observation and reward of one task as functions of arrays.

    Attributes:
        source: Definitions of the translated functions. Those of methods take the arrays `s` and the index `n` first.
        reads: (element, quantity), such as ("body:hand", "xpos"), -> index of its first place of three values.
        touch: True if a success also requires that the fingers touch the object, which `source` takes for granted.
        starts: Names of the attributes that a reset sets, in the order of ``s.start[n]``.
    """

    source: str = ""
    touch: bool = False
    reads: dict[tuple[str, str], int] = field(
        default_factory=lambda: {(element, "xpos"): place for place, element in enumerate(COMMON_PLACES)}
    )
    starts: list[str] = field(default_factory=lambda: ["_target_pos"])

    @property
    def places(self) -> int:
        """Number of places of three values."""
        return max(place + (SIZES[quantity] + 2) // 3 for (_, quantity), place in self.reads.items())

    def read(self, element: str, quantity: str) -> str:
        """Returns the expression for a quantity of an element, and gives it a place."""
        if quantity not in SIZES:
            raise Untranslatable(f"{element} {quantity}")
        first = 3 * self.reads.setdefault((element, quantity), self.places)
        return f"s.flat[n, {first}]" if quantity == "qpos" else f"s.flat[n, {first}:{first + SIZES[quantity]}]"

    def start(self, name: str) -> str:
        """Returns the expression for the three values of an attribute that a reset sets."""
        if name not in self.starts:
            self.starts.append(name)
        return f"s.start[n, {self.starts.index(name)}]"


def translate(env: Any) -> Translation:
    """Translates the methods `METHODS` of an environment of the metaworld package.

    Args:
        env: The environment, after a reset: the values of its attributes determine how they are read.

    Raises:
        Untranslatable: The source has a form that this file does not cover.
    """
    translation = Translation()
    functions: dict[str, str] = {}
    for name in METHODS:
        _translate_method(env, name, translation, functions)
    translation.source = "\n\n".join(f"@njit\n{function}" for function in functions.values())
    return translation


def _translate_method(env: Any, name: str, translation: Translation, functions: dict[str, str]) -> None:
    """Adds the translation of a method, and of the methods that it calls, to `functions`, callees first."""
    if name in functions:
        return
    owner, node = _definition(type(env), name)
    static = any(ast.unparse(decorator) == "staticmethod" for decorator in node.decorator_list)
    writer = _MethodWriter(env, owner, translation, functions)
    statements = _success_only(node.body) if name == "evaluate_state" else node.body
    body = [each for statement in statements for each in _as_list(writer.visit(statement))]
    arguments = node.args
    for argument in arguments.args:
        argument.annotation = None
    if not static:
        arguments.args[:1] = [ast.arg("s"), ast.arg("n")]
    function = ast.FunctionDef(name, arguments, body, [], lineno=1)
    functions[name] = ast.unparse(ast.fix_missing_locations(function))


def _definition(env_class: type, name: str) -> tuple[type, ast.FunctionDef]:
    """Returns the class that defines a method or a property of `env_class`, and a new syntax tree of the definition."""
    for owner in env_class.__mro__:
        if name in vars(owner):
            tree = ast.parse(_module_source(owner.__module__))
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and node.name == owner.__name__:
                    for member in node.body:
                        if isinstance(member, ast.FunctionDef) and member.name == name:
                            return owner, member
    raise Untranslatable(f"{env_class.__name__} has no method {name}")


@cache
def _module_source(module: str) -> str:
    return inspect.getsource(sys.modules[module])


def _as_list(result: Any) -> list[Any]:
    return result if isinstance(result, list) else [] if result is None else [result]


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _success_only(body: list[ast.stmt]) -> list[ast.stmt]:
    """Replaces the dict `info` of a method `evaluate_state` by its success, and removes what only the dict needs."""
    for index, statement in enumerate(body):
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            keys = [ast.literal_eval(key) for key in statement.value.keys if key is not None]
            success = statement.value.values[keys.index("success")]
            body[index] = ast.parse(f"success_flag = {ast.unparse(success)}").body[0]
            ends = ast.parse("return (reward, success_flag > 0)").body
            assert isinstance(body[-1], ast.Return) and ast.unparse(body[-1]) == f"return (reward, {ast.unparse(statement.targets[0])})"
            body[-1:] = ends
    while True:
        loaded = {
            node.id
            for statement in body
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        kept = [
            statement
            for statement in body
            if not (
                isinstance(statement, ast.Assign)
                and isinstance(statement.targets[0], ast.Name)
                and statement.targets[0].id not in loaded
            )
        ]
        if len(kept) == len(body):
            return body
        body = kept


class _MethodWriter(ast.NodeTransformer):
    """Replaces all that numba cannot compile in the body of one method."""

    def __init__(self, env: Any, owner: type, translation: Translation, functions: dict[str, str]) -> None:
        self.env, self.owner, self.translation, self.functions = env, owner, translation, functions
        self.module = sys.modules[owner.__module__]
        self.handles: dict[str, str] = {}

    # -- statements ----------------------------------------------------------------------------------------------

    def visit_Assert(self, node: ast.Assert) -> None:
        return None

    def visit_Delete(self, node: ast.Delete) -> None:
        return None

    def visit_Expr(self, node: ast.Expr) -> Any:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> Any:
        if ast.unparse(node.test) == "self.reward_function_version == 'v2'":
            return [each for statement in node.body for each in _as_list(self.visit(statement))]
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        assert node.value is not None
        return self.visit(ast.Assign([node.target], node.value, lineno=node.lineno))

    def visit_Assign(self, node: ast.Assign) -> Any:
        target, element = node.targets[0], _element(node.value)
        if element and isinstance(target, ast.Name):
            self.handles[target.id] = element
            return None
        if _self_attribute(target):
            value = self.visit(node.value)
            return ast.parse(f"{self._start(target.attr)} = {ast.unparse(value)}").body[0]
        return self.generic_visit(node)

    # -- expressions ---------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> Any:
        name = ast.unparse(node.func)
        if name in ("self.get_body_com", "self._get_site_pos"):
            kind = "body" if name == "self.get_body_com" else "site"
            read = self.translation.read(f"{kind}:{ast.literal_eval(node.args[0])}", "xpos")
            return _expression(read if kind == "body" else f"{read}.copy()")
        if isinstance(node.func, ast.Attribute):
            owner, attribute = node.func.value, node.func.attr
            if attribute == "item" and not node.args:
                return self.visit(owner)
            if attribute == "as_quat" and isinstance(owner, ast.Call) and ast.unparse(owner.func) == "Rotation.from_matrix":
                return ast.Call(ast.Name("as_quat", ast.Load()), [self.visit(owner.args[0])], [])
            if isinstance(owner, ast.Name) and owner.id == "self":
                return self._call(attribute, node, ["s", "n"])
            if isinstance(owner, ast.Name) and isinstance(getattr(self.module, owner.id, None), type):
                return self._call(attribute, node, [])
        if name in FUNCTIONS:
            return ast.Call(ast.Name(FUNCTIONS[name], ast.Load()), [self.visit(argument) for argument in node.args], [])
        term = name.removeprefix("reward_utils.")
        if term in TERMS:
            keywords = {keyword.arg: self.visit(keyword.value) for keyword in node.keywords}
            if term == "tolerance":
                term += "_" + ast.literal_eval(keywords.pop("sigmoid", ast.Constant("gaussian")))
            return ast.Call(
                ast.Name(term, ast.Load()),
                [self.visit(argument) for argument in node.args],
                [ast.keyword(key, value) for key, value in keywords.items()],
            )
        self.generic_visit(node)
        if name == "min" and len(node.args) == 1:
            return _expression(f"np.min(np.array({ast.unparse(node.args[0])}))")
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        element = _element(node.value)
        if isinstance(node.value, ast.Name):
            element = element or self.handles.get(node.value.id, "")
        if element:
            return _expression(self.translation.read(element, node.attr))
        if ast.unparse(node) == "self.touching_main_object":
            self.translation.touch = True
            return ast.Constant(True)
        if _self_attribute(node):
            member = getattr(self.owner, node.attr, None)
            if isinstance(member, property):
                return self._call(node.attr, ast.Call(node, [], []), ["s", "n"])
            if isinstance(member, (int, float)):
                return ast.Constant(member)
            return _expression(self._start(node.attr))
        if isinstance(node.value, ast.Name):
            found = getattr(getattr(self.module, node.value.id, None), node.attr, None)
            if isinstance(found, (int, float)):
                return ast.Constant(found)
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> Any:
        if isinstance(node.ops[0], ast.Is) and _self_attribute(node.left):
            return _expression(f"np.isnan({self._start(node.left.attr)})")
        return self.generic_visit(node)

    def visit_List(self, node: ast.List) -> Any:
        self.generic_visit(node)
        if all(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in node.elts):
            return _expression(f"np.array({ast.unparse(node)})")
        return node

    def visit_ListComp(self, node: ast.ListComp) -> Any:
        loop = node.generators[0]
        if isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) == "range" and isinstance(loop.target, ast.Name):
            text, name = ast.unparse(self.visit(node.elt)), loop.target.id
            count = ast.literal_eval(loop.iter.args[0])
            return ast.Tuple([_Substitution(name, value).visit(_expression(text)) for value in range(count)], ast.Load())
        return self.generic_visit(node)

    def _call(self, name: str, node: ast.Call, first: list[str]) -> ast.Call:
        """Returns the call of a translated method with the further arguments of `node`; translates the method."""
        _translate_method(self.env, name, self.translation, self.functions)
        return ast.Call(
            ast.Name(name, ast.Load()),
            [*(ast.Name(each, ast.Load()) for each in first), *(self.visit(argument) for argument in node.args)],
            [ast.keyword(keyword.arg, self.visit(keyword.value)) for keyword in node.keywords],
        )

    def _start(self, name: str) -> str:
        """Returns the expression for an attribute of the environment: a read if the attribute is a view of the data."""
        value = getattr(self.env, name)
        element = metaworld_private.viewed_element(self.env, value)
        if element:
            return self.translation.read(element, "xpos")
        return self.translation.start(name) if np.ndim(value) else f"{self.translation.start(name)}[0]"


class _Substitution(ast.NodeTransformer):
    """Replaces a name by a number."""

    def __init__(self, name: str, value: int) -> None:
        self.name, self.value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.value) if node.id == self.name else node


def _self_attribute(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _element(node: ast.AST) -> str:
    """Returns "body:hand" for the expression ``self.data.body("hand")``, and "" for all others."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("self.data.") and len(node.args) == 1:
        kind = ast.unparse(node.func).removeprefix("self.data.")
        if kind in ("body", "site", "geom", "joint"):
            return f"{kind}:{ast.literal_eval(node.args[0])}"
    return ""
