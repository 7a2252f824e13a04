"""The helpers of `nest-to-array` and of passes on `array`: programs as plain records, and where tensors lie.

The program of a layer:

    layer_program.py       all of it: read this first
    layer_records.py       the records: a layer to be programmed, the nodes of its program
    layer_order.py         the order of loops and blocks: which block is next
    layer_instructions.py  loads, macro-instructions, commits
    layer_transfers.py     transfers between DRAM and the GLB, and their tokens
    layer_operands.py      where operands lie in DRAM, in the GLB and in its buffers
    layer_sums.py          where sums stay in PEs, and where they are partial
    stream_program.py      the program of an elementwise layer

The program of several layers:

    group_program.py       layers stripe by stripe
    loaded_rows.py         the rows of a group's input that come from DRAM
    core_program.py        layers side by side on cores

The module, and where tensors lie:

    tensors.py             the tensors of a network's values
    dram_weights.py        weights in DRAM, biases and scales beside them
    array_ops.py           records as ops of the `array` dialect
    array_mark.py          the array that a module is mapped to
    glb_packing.py         the places of tensors in the GLB, where words are free meanwhile
    core_banks.py          likewise in banks of their own, for several cores
    word_bounds.py         whether transfers and loads stay in their tensors
"""
