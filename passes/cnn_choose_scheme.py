"""Chooses a parallel scheme for each convolution, as C-Brain does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from cnncc.arch.model import load_arch
from cnncc.cbrain.convolution import convolution_of
from cnncc.cbrain.scheme_choice import SchemeChoice, choose, stored_order
from cnncc.context import note
from cnncc.dialects.cnn import SCHEME, ConvOp
from cnncc.errors import Refusal


@dataclass(frozen=True)
class CnnChooseSchemePass(ModulePass):
    """Marks each `cnn.conv` with its scheme by Algorithm 2 of C-Brain ([CBRAIN-9](cbrain.md#the-choice)).

        %1 = cnn.conv %0 weights @conv1.w window <kernel = [11, 11], stride = [4, 4]> … label "conv1"
        ->
        %1 = cnn.conv %0 weights @conv1.w window <kernel = [11, 11], stride = [4, 4]> … label "conv1"
             {cnn.scheme = "kernel partition"}

    `tin` is T_in, the multipliers of a PE; without it, those of the array `arch`. A note says of each layer why it has
    its scheme, and in which order it stores its results ([CBRAIN-10](cbrain.md#the-choice)). The layers that read them
    may stand behind pools, sums and concatenations. `cnn-partition-kernel` rewrites the marked layers. The marks stay
    on the layers of later levels, and change nothing by themselves.
    """

    name = "cnn-choose-scheme"

    arch: str | None = None
    tin: int | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Mark all convolutions of `op`."""
        tin = self._tin()
        choices = {conv: choose(convolution_of(conv), tin) for conv in op.walk() if isinstance(conv, ConvOp)}
        for conv, choice in choices.items():
            conv.attributes[SCHEME] = StringAttr(choice.scheme.value)
            note(ctx, f"{self.name}: {convolution_of(conv).name}: {_reason(conv, choice, choices)}")
        if not choices:
            note(ctx, f"{self.name}: there is no convolution to choose a scheme for")

    def _tin(self) -> int:
        if self.tin is not None:
            return self.tin
        if self.arch is None:
            raise Refusal(f"{self.name}: neither arch nor tin is given: name an array, or the multipliers of a PE")
        return load_arch(self.arch).pe.lanes


def _reason(conv: ConvOp, choice: SchemeChoice, choices: dict[ConvOp, SchemeChoice]) -> str:
    order = stored_order([choices[reader].scheme for reader in readers(conv.result)])
    return f"{choice.scheme.value}, {choice.reason}; stores in {order.value}"


def readers(value: SSAValue) -> Iterator[ConvOp]:
    """The convolutions that read a value, also through other ops, each one once for each way."""
    for user in (use.operation for use in value.uses):
        if isinstance(user, ConvOp) and user.x is value:
            yield user
        elif not isinstance(user, ConvOp):
            for result in user.results:
                yield from readers(result)
