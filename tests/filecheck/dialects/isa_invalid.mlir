// RUN: cnncc opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// CHECK: isa.inst: no instruction 'jump'; there are halt, loop, end
isa.inst "jump"

// -----

// CHECK: isa.inst: loop has no field times; it has frames, count
isa.inst "loop times=3"

// -----

// Out of its 24 bits.
// CHECK: isa.inst: count: 16777216 is outside 1..16777215
isa.inst "loop count=16777216"

// -----

// CHECK: isa.inst: loop: 8 is outside 0..7
isa.inst "step id=0 loop=8 by=y*1"

// -----

// CHECK: isa.inst: open: loops (8,) are not all below 8
isa.inst "load open=8"

// -----

// CHECK: isa.inst: 'count' is not field=value
isa.inst "loop count"

// -----

// No instruction at all.
// CHECK: isa.inst:
isa.inst ""

// -----

// CHECK: isa.layer: attribute mapping is not text
isa.layer <label = "conv1", first = 0, count = 5> {mapping = 3}
