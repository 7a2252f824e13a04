// Stages by hand and as a mapping says.

// By hand: behind the stages that are there; inside all stages in rf loops are kept, and move with them.
// RUN: cnncc opt %s -p 'nest-stage{operand=weight memory=rf depth=3 layer=conv0},nest-stage{operand=ifmap memory=rf depth=4 buffers=2 layer=conv0},nest-stage{operand=ifmap memory=glb depth=3 layer=conv0}' | filecheck %s --check-prefix HAND
// HAND: nest.layer "mac" %x weights @w
// HAND-NEXT: nest.for k {
// HAND-NEXT: nest.for h {
// HAND-NEXT: nest.for w {
// HAND-NEXT: nest.stage weight in rf buffers 1
// HAND-NEXT: nest.stage ifmap in glb buffers 1
// HAND-NEXT: nest.for c {
// HAND-NEXT: nest.stage ifmap in rf buffers 2
// HAND-NEXT: nest.for r keep {
// HAND-NEXT: nest.for s keep {
// HAND-NEXT: nest.mac
// HAND: nest.layer "max"
// HAND-NEXT: nest.for k {
// HAND-NEXT: nest.for h {
// HAND-NEXT: nest.for w {

// A stage around the lone mac leaves nothing to keep.
// RUN: cnncc opt %s -p 'nest-stage{operand=weight memory=rf depth=6 layer=conv0}' | filecheck %s --check-prefix MAC
// MAC: nest.layer "mac" %x weights @w
// MAC-NEXT: nest.for k {
// MAC-NEXT: nest.for h {
// MAC-NEXT: nest.for w {
// MAC-NEXT: nest.for c {
// MAC-NEXT: nest.for r {
// MAC-NEXT: nest.for s {
// MAC-NEXT: nest.stage weight in rf buffers 1
// MAC-NEXT: nest.mac

// Without options: the nest is the mapping then, and the mapping goes. Where the last tiles are smaller, nothing changes.
// RUN: cnncc opt %s -p 'nest-tile,nest-permute,nest-unroll,nest-stage' | filecheck %s --check-prefix MAPPED
// MAPPED: nest.layer "mac" %x weights @w sizes <n = 1, k = 10, c = 3, h = 7, w = 5, r = 3, s = 3> window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <bias = "b"> label "conv0"
// MAPPED-NEXT: nest.stage ifmap in glb buffers 1
// MAPPED-NEXT: nest.for k step 8 {
// MAPPED-NEXT: nest.stage weight in glb buffers 2
// MAPPED-NEXT: nest.stage params in glb buffers 2
// MAPPED-NEXT: nest.for h step 4 {
// MAPPED-NEXT: nest.par k step 4 on rows {
// MAPPED-NEXT: nest.par h on rows {
// MAPPED-NEXT: nest.par k step 2 on cols {
// MAPPED-NEXT: nest.par w on cols {
// MAPPED-NEXT: nest.for r step 2 {
// MAPPED-NEXT: nest.stage weight in rf buffers 2
// MAPPED-NEXT: nest.stage ifmap in rf buffers 2
// MAPPED-NEXT: nest.for s keep {
// MAPPED-NEXT: nest.for c keep {
// MAPPED-NEXT: nest.for r keep {
// MAPPED-NEXT: nest.for k keep {
// MAPPED-NEXT: nest.mac
// MAPPED: nest.layer "max"
// MAPPED-NEXT: nest.for k {
// MAPPED-NEXT: nest.for h {
// MAPPED-NEXT: nest.for w {

// By-hand stages that the mapping has too are no obstacle, others are.
// RUN: cnncc opt %s -p 'nest-tile,nest-permute,nest-unroll,nest-stage{operand=ifmap memory=glb depth=0 layer=conv0},nest-stage' | filecheck %s --check-prefix SOME
// SOME: nest.layer "mac" %x weights @w
// SOME-NEXT: nest.stage ifmap in glb buffers 1
// SOME-NEXT: nest.for k step 8 {

//
// RUN: not cnncc opt %s -p 'nest-tile,nest-permute,nest-unroll,nest-stage{operand=ifmap memory=glb depth=1 layer=conv0},nest-stage' 2>&1 | filecheck %s --check-prefix FOREIGN
// FOREIGN: cnncc: nest-stage: layer 'conv0': stage ifmap in glb at depth 1 is not in the mapping

// The mapping's loops must be there.
// RUN: not cnncc opt %s -p 'nest-tile,nest-permute,nest-stage' 2>&1 | filecheck %s --check-prefix LOOPS
// LOOPS: cnncc: nest-stage: layer 'conv0': the loops are not those of the mapping: nest-tile, nest-permute and nest-unroll must run first

// Depths count the loops around.
// RUN: not cnncc opt %s -p 'nest-stage{operand=ifmap memory=glb depth=7 layer=conv0}' 2>&1 | filecheck %s --check-prefix DEEP
// DEEP: cnncc: nest-stage: layer 'conv0': depth 7 is not in 0 to 6, the number of loops

//
// RUN: not cnncc opt %s -p 'nest-stage{operand=ifmap memory=glb depth=-1 layer=conv0}' 2>&1 | filecheck %s --check-prefix NEGATIVE
// NEGATIVE: cnncc: nest-stage: a stage inside -1 loops is no stage

// There are two memories and three operands.
// RUN: not cnncc opt %s -p 'nest-stage{operand=ifmap memory=dram depth=0}' 2>&1 | filecheck %s --check-prefix MEMORY
// MEMORY: cnncc: nest-stage: ifmap in dram buffers 1 is no stage: they are of weight, ifmap, params, residual, output, in glb or rf, with 1 buffer or more

// Pools have no weights.
// RUN: not cnncc opt %s -p 'nest-stage{operand=weight memory=rf depth=0 layer=pool0}' 2>&1 | filecheck %s --check-prefix POOL
// POOL: cnncc: nest-stage: layer 'pool0': it has no weight, it has ifmap, output

// A register file is in a PE: loops in space lie around it.
// RUN: not cnncc opt %s -p 'nest-unroll{dim=h axis=rows layer=conv0},nest-stage{operand=ifmap memory=rf depth=1 layer=conv0}' 2>&1 | filecheck %s --check-prefix SPACE
// SPACE: cnncc: nest-stage: layer 'conv0': loop h on rows would be inside all stages in rf, where loops are kept

// One stage an operand and memory.
// RUN: not cnncc opt %s -p 'nest-stage{operand=ifmap memory=glb depth=1 layer=conv0},nest-stage{operand=ifmap memory=glb depth=2 layer=conv0}' 2>&1 | filecheck %s --check-prefix TWICE
// TWICE: cnncc: nest-stage: layer 'conv0': stage ifmap in glb: stands inside another

// Sums are finished inside the parameters' stage.
// RUN: not cnncc opt %s -p 'nest-stage{operand=params memory=glb depth=4 layer=conv0}' 2>&1 | filecheck %s --check-prefix PARAMS
// PARAMS: cnncc: nest-stage: layer 'conv0': stage params in glb: stands inside a loop over c, r or s (NEST-5)

// Options go together.
// RUN: not cnncc opt %s -p 'nest-stage{operand=ifmap depth=0}' 2>&1 | filecheck %s --check-prefix HALF
// HALF: cnncc: nest-stage: options operand, memory and depth go together

func.func @main(%x: tensor<1x3x7x5xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 10, c = 3, h = 7, w = 5, r = 3, s = 3> window <kernel = [3, 3], pad = [1, 1, 1, 1]>
       then <bias = "b">
       mapping "ifmap@glb > k':8 > weight@glb*2 > params@glb*2 > h':4 > [k'':4||@rows h''||@rows k''':2||@cols w||@cols] > r':2 > weight@rf*2 > ifmap@rf*2 > {s > c > r'' > k''''}" label "conv0" : tensor<1x3x7x5xi16> -> tensor<1x10x7x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  // A layer without a mapping; `layer=` leaves it as it is.
  %1 = nest.layer "max" %0 sizes <n = 1, k = 10, c = 1, h = 3, w = 2, r = 2, s = 2> window <kernel = [2, 2], stride = [2, 2], group = 10>
       then <> label "pool0" : tensor<1x10x7x5xi32> -> tensor<1x10x3x2xi32> {
    nest.for k { nest.for h { nest.for w { nest.for r { nest.for s { nest.mac } } } } }
  }
  func.return
}
