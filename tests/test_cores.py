"""Programs of several cores: what is refused before they run, and the binaries that hold them."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from core_cases import PAPER
from trap_cases import CORES, CORES_ARCH, GIVES_1

from cnncc.arch.model import Arch, Cores, arch_from_table, arch_text, array_title, load_arch, parse_arch, said_keys
from cnncc.binary.container import Binary, from_bytes, pack, to_bytes, with_dram_addresses
from cnncc.binary.isa_module import binary_to_module, build_binary, disassembly
from cnncc.binary.run import Machine
from cnncc.dialects.array import Tensor
from cnncc.errors import Refusal
from cnncc.isa.assembly import assemble
from cnncc.isa.codec import encode_program
from cnncc.machine.cores.banks import spans_of
from cnncc.machine.cores.core_checks import check_cores
from cnncc.machine.cores.core_races import core_races
from cnncc.machine.cores.core_times import simulate_cores
from cnncc.machine.cores.core_walk import run_together
from cnncc.machine.cores.programs import cores_of

CHANNEL = f"""
    core
    route semaphore=1 core=1 to=2
    signal semaphore=3 count=1
    loop frames=1
      dma words=4 take=3 take_when=always {GIVES_1}
    end
    halt
    core rows=1 cols=2 row0=3
    route semaphore=4 core=0 to=3
    loop frames=1
      load cols=2 kind=ifmap extent3=4 term3=lin*1 open=always close=always take=2 take_when=always give=4 give_when=always
    end
    halt
"""  # noqa: E501


def binary(text: str, arch: Arch = CORES_ARCH, tensors: Sequence[Tensor] = ()) -> Binary:
    return Binary(encode_program(assemble(text)), [], with_dram_addresses(tensors, []), [], arch)


@pytest.mark.parametrize(("text", "message"), CORES)
def test_cores_refusals(text: str, message: str) -> None:
    program = assemble(text)
    with pytest.raises(Refusal, match=message) as refusal:
        check_cores(program, CORES_ARCH)
    assert "\n" not in str(refusal.value)
    with pytest.raises(Refusal, match=f"program.bin: .*{message}"):
        from_bytes(to_bytes(binary(text)))


def test_a_channel_is_accepted() -> None:
    """A route in each direction; the space of the giver is signalled by itself."""
    check_cores(assemble(CHANNEL), CORES_ARCH)


def test_the_example_of_the_rules_runs() -> None:
    """That of docs/machine.md: the last frame's sums stay in the GLB."""
    page = (Path(__file__).parents[1] / "docs" / "machine.md").read_text()
    (text,) = re.findall(r"^```\n(core\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    check_cores(program := assemble(text), PAPER)
    assert core_races(program, PAPER, 5)[0] == []
    counted = simulate_cores(cores_of(program, PAPER, 5), causes=True).cores
    assert counted[0].cycles.dma == 5 * 16 and counted[1].cycles.compute == 5 * (3 + 64 + 1)
    machine = Machine(binary(text, PAPER, [Tensor("x", "dram", 64, (1, 64), "input", scale=1.0)]), 5)
    x = np.arange(5 * 64).reshape(5, 64) % 7 - 3
    machine.store(machine.binary.tensors[0], x)
    run_together(cores := machine.cores())
    assert cores[0].interpreter.glb.read(np.arange(1024, 1026)).tolist() == [[x[4].sum()] * 2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("route semaphore=1 core=1 to=2", "core 1, .* takes semaphore 2 of core 1, which nothing gives"),
        ("route semaphore=4 core=0 to=3", "core 1, .* gives semaphore 4: without a route .* nothing takes"),
        (
            "take=2 take_when=always",
            "core 0, .* gives semaphore 1: the route leads to semaphore 2 of core 1, which nothi",
        ),
    ],
)
def test_a_part_of_a_channel_that_is_missing(line: str, message: str) -> None:
    assert line in CHANNEL
    with pytest.raises(Refusal, match=message):
        check_cores(assemble(CHANNEL.replace(line, "")), CORES_ARCH)


def test_regions_share_buses_not_pes() -> None:
    """Two cores side by side in two rows; a third in these rows is one too many. One bus: no two cores in a row."""
    two = "core rows=2 cols=2\nhalt\ncore rows=2 cols=1 col0=2\nhalt\n"
    check_cores(assemble(two), CORES_ARCH)
    check_cores(assemble(two + "core rows=2 cols=4 row0=2\nhalt"), CORES_ARCH)
    with pytest.raises(Refusal, match="cores 0, 1, 2 share row 1, which has 2 buses"):
        check_cores(assemble(two + "core rows=1 cols=1 row0=1 col0=3\nhalt"), CORES_ARCH)
    with pytest.raises(Refusal, match="cores 0, 1 share row 0, which has 1 buses"):
        check_cores(assemble(two), replace(CORES_ARCH, cores=Cores(4, 8, 1)))


READS = "load kind=ifmap extent3=4 term3=lin*1 open=always close=always desc=1"


@pytest.mark.parametrize(
    ("setup", "banks"),
    [
        ("desc id=1 base=62", "01"),
        ("desc id=1 base=64", "1"),
        ("desc id=1 base=61\nstep id=1 by=lin*64", "0123"),  # of three iterations
        ("desc id=1 base=0 wrap=128\nstep id=1 by=lin*63", "012"),
        ("desc id=1 base=0 pitch=40 ring_y=2\nstep id=1 by=y*1", "0"),
        ("desc id=1 base=0 pitch=100 ring_y=3\nstep id=1 by=y*1", "0123"),
        ("desc id=1 base=0 pitch=100 height=2 width=4\nstep id=1 by=y*1", "01"),
        ("desc id=1 base=128 plane=64\nstep id=1 by=k*-1", "012"),
    ],
)
def test_the_banks_of_a_load(setup: str, banks: str) -> None:
    """Another core may read the banks that a load does not use, and no other."""
    loop = f"{setup}\nloop count=3\n{READS}\nend"
    for bank in range(4):
        other = f"desc id=1 base={bank * 64}\n{READS}"
        program = assemble(f"core rows=1 cols=1\n{loop}\nhalt\ncore rows=1 cols=1 row0=1\n{other}\nhalt")
        if str(bank) not in banks:
            check_cores(program, CORES_ARCH)
            continue
        with pytest.raises(Refusal, match=f"bank {bank} of the GLB, .* is read by core 0, .* and by core 1"):
            check_cores(program, CORES_ARCH)


@pytest.mark.parametrize(
    ("transfer", "words"),
    [
        ("rows=3 words=4", (10, 73)),  # 2 * 30 + 3 behind the first word
        ("count=3 glb_step=31 words=2", (10, 73)),
        ("glb_offset=5 y=1 x=2 rows=2 words=7", (47, 83)),
    ],
)
def test_the_words_of_a_transfer(transfer: str, words: tuple[int, int]) -> None:
    text = f"core rows=1 cols=1\ndesc id=1 base=10 pitch=30\ndma glb=1 {transfer}\nhalt"
    (core,) = cores_of(assemble(text), CORES_ARCH)
    assert [(how, span) for _, how, span in spans_of(core)] == [("written", words)]


def test_a_descriptor_that_changes_in_a_loop() -> None:
    """What a body sets last is in force when the body begins anew."""
    text = f"core rows=1 cols=1\nloop count=2\n{READS}\ndesc id=1 base=128\nend\nhalt\ncore rows=1 cols=1 row0=1\n"
    check_cores(assemble(f"{text}desc id=1 base=64\n{READS}\nhalt"), CORES_ARCH)
    with pytest.raises(Refusal, match="bank 2"):
        check_cores(assemble(f"{text}desc id=1 base=128\n{READS}\nhalt"), CORES_ARCH)


def test_a_ring_over_frames_uses_the_banks_of_all_frames() -> None:
    """From the second frame on, core 0 reads bank 1, which core 1 reads, too."""
    ring = f"core rows=1 cols=1\ndesc id=1 wrap=128\nstep id=1 by=lin*64\nloop frames=1\n{READS}\nend\nhalt\n"
    check_cores(assemble(f"{ring}core rows=1 cols=1 row0=1\ndesc id=1 base=128\n{READS}\nhalt"), CORES_ARCH)
    with pytest.raises(Refusal, match="bank 1"):
        check_cores(assemble(f"{ring}core rows=1 cols=1 row0=1\ndesc id=1 base=64\n{READS}\nhalt"), CORES_ARCH)


def test_one_core_may_use_all_banks() -> None:
    check_cores(assemble(f"core rows=1 cols=1\n{READS}\ncommit source=glb\nhalt"), CORES_ARCH)


def test_a_program_of_cores_is_the_same_as_ir() -> None:
    read = from_bytes(to_bytes(binary(CHANNEL)))
    module, store = binary_to_module(read)
    assert build_binary(module, store, CORES_ARCH).program.tolist() == read.program.tolist()


# -- binaries and arrays ---------------------------------------------------------------------------------------------


def test_binaries_with_cores_have_a_format_of_their_own() -> None:
    for text, version in ((CHANNEL, 7), ("sync\nhalt", 6)):
        data = to_bytes(binary(text))
        with zipfile.ZipFile(BytesIO(data)) as archive:
            assert json.loads(archive.read("manifest.json"))["format"] == version
        assert assemble(disassembly(from_bytes(data))) == assemble(text)


def test_a_format_that_is_not_the_programs() -> None:
    with zipfile.ZipFile(BytesIO(to_bytes(binary("sync\nhalt")))) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["manifest.json"] = members["manifest.json"].replace(b'"format": 6', b'"format": 7')
    with pytest.raises(Refusal, match="manifest.json: format version 7, that of this program is 6"):
        from_bytes(pack(members))


def test_arrays_without_cores_keep_their_texts() -> None:
    arch = load_arch("spatial-8x8")
    assert "cores" not in said_keys(arch) and "banks" not in said_keys(arch)["glb"] and "clock" not in arch_text(arch)
    assert array_title(arch) == "spatial-8x8 (8 x 8 PEs, #e29900c2)"
    more = replace(arch, cores=Cores(most=3), clock_mhz=50, glb=replace(arch.glb, banks=2))
    assert said_keys(more)["cores"] == {"most": 3} and parse_arch(arch_text(more), "here") == more
    assert array_title(more) != array_title(arch)


def test_banks_of_unequal_size() -> None:
    table = said_keys(load_arch("spatial-8x8"))
    table["glb"]["banks"] = 3
    words = table["glb"]["words"]
    with pytest.raises(Refusal, match=rf"\[glb\]: .* words = {words} is no multiple of banks = 3: {words + 2} is one"):
        arch_from_table(table, "file")
