"""An emitter of standard dialects: loops, index sums, buffers and conversions. It knows no layers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, IntegerType, MemRefType, f32, f64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue


@dataclass(frozen=True)
class Index:
    """offset + Σ value * factor over index values; terms that cancel out are never written."""

    terms: tuple[tuple[SSAValue, int], ...] = ()
    offset: int = 0

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.offset + other)
        factors = dict(self.terms)
        for value, factor in other.terms:
            factors[value] = factors.get(value, 0) + factor
        return Index(tuple((value, factor) for value, factor in factors.items() if factor), self.offset + other.offset)

    def __mul__(self, number: int) -> Index:
        return Index(tuple((value, factor * number) for value, factor in self.terms if number), self.offset * number)

    def __sub__(self, other: Index | int) -> Index:
        return self + other * -1


ZERO = Index()


@dataclass(frozen=True)
class Span:
    """The indices first <= i < end: at most `most` of them; exactly as many if `exact`."""

    first: Index
    end: Index
    most: int
    exact: bool = True

    @staticmethod
    def whole(size: int) -> Span:
        """The indices from 0 to `size`."""
        return Span(ZERO, Index(offset=size), size)


@dataclass(frozen=True)
class Buffer:
    """A memref, and the index of its first element in each dimension.

    A whole tensor may have fewer dimensions than its indices; missing ones have size 1.
    """

    memref: SSAValue
    origin: tuple[Index, ...] = (ZERO,) * 4

    @property
    def element(self) -> Attribute:
        """The type of its elements."""
        return memref_type(self.memref).element_type


def memref_type(value: SSAValue) -> MemRefType:
    """The type of a value that is a memref."""
    assert isinstance(value.type, MemRefType)
    return value.type


def named(value: SSAValue, name: str) -> SSAValue:
    """`value`, printed as `name` if that is a legal name."""
    if SSAValue.is_valid_name(name):
        value.name_hint = name
    return value


class Emitter:
    """Appends to the block of the innermost open loop; each constant goes to the head of the function once."""

    def __init__(self, block: Block) -> None:
        """block: the empty body of a function."""
        self.head = self.block = block
        self.constants: dict[Attribute, arith.ConstantOp] = {}

    def add(self, op: Operation) -> SSAValue:
        """Append `op`; its result."""
        self.block.add_op(op)
        return op.results[0]

    def do(self, op: Operation) -> None:
        """Append `op`, which has no result."""
        self.block.add_op(op)

    def constant(self, value: int | float, kind: Attribute) -> SSAValue:
        """A number of type `kind`: index, an integer or a float."""
        if isinstance(kind, IndexType | IntegerType):
            assert isinstance(value, int)
            attr: Attribute = IntegerAttr(value, kind)
            name = f"c{value}" if isinstance(kind, IndexType) else f"c{value}_{kind}"
        else:
            assert kind in (f32, f64)
            attr, name = FloatAttr(float(value), f32 if kind == f32 else f64), f"cst_{kind}"
        if attr not in self.constants:
            op = arith.ConstantOp(attr)
            last = next(reversed(self.constants.values()), None)
            if last is not None:
                self.head.insert_op_after(op, last)
            elif (first := self.head.first_op) is not None:
                self.head.insert_op_before(op, first)
            else:
                self.head.add_op(op)
            named(op.result, name)
            self.constants[attr] = op
        return self.constants[attr].result

    def index(self, index: Index) -> SSAValue:
        """The value of a sum."""
        total: SSAValue | None = None
        # Positive terms first: x - y is shorter than 0 - y + x.
        for value, factor in sorted(index.terms, key=lambda term: term[1] < 0):
            part = value if abs(factor) == 1 else self.add(arith.MuliOp(value, self.number(abs(factor))))
            if factor < 0:
                total = self.add(arith.SubiOp(self.number(0) if total is None else total, part))
            else:
                total = part if total is None else self.add(arith.AddiOp(total, part))
        if total is None:
            return self.number(index.offset)
        return self.add(arith.AddiOp(total, self.number(index.offset))) if index.offset else total

    def number(self, value: int) -> SSAValue:
        """An index."""
        return self.constant(value, IndexType())

    def least(self, a: Index, b: Index) -> Index:
        """The smaller one."""
        if not (a.terms or b.terms):
            return Index(offset=min(a.offset, b.offset))
        return Index(((self.add(arith.MinSIOp(self.index(a), self.index(b))), 1),))

    def most(self, a: Index, b: Index) -> Index:
        """The larger one."""
        if not (a.terms or b.terms):
            return Index(offset=max(a.offset, b.offset))
        return Index(((self.add(arith.MaxSIOp(self.index(a), self.index(b))), 1),))

    def quotient(self, a: Index, b: int) -> Index:
        """a // b, for a of at least 0."""
        if not a.terms:
            return Index(offset=a.offset // b)
        return Index(((self.add(arith.DivSIOp(self.index(a), self.number(b))), 1),))

    def remainder(self, a: Index, b: int) -> Index:
        """a % b, for a of at least 0."""
        if not a.terms:
            return Index(offset=a.offset % b)
        return Index(((self.add(arith.RemSIOp(self.index(a), self.number(b))), 1),))

    @contextmanager
    def loop(self, span: Span, name: str, step: int = 1, side_by_side: bool = False) -> Generator[Index]:
        """A loop over `span`; yields its index. side_by_side: whether its iterations may run in parallel."""
        low, high, stride = self.index(span.first), self.index(span.end), self.number(step)
        outer, self.block = self.block, Block(arg_types=[IndexType()])
        yield Index(((named(self.block.args[0], name), 1),))
        self.do(scf.ReduceOp() if side_by_side else scf.YieldOp())
        body, self.block = Region(self.block), outer
        if side_by_side:
            self.do(scf.ParallelOp([low], [high], [stride], body))
        else:
            self.do(scf.ForOp(low, high, stride, [], body))

    @contextmanager
    def loops(self, spans: Sequence[Span], names: Sequence[str]) -> Generator[tuple[Index, ...]]:
        """Loops over all `spans`; a span of exactly one index needs none."""
        with ExitStack() as stack:
            yield tuple(
                span.first if span.exact and span.most == 1 else stack.enter_context(self.loop(span, name))
                for span, name in zip(spans, names, strict=True)
            )

    def either(self, condition: SSAValue, kind: Attribute, then: Callable[[], SSAValue], other: SSAValue) -> SSAValue:
        """The value that `then` emits if `condition` holds, else `other`."""
        outer, self.block = self.block, Block()
        self.do(scf.YieldOp(then()))
        body, self.block = self.block, outer
        return self.add(scf.IfOp(condition, [kind], Region(body), Region(Block([scf.YieldOp(other)]))))

    def alloc(self, shape: Sequence[int], element: Attribute, name: str) -> SSAValue:
        """New memory."""
        return named(self.add(memref.AllocOp.get(element, None, shape)), name)

    def load(self, buffer: Buffer, at: Sequence[Index]) -> SSAValue:
        """The element for the indices `at`."""
        return self.add(memref.LoadOp.get(buffer.memref, self._place(buffer, at)))

    def store(self, value: SSAValue, buffer: Buffer, at: Sequence[Index]) -> None:
        """Write the element for the indices `at`."""
        self.do(memref.StoreOp.get(value, buffer.memref, self._place(buffer, at)))

    def _place(self, buffer: Buffer, at: Sequence[Index]) -> list[SSAValue]:
        dims = memref_type(buffer.memref).get_num_dims()
        return [self.index(index - first) for index, first in list(zip(at, buffer.origin, strict=False))[:dims]]

    def integer(self, value: SSAValue, kind: IntegerType) -> SSAValue:
        """The same integer in type `kind`, which holds it."""
        assert isinstance(value.type, IntegerType)
        change = kind.width.data - value.type.width.data
        if not change:
            return value
        return self.add(arith.ExtSIOp(value, kind) if change > 0 else arith.TruncIOp(value, kind))
