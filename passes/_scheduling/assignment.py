"""Writes the decision on the layers, after the schedule was checked. No pass: for `nest-assign-mapping`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.dialects.func import FuncOp

from cnncc.dialects.nest import LayerOp, MappingAttr
from cnncc.errors import Finding, Refusal, Refusals, hint, one_line
from cnncc.model.layer_shape import GlbBudget
from cnncc.passes._onnx.labels import tidy
from cnncc.passes._scheduling.candidates import Candidates, label
from cnncc.passes._scheduling.decision import Decision, Mappings, decide
from cnncc.passes._scheduling.layer_groups import GROUPS, groups_attr
from cnncc.passes._scheduling.nest_layers import chosen_layers, label_of
from cnncc.passes._scheduling.schedule_file import DataflowName, Schedule

OPERATORS = ("Conv", "Gemm", "MatMul")  # of the ONNX nodes that have weights


def assign(module: ModuleOp, only: str | None, candidates: Candidates) -> None:
    """Write a mapping on every layer, or on the one called `only`, which then has the whole GLB for its buffers.

    Raises Refusal for all in the schedule that is not legal, or for all layers that do not fit.
    """
    if candidates.schedule.entries or candidates.schedule.outputs or candidates.others:
        # A schedule may name any layer of the module, whichever is mapped.
        _check(chosen_layers(module, None if candidates.schedule != Schedule() else only), candidates)
    func = next((f for f in module.ops if isinstance(f, FuncOp)), None)
    if func is not None and only is None:
        decision = decide(func, candidates)
        candidates.context.decided(decision)
    else:
        decision = Decision(_one_by_one(chosen_layers(module, only), candidates), ())
    # An earlier run may have chosen groups, which are none of these mappings.
    module.attributes.pop(GROUPS, None)
    if decision.groups:
        module.attributes[GROUPS] = groups_attr([group.options for group in decision.groups])
    for layer, mapping in decision.mappings.items():
        layer.mapping = MappingAttr(mapping) if mapping else None
        layer.prefetched = UnitAttr() if layer in decision.prefetched else None


def _one_by_one(layers: Sequence[LayerOp], candidates: Candidates) -> Mappings:
    """Mappings of layers that know nothing of each other, each with the whole GLB."""
    refusals, mappings = Refusals(), Mappings()
    for layer in layers:
        with refusals.kept(label_of(layer)):
            mappings[layer] = candidates.best(layer, GlbBudget(candidates.arch.glb.words))
    refusals.raise_any(candidates.name)
    return mappings


def _check(layers: Sequence[LayerOp], candidates: Candidates) -> None:
    """Raises Refusal with every layer that there is not, and every number that breaks a limit."""
    labels = [name for layer in layers if (name := label(layer)) is not None]
    findings: list[Finding] = []
    for name in {**candidates.schedule.entries, **candidates.schedule.outputs}:
        if name not in labels:
            findings.append(Finding("there is no such layer on the array", where=name, help=_near_label(name, labels)))
        for layer in (layer for layer in layers if label(layer) == name):
            findings += [replace(each, where=name) for each in candidates.violations(layer)]
    for layer in (layer for layer in layers if label(layer) not in candidates.schedule.entries):
        broken = [replace(each, where=label_of(layer)) for each in candidates.violations(layer)]
        if isinstance(of_all := candidates.others, DataflowName):
            broken = [replace(each, help=f"another dataflow than {of_all.dataflow}") for each in broken]
        findings += broken
    refusals = Refusals()
    for finding in findings:
        says = f"{finding.numbers}: {finding.text}" if finding.resource else finding.text
        finding = replace(finding, where=one_line(finding.where, 80))
        refusals.add(Refusal(f"{candidates.name}: layer '{finding.where}': {says}", finding))
    given = "schedule" if candidates.schedule.entries or candidates.schedule.outputs else "mapping of all layers"
    refusals.raise_any(f"{candidates.name}: the {given}")


def _near_label(name: str, known: Sequence[str]) -> str:
    """A hint: the label of the layer made of the ONNX node `name`, or a label like it."""
    of_node = [label for operator in OPERATORS if (label := tidy(name, operator)) != name and label in known]
    return f"that node's label is '{of_node[0]}'" if of_node else hint(name, known)
