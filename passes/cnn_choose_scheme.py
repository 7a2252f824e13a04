"""Chooses a parallel scheme for each convolution, as C-Brain does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from cnncc.arch.model import Arch, load_arch
from cnncc.cbrain.convolution import Convolution, convolution_of
from cnncc.cbrain.scheme_choice import SchemeChoice, choose, stored_order
from cnncc.cbrain.schemes import Scheme
from cnncc.context import note
from cnncc.dialects.cnn import SCHEME, ConvOp
from cnncc.errors import Refusal
from cnncc.passes._scheduling.layer_alone import mapped_cycles, partitioned


@dataclass(frozen=True)
class CnnChooseSchemePass(ModulePass):
    """Marks each `cnn.conv` with its scheme by Algorithm 2 of C-Brain ([CBRAIN-9](cbrain.md#the-choice)).

        %1 = cnn.conv %0 weights @conv1.w window <kernel = [11, 11], stride = [4, 4]> … label "conv1"
        ->
        %1 = cnn.conv %0 weights @conv1.w window <kernel = [11, 11], stride = [4, 4]> … label "conv1"
             {cnn.scheme = "kernel partition"}

    `tin` is T_in, the multipliers of a PE; without it, those of the array `arch`. A note gives the reason for the
    scheme of each layer, and the order of its results in memory ([CBRAIN-10](cbrain.md#the-choice)). The layers that
    read them may stand behind pools, sums and concatenations. `cnn-partition-kernel` rewrites the marked layers. The
    marks stay on the layers of later levels, and change nothing by themselves.

    With `mapper` the mapper decides which kernels are partitioned ([CBRAIN-12](cbrain.md#the-choice)). It maps each
    layer with a stride for `arch`, whole and partitioned, and the way with fewer cycles is marked. A note has the
    cycles of both, beside the choice of Algorithm 2.
    """

    name = "cnn-choose-scheme"

    arch: str | None = None
    tin: int | None = None
    mapper: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Mark all convolutions of `op`."""
        tin, arch = self._tin(), self._array()
        choices = {conv: choose(convolution_of(conv), tin) for conv in op.walk() if isinstance(conv, ConvOp)}
        for conv, choice in choices.items():
            layer, reason = convolution_of(conv), _reason(conv, choice, choices)
            if arch is None or not can_be_cut(layer):
                conv.attributes[SCHEME] = StringAttr(choice.scheme.value)
                note(ctx, f"{self.name}: {layer.name}: {reason}")
                continue
            whole, parts = (mapped_cycles(layers, arch) for layers in ([layer], partitioned(layer)))
            conv.attributes.pop(SCHEME, None)
            if is_partitioned := parts is not None and (whole is None or parts < whole):
                conv.attributes[SCHEME] = StringAttr(Scheme.PARTITION.value)
            ways = f"{'partitioned' if is_partitioned else 'whole'}; whole {_said(whole)}, partitioned {_said(parts)}"
            note(ctx, f"{self.name}: {layer.name}: the mapper: {ways}; Algorithm 2: {reason}")
        if not choices:
            note(ctx, f"{self.name}: there is no convolution to choose a scheme for")

    def _tin(self) -> int:
        if self.tin is not None:
            return self.tin
        if self.arch is None:
            raise Refusal(f"{self.name}: neither arch nor tin is given: name an array, or the multipliers of a PE")
        return load_arch(self.arch).pe.lanes

    def _array(self) -> Arch | None:
        """The array that layers are mapped for; None if Algorithm 2 decides."""
        if not self.mapper:
            return None
        if self.arch is None:
            raise Refusal(f"{self.name}: mapper needs the array that layers are mapped for: arch=NAME or FILE")
        return load_arch(self.arch)


def can_be_cut(layer: Convolution) -> bool:
    """Whether kernel partition makes another layer of it: windows of several words have a stride."""
    return layer.window.stride != (1, 1) and layer.taps > 1 and not layer.dilated


def _said(cycles: int | None) -> str:
    return "fits nowhere" if cycles is None else f"{cycles:,} cycles"


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
