"""Translates observation and reward of a Meta-World task to the source of a module that numba compiles.

The input is the source of the task's class in the metaworld package. The result computes the same values from arrays
(`RewardArrays`), where `n` is the index of a simulation: what a method reads from the simulation becomes a slice of
``s.flat[n]``, and what a reset has set becomes an entry of ``s.start[n]``. Parts without influence on observation,
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
from powerband.recipes.metaworld.env.threads.method_writer import MethodWriter, Untranslatable, as_statements
from powerband.recipes.metaworld.env.threads.reward_terms import COMMON_PLACES

METHODS = ("_get_pos_objects", "_get_quat_objects", "_get_pos_goal", "evaluate_state")
"""Methods of a task from which an observation, a reward and a success are computed."""
SIZES = {"xpos": 3, "xquat": 4, "xmat": 9, "qpos": 1}
"""Quantity of an element of MuJoCo's data -> number of its values; joints are hinges or slides."""
HEADER = """import numpy as np
from numba import njit

from powerband.recipes.metaworld.env.threads.observation import observe_objects
from powerband.recipes.metaworld.env.threads.package_terms import (
    absolute, add, as_quat, clip, divide, hamacher_product, hstack, multiply, norm, number,
    rect_prism_tolerance, subtract, tolerance_gaussian, tolerance_long_tail
)
"""
DECORATOR = '@njit(error_model="numpy")'
FOOTER = """
@njit(nogil=True, cache=CACHED, error_model="numpy")
def write_rows(s, first, last):
    for n in range(first, last):
        observe_objects(s, n, _get_pos_objects(s, n), _get_quat_objects(s, n), _get_pos_goal(s, n))
        s.reward[n], s.success[n] = evaluate_state(s, n, s.obs[n, :39], s.action[n])
"""


@dataclass
class Translation:
    """Observation and reward of one task as functions of arrays.

    Attributes:
        env: Environment of the metaworld package, after a reset.
        functions: Name of a method -> its translated definition, callees first. A method that is not static takes the
            arrays `s` and the index `n` first.
        reads: (element, quantity), such as ("body:hand", "xpos"), -> index of its first place of three values.
        starts: Names of the attributes that a reset sets, in the order of ``s.start[n]``.
        touch: True if a success also requires that both fingers touch the object, which `functions` take for granted.
    """

    env: Any
    functions: dict[str, str] = field(default_factory=dict)
    reads: dict[tuple[str, str], int] = field(
        default_factory=lambda: {(element, "xpos"): place for place, element in enumerate(COMMON_PLACES)}
    )
    starts: list[str] = field(default_factory=list)
    touch: bool = False

    @property
    def source(self) -> str:
        """Source of a module with the function ``write_rows(s, first, last)``.

        It writes observation, reward and success of the simulations ``first`` to ``last`` - 1. The name ``CACHED`` must
        be defined when the module is executed: True if numba stores the machine code.
        """
        return "\n".join([HEADER, *(f"{DECORATOR}\n{function}\n" for function in self.functions.values()), FOOTER])

    @property
    def places(self) -> int:
        """Number of places of three values."""
        return max(place + (SIZES[quantity] + 2) // 3 for (_, quantity), place in self.reads.items())

    def read(self, element: str, quantity: str) -> str:
        """Returns the expression for a quantity of an element, and gives it a place."""
        if quantity not in SIZES:
            raise Untranslatable(f"{quantity} of {element}")
        first = 3 * self.reads.setdefault((element, quantity), self.places)
        return f"s.flat[n, {first}]" if quantity == "qpos" else f"s.flat[n, {first}:{first + SIZES[quantity]}]"

    def attribute(self, name: str) -> str:
        """Returns the expression for an attribute of the environment.

        It reads the simulation if the attribute is a view of MuJoCo's data, otherwise what a reset has set.
        """
        value = metaworld_private.attribute(self.env, name)
        element = metaworld_private.viewed_element(self.env, value)
        if element:
            return self.read(element, "xpos")
        if name not in self.starts:
            self.starts.append(name)
        start = f"s.start[n, {self.starts.index(name)}]"
        return start if np.ndim(value) else f"{start}[0]"

    def method(self, name: str) -> None:
        """Translates a method or a property, after those that it calls."""
        if name in self.functions:
            return
        owner, definition = _definition(type(self.env), name)
        writer = MethodWriter(self, owner, sys.modules[owner.__module__])
        statements = _success_only(definition.body) if name == "evaluate_state" else definition.body
        definition.body = [new for statement in statements for new in as_statements(writer.visit(statement))]
        for argument in definition.args.args:
            argument.annotation = None
        if not any(ast.unparse(decorator) == "staticmethod" for decorator in definition.decorator_list):
            definition.args.args[:1] = [ast.arg("s"), ast.arg("n")]
        definition.decorator_list, definition.returns = [], None
        self.functions[name] = ast.unparse(ast.fix_missing_locations(definition))


def translate(env: Any) -> Translation:
    """Translates the methods `METHODS` of an environment of the metaworld package.

    Args:
        env: The environment, after a reset: the values of its attributes determine how they are read.

    Raises:
        Untranslatable: The source has a form that this file does not cover.
    """
    translation = Translation(env)
    for name in METHODS:
        translation.method(name)
    return translation


def _definition(env_class: type, name: str) -> tuple[type, ast.FunctionDef]:
    """Returns the class that defines a method or a property of `env_class`, and a new syntax tree of the definition."""
    for owner in env_class.__mro__:
        for node in _class_body(owner) if name in vars(owner) else ():
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return owner, node
    raise Untranslatable(f"the method {name}")


def _class_body(owner: type) -> list[ast.stmt]:
    for node in ast.parse(_module_source(owner.__module__)).body:
        if isinstance(node, ast.ClassDef) and node.name == owner.__name__:
            return node.body
    return []


@cache
def _module_source(module: str) -> str:
    return inspect.getsource(sys.modules[module])


def _success_only(body: list[ast.stmt]) -> list[ast.stmt]:
    """Lets the method `evaluate_state` return reward and success; removes what only its dict `info` needs."""
    *statements, end = body
    if ast.unparse(end) != "return (reward, info)":
        raise Untranslatable(f"the end of evaluate_state, {ast.unparse(end)}")
    for index, statement in enumerate(statements):
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            values = dict(
                zip(map(ast.unparse, filter(None, statement.value.keys)), statement.value.values, strict=True)
            )
            statements[index] = ast.Assign(statement.targets, values["'success'"], lineno=statement.lineno)
    return _without_unused([*statements, *ast.parse("return (reward, info > 0)").body])


def _without_unused(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Removes assignments to names that are not used."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    kept = [each for each in statements if not isinstance(each, ast.Assign) or _names(each.targets[0]) & used]
    return kept if len(kept) == len(statements) else _without_unused(kept)


def _names(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
