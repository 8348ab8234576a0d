"""Compiled matrix product: c += a b of float32 matrices, for functions of numba.

A plain loop over the columns loads and stores the rows of c again for every few products, and checks at run time
whether the arrays overlap: it reaches half of the speed of this file at 128 columns and a third at 64. Here the
innermost loop is written in LLVM's vector instructions. It keeps a tile of c in registers, and adds the products of one
column of a with one row of b per iteration. The 16 columns of b that a tile needs are copied to consecutive memory
before (`benchmarks/updates/products.py`).

Each entry of c is one chain of fused multiply-adds in the order of the inner index. The results therefore depend
neither on the size of the tiles nor on the width of the machine's vectors, and a machine repeats them bit for bit.

``numba.core.cgutils`` is a private interface of numba; a test names the version that this file was written for.

Shapes: c (M, N), a (M, J) and b (J, N).
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from powerband.core.optim.compiled_adam import compiled

LANES = 16
"""Columns of a tile: one vector of AVX-512, or two of AVX2."""
FEATURES = llvm.get_host_cpu_features()
ROWS = 8 if FEATURES.get("avx512f") else 6
"""Rows of a tile. With AVX-512, eight sums hide the latency of a multiply-add; with AVX2, more than six rows of two
vectors do not fit into its sixteen registers."""
HAS_FMA = FEATURES.get("fma", True)
"""Whether the processor multiplies and adds in one instruction. Only x86 lists this feature, from about 2013 on."""
INNER = 256
"""Rows of b that are copied at a time; with 64 bytes of each row, they stay in the first-level cache."""
FLOAT, BYTE, INT32 = ir.FloatType(), ir.IntType(8), ir.IntType(32)
VECTOR = ir.VectorType(FLOAT, LANES)


class Matrix:
    """Data pointer and strides in bytes of an array of numba, as values of LLVM's IR."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        array = context.make_array(kind)(context, builder, value)
        self.builder, self.data = builder, builder.bitcast(array.data, BYTE.as_pointer())
        self.strides = cgutils.unpack_tuple(builder, array.strides)

    def place(self, row: Any, column: Any, kind: Any) -> Any:
        """Returns a pointer of type `kind` to an entry."""
        builder = self.builder
        offset = builder.add(builder.mul(row, self.strides[0]), builder.mul(column, self.strides[1]))
        return builder.bitcast(builder.gep(self.data, [offset]), kind.as_pointer())


def matrices(context: Any, builder: Any, kinds: Any, values: Any) -> list[Matrix]:
    """Returns the arrays of a call, given their types and values."""
    return [Matrix(context, builder, kind, value) for kind, value in zip(kinds, values, strict=True)]


class Columns:
    """Writes LLVM's instructions for vectors of `LANES` columns, of which the first `valid` exist.

    Args:
        builder: Builder of LLVM's IR, at the place of the call.
        valid: Number of columns that exist, a 64-bit integer of the IR; all do if it is `LANES` or more.
    """

    def __init__(self, builder: Any, valid: Any) -> None:
        self.builder = builder
        numbers = ir.Constant(ir.VectorType(INT32, LANES), [INT32(lane) for lane in range(LANES)])
        self.mask = builder.icmp_unsigned("<", numbers, self.splat(builder.trunc(valid, INT32)))
        self.all_exist = builder.icmp_signed(">=", valid, valid.type(LANES))

    def splat(self, value: Any) -> Any:
        """Returns a vector of copies of a number."""
        empty = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
        zeros = ir.Constant(ir.VectorType(INT32, LANES), [INT32(0)] * LANES)
        return self.builder.shuffle_vector(self.builder.insert_element(empty, value, INT32(0)), empty, zeros)

    def load(self, place: Any) -> Any:
        """Loads a vector; columns that do not exist are 0."""
        return self._intrinsic("masked.load", VECTOR, [place, INT32(4), self.mask, ir.Constant(VECTOR, None)])

    def load_each(self, places: list[Any], variables: list[Any]) -> None:
        """Loads a vector from each place into a variable; columns that do not exist are 0."""
        with self.builder.if_else(self.all_exist) as (whole, partial):
            with whole:
                for place, variable in zip(places, variables, strict=True):
                    vector = self.builder.load(place)
                    vector.align = 4
                    self.builder.store(vector, variable)
            with partial:
                for place, variable in zip(places, variables, strict=True):
                    self.builder.store(self.load(place), variable)

    def store_each(self, variables: list[Any], places: list[Any]) -> None:
        """Stores the vector of each variable to a place, but only the columns that exist.

        A masked store takes a dozen cycles on processors with AVX2 of AMD, so it is used for the last columns only.
        """
        with self.builder.if_else(self.all_exist) as (whole, partial):
            with whole:
                for variable, place in zip(variables, places, strict=True):
                    self.builder.store(self.builder.load(variable), place).align = 4
            with partial:
                for variable, place in zip(variables, places, strict=True):
                    vector = self.builder.load(variable)
                    self._intrinsic("masked.store", ir.VoidType(), [vector, place, INT32(4), self.mask])

    def multiply_add(self, factor: Any, vector: Any, total: Any) -> Any:
        """Returns factor * vector + total, with one rounding if the processor has fused multiply-adds."""
        factors = self.splat(factor)
        if HAS_FMA:
            return self._intrinsic("fma", VECTOR, [factors, vector, total])
        return self.builder.fadd(self.builder.fmul(factors, vector), total)

    def _intrinsic(self, name: str, result: Any, arguments: list[Any]) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        full_name = f"llvm.{name}.v{LANES}f32" + (".p0" if name.startswith("masked") else "")
        function = cgutils.get_or_insert_function(self.builder.module, kind, full_name)
        return self.builder.call(function, arguments)


@intrinsic
def pack(typing_context, packed, b, n, first, last, valid):
    """Copies rows first..last - 1 of the columns n..n + `LANES` - 1 of b to the rows of packed (.., `LANES`).

    Only the first `valid` of these columns exist.
    """
    if b.dtype != types.float32:
        raise TypingError(f"add_product needs float32 arrays, but b is {b}.")

    def build(context, builder, signature, arguments):
        packed, b = matrices(context, builder, signature.args[:2], arguments[:2])
        n, first, last, valid = arguments[2:]
        index, columns = first.type, Columns(builder, valid)
        if signature.args[1].layout == "C":
            with cgutils.for_range_slice(builder, first, last, index(1), index) as (j, _):
                row = columns.load(b.place(j, n, VECTOR))
                builder.store(row, packed.place(builder.sub(j, first), index(0), VECTOR)).align = 4
        else:  # such as a transposed array, whose columns are consecutive
            with builder.if_else(columns.all_exist) as (whole, partial):
                with whole, cgutils.for_range_slice(builder, first, last, index(1), index) as (j, _):
                    row = ir.Constant(VECTOR, ir.Undefined)
                    for lane in range(LANES):
                        number = builder.load(b.place(j, builder.add(n, index(lane)), FLOAT))
                        row = builder.insert_element(row, number, INT32(lane))
                    builder.store(row, packed.place(builder.sub(j, first), index(0), VECTOR)).align = 4
                with partial, cgutils.for_range(builder, valid) as lane:
                    with cgutils.for_range_slice(builder, first, last, index(1), index) as (j, _):
                        number = builder.load(b.place(j, builder.add(n, lane.index), FLOAT))
                        builder.store(number, packed.place(builder.sub(j, first), lane.index, FLOAT))
        return context.get_dummy_value()

    return types.void(packed, b, *[types.int64] * 4), build


def tile_function(rows: int) -> Any:
    """Returns a function of numba (c, a, packed, m, n, first, last, valid) for tiles of `rows` rows.

    It adds the products with inner indices first..last - 1 to rows m.. and columns n.. of c. ``packed`` has these
    columns of b. Only the first `valid` of them exist.
    """

    @intrinsic
    def add_tile(typing_context, c, a, packed, m, n, first, last, valid):
        if not (isinstance(c, types.Array) and c.layout == "C" and c.dtype == a.dtype == types.float32):
            raise TypingError(f"add_product needs float32 arrays and a C-ordered array c, which is {c}.")

        def build(context, builder, signature, arguments):
            c, a, packed = matrices(context, builder, signature.args[:3], arguments[:3])
            m, n, first, last, valid = arguments[3:]
            index, columns = first.type, Columns(builder, valid)
            numbers = [builder.add(m, index(row)) for row in range(rows)]
            places = [c.place(number, n, VECTOR) for number in numbers]
            sums = [cgutils.alloca_once(builder, VECTOR) for _ in numbers]  # LLVM keeps them in registers
            columns.load_each(places, sums)
            with cgutils.for_range_slice(builder, first, last, index(1), index) as (j, _):
                row_of_b = builder.load(packed.place(builder.sub(j, first), index(0), VECTOR))
                row_of_b.align = 4
                for number, total in zip(numbers, sums, strict=True):
                    factor = builder.load(a.place(number, j, FLOAT))
                    builder.store(columns.multiply_add(factor, row_of_b, builder.load(total)), total)
            columns.store_each(sums, places)
            return context.get_dummy_value()

        return types.void(c, a, packed, *[types.int64] * 5), build

    return add_tile


add_tile, add_row = tile_function(ROWS), tile_function(1)


@compiled
def add_product(c, a, b):
    """Adds the matrix product a b to c in place; the shapes are c (M, N), a (M, J) and b (J, N).

    All are float32. c is C-ordered and does not overlap with the others, which have any strides, such as those of a
    transposed array.
    """
    rows, inner = a.shape
    columns = b.shape[1]
    tiled = rows - rows % ROWS
    packed = np.zeros((min(inner, INNER), LANES), np.float32)
    for first in range(0, inner, INNER):
        last = min(first + INNER, inner)
        for n in range(0, columns, LANES):
            pack(packed, b, n, first, last, columns - n)
            for m in range(0, tiled, ROWS):
                add_tile(c, a, packed, m, n, first, last, columns - n)
            for m in range(tiled, rows):
                add_row(c, a, packed, m, n, first, last, columns - n)
