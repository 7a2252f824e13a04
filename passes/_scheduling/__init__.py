"""The helpers of passes on `nest`: which mapping each layer gets, and what stays in the GLB.

All passes on nests:

    nest_layers.py         layers by label, the shape of one, a new nest for one (`reschedule`)
    rewrites.py            mappings to mappings: tile, permute, unroll, stage
    array_fit.py           checks of a mapping: PEs, links for sums, register files
    glb_words.py           words of a mapping in the GLB, and the refusal of too few

The mappings of a network (nest-assign-mapping):

    decision.py            all steps, one after the other: read this first
    residency.py           the values that stay in the GLB, and so the GLB budget of each layer
    candidates.py          the mappings of a layer for a budget: given, by a dataflow, or searched
    smaller_budgets.py     more of them, for less of the GLB
    elementwise_blocks.py  the mapping of an elementwise layer
    dataflows.py           dataflows by name
    prefetch.py            whose first weights come while the layer before runs
    network_values.py      the values of a network, and while which layers each is needed
    network_program.py     what a mapped network takes, by the cost model
    assignment.py          the decision, written on the layers
    layer_alone.py         a convolution before its network is mapped (cnn-choose-scheme)

Mappings that a user gives:

    schedule_file.py       the TOML file
    schedule_text.py       such a file of what was chosen (compile --emit schedule)
    schedule_numbers.py    mappings as tile sizes in numbers
    numbered_nest.py       the loops and stages that such numbers mean
    written_mappings.py    mappings in the notation: what is legal, and their stages
    mapping_completion.py  what their loops leave out: axes, PEs, tile sizes

Groups of layers, stripe by stripe (nest-group):

    group_choice.py        which layers run as groups
    group_search.py        the groups that a network may have, with their figures
    group_report.py        what the choice gains, and its alternatives
    layer_groups.py        one group: its nests, its words in the GLB, its op
    stripes.py             the rows of stripes, and the mapping of a layer that runs by stripes
    loaded_inputs.py       inputs that come from DRAM row by row
    column_strips.py       the layers of groups in strips of columns
    strip_groups.py        the plans of such groups, before there are these layers

Layers side by side on cores (nest-cores):

    core_choice.py         which layers run on which PEs
    core_parts.py          the layers of each core, and the values between cores
    core_mapping.py        the nests of a core's layers
    core_channels.py       the rows of channels between cores
    core_chain.py          all cores: their plans, words in the GLB, the op
    flattened_inputs.py    layers that read a flattened value, as layers of the value
"""
