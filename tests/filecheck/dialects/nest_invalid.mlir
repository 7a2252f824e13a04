// RUN: cnncc opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// The kinds are four.
// CHECK: kind is mac, max, add or copy, not min
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "min" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// A mac layer has weights.
// CHECK: a mac layer has weights, no other has
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// No other has.
// CHECK: a mac layer has weights, no other has
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "add" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// A residual needs factors, factors a residual.
// CHECK: a residual and its factors go together
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <factors = "f">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// Sizes have no defaults.
// CHECK: expected c, h, s
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 5, w = 5, r = 3> window <kernel = [3, 3]> then <>
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.mac
  }
  func.return
}

// -----

// A copy passes on what it reads, word by word: a window of one pixel, and nothing but factors.
// CHECK: a copy has a window of one pixel without a zero point, not Window(kernel=(1, 1), stride=(1, 1), pad=(0, 0, 0, 0), dilation=(1, 1), group=2, fill=0, zero=5)
func.func @main(%x: tensor<1x2x3x3xi16>) {
  %0 = nest.layer "copy" %x residual %x : tensor<1x2x3x3xi16> sizes <n = 1, k = 2, c = 1, h = 3, w = 3, r = 1, s = 1>
       window <kernel = [1, 1], group = 2, zero = 5> then <factors = "f"> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16> {
    nest.for k { nest.for h { nest.for w { nest.mac } } }
  }
  func.return
}

// -----

// CHECK: a copy has a window of one pixel without a zero point, not Window(kernel=(3, 3)
func.func @main(%x: tensor<1x2x3x3xi16>) {
  %0 = nest.layer "copy" %x residual %x : tensor<1x2x3x3xi16> sizes <n = 1, k = 2, c = 1, h = 3, w = 3, r = 3, s = 3>
       window <kernel = [3, 3], pad = [1, 1, 1, 1], group = 2> then <factors = "f">
       : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16> {
    nest.for k { nest.for h { nest.for w { nest.for r { nest.for s { nest.mac } } } } }
  }
  func.return
}

// -----

// CHECK: a copy has no bias, no scale and no table, only factors
func.func @main(%x: tensor<1x2x3x3xi16>) {
  %0 = nest.layer "copy" %x residual %x : tensor<1x2x3x3xi16> sizes <n = 1, k = 2, c = 1, h = 3, w = 3, r = 1, s = 1>
       window <kernel = [1, 1], group = 2> then <scale = "q", factors = "f">
       : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16> {
    nest.for k { nest.for h { nest.for w { nest.mac } } }
  }
  func.return
}

// -----

// CHECK: a copy has no bias, no scale and no table, only factors
func.func @main(%x: tensor<1x2x3x3xi16>) {
  %0 = nest.layer "copy" %x residual %x : tensor<1x2x3x3xi16> sizes <n = 1, k = 2, c = 1, h = 3, w = 3, r = 1, s = 1>
       window <kernel = [1, 1], group = 2> then <clamp = [0, 9], factors = "f", table = "t">
       : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16> {
    nest.for k { nest.for h { nest.for w { nest.mac } } }
  }
  func.return
}

// -----

// The sizes are those of the result.
// CHECK: do not fit the result (1, 4, 3, 5)
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 5, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// A copy streams: one pixel a channel does not.
// CHECK: nest.layer: a copy has a residual of its own shape
func.func @main(%x: tensor<1x2x3x3xi16>, %y: tensor<1x2x1x1xi16>) {
  %0 = nest.layer "copy" %x residual %y : tensor<1x2x1x1xi16> sizes <n = 1, k = 2, c = 1, h = 3, w = 3, r = 1, s = 1> window <kernel = [1, 1], group = 2> then <factors = "f"> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16> {
    nest.for k { nest.for h { nest.for w { nest.mac } } }
  }
  func.return
}

// -----

// One pixel a channel is resident.
// CHECK: stage residual in glb: the layer has no such operand there (NEST-3)
func.func @main(%x: tensor<1x2x3x3xi16>, %y: tensor<1x2x1x1xi16>) {
  %0 = nest.layer "max" %x residual %y : tensor<1x2x1x1xi16> sizes <n = 1, k = 2, c = 1, h = 3, w = 3, r = 1, s = 1> window <kernel = [1, 1], group = 2> then <factors = "f"> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16> {
    nest.stage residual in glb buffers 1
    nest.for k { nest.for h { nest.for w { nest.mac } } }
  }
  func.return
}

// -----

// The residual is of the result's shape, or of one pixel a channel.
// CHECK: nest.layer: the residual has the shape of the result, or one pixel a channel
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x residual %x : tensor<1x3x5x7xi16> weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <factors = "f">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// All input channels are in some group.
// CHECK: and group 1 do not fit 3 channels
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 2, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// The output channels divide into the groups.
// CHECK: and group 3 do not fit 3 channels
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 1, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3], group = 3> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// A pool takes one channel to one.
// CHECK: add works channel by channel: c = 1, group = k
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "add" %x sizes <n = 1, k = 3, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <>
       : tensor<1x3x5x7xi16> -> tensor<1x3x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// The window's kernel is r by s.
// CHECK: do not fit window
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 1]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// The window gives h and w.
// CHECK: do not fit window{{.*}}stride=(2, 1)
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3], stride = [2, 1]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// Sizes are positive.
// CHECK: every size is at least 1
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 0, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// A body is one loop.
// CHECK: a body is stages, then one loop or nest.mac
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.mac } nest.for h { nest.mac }
  }
  func.return
}

// -----

// Stages come first.
// CHECK: a body is stages, then one loop or nest.mac
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.mac nest.stage ifmap in glb
  }
  func.return
}

// -----

// A body is not empty.
// CHECK: a body is stages, then one loop or nest.mac
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { }
  }
  func.return
}

// -----

// Only par loops are on an axis.
// CHECK: nest.for: a par loop, and only it, is on an axis
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h on rows { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// A par loop is on one.
// CHECK: nest.par: a par loop, and only it, is on an axis
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.par h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// There are two axes.
// CHECK: no axis 'diagonals'
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.par h on diagonals { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// There are seven dimensions.
// CHECK: no dimension 'x'
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for x { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// A step moves on.
// CHECK: no step 0
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h step 0 { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// What is kept runs in time.
// CHECK: loop h: a kept loop runs in time
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.par h on rows keep { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// There are two memories.
// CHECK: weight in dram buffers 1 is no stage
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.stage weight in dram nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// There are three operands.
// CHECK: sum in rf buffers 1 is no stage
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.stage sum in rf nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// A stage has a buffer.
// CHECK: weight in rf buffers 0 is no stage
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.stage weight in rf buffers 0 nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// NEST-1: a step beyond the extent.
// CHECK: loop h steps by 4 in an extent of 3 (NEST-1)
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h step 4 { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } } }
  }
  func.return
}

// -----

// NEST-1: an inner loop with a larger step.
// CHECK: loop w steps by 3 in an extent of 2 (NEST-1)
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w step 2 { nest.for w step 3 { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } } } }
  }
  func.return
}

// -----

// NEST-1: indices that no loop visits.
// CHECK: no loop runs over single indices of h: add one without a step inside (NEST-1)
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h step 2 { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// NEST-1: a dimension without a loop.
// CHECK: no loop runs over single indices of k: add one without a step inside (NEST-1)
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for n { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// NEST-2: kept loops without a stage in rf.
// CHECK: of loop s: exactly the loops inside all stages in rf are kept (NEST-2)
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s keep { nest.mac } } } } } }
  }
  func.return
}

// -----

// NEST-2: a loop in the box that is not kept.
// CHECK: of loop s: exactly the loops inside all stages in rf are kept (NEST-2)
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.stage ifmap in rf nest.for r keep { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// NEST-3: parameters are not for PEs.
// CHECK: stage params in rf: the layer has no such operand there (NEST-3)
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.stage params in rf nest.for k keep { nest.for h keep { nest.for w keep { nest.for c keep { nest.for r keep { nest.for s keep { nest.mac } } } } } }
  }
  func.return
}

// -----

// NEST-3: a layer without bias and scale has no parameters.
// CHECK: stage params in glb: the layer has no such operand there (NEST-3)
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <>
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.stage params in glb nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// NEST-3: twice in one memory.
// CHECK: stage ifmap in glb: stands inside another of the same operand in this memory
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.stage ifmap in glb nest.for k { nest.stage ifmap in glb nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// NEST-3: from the register files back to the GLB.
// CHECK: stage ifmap in glb: stands inside another of the same operand in this memory or nearer
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.stage ifmap in rf nest.stage ifmap in glb nest.for k keep { nest.for h keep { nest.for w keep { nest.for c keep { nest.for r keep { nest.for s keep { nest.mac } } } } } }
  }
  func.return
}

// -----

// NEST-4: the GLB is shared by all PEs.
// CHECK: stage ifmap in glb: stands inside a loop in space (NEST-4)
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.par h on rows { nest.stage ifmap in glb nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// NEST-5: sums are not finished inside a loop over c.
// CHECK: stage params in glb: stands inside a loop over c, r or s (NEST-5)
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.stage params in glb nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// The mapping keeps the same rules.
// CHECK: no loop runs over single indices of k, c, h, w, r, s: add one without a step inside (NEST-1)
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       mapping <loops = []>
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// Stages of a mapping are listed from outside.
// CHECK: stage ifmap in glb: depth 0 is not in 1 to 6 (stages are listed from outside)
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       mapping <loops = [{dim = "k"}, {dim = "h"}, {dim = "w"}, {dim = "c"}, {dim = "r"}, {dim = "s"}],
                stages = [{operand = "weight", memory = "glb", depth = 1}, {operand = "ifmap", memory = "glb", depth = 0}]>
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// And inside some of its loops.
// CHECK: stage ifmap in glb: depth 7 is not in 0 to 6
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       mapping <loops = [{dim = "k"}, {dim = "h"}, {dim = "w"}, {dim = "c"}, {dim = "r"}, {dim = "s"}],
                stages = [{operand = "ifmap", memory = "glb", depth = 7}]>
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// What is wrong with the notation of a mapping is said where it stands.
// CHECK: nest_invalid.mlir:{{[0-9]+}}:30
// CHECK: mapping "k > [h|| w||@col] > c > r > s"
// CHECK-NEXT: ^^^
// CHECK-NEXT: no axis 'col': did you mean 'cols'?
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       mapping "k > [h|| w||@col] > c > r > s"
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// It says all of a mapping: completing it for an array is nest-assign-mapping's work.
// CHECK: write the axis of h, h||@rows or h||@cols
func.func @main(%x: tensor<1x3x5x7xi16>) {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 3, w = 5, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b">
       mapping "k > h|| > w > c > r > s"
       : tensor<1x3x5x7xi16> -> tensor<1x4x3x5xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return
}

// -----

// A layer of a group has a delay.
// CHECK: layers of a group, and only they, have a delay
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x3x4x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 keeps 3 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b"  : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
    }
    nest.yield %1 : tensor<1x3x4x4xi32>
  }
  func.return
}

// -----

// GROUP-1: the outermost loop is the one over stripes.
// CHECK: layer b: its outermost loops run over h, in time (GROUP-1)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x3x4x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 keeps 3 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b" delay 0 : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
    }
    nest.yield %1 : tensor<1x3x4x4xi32>
  }
  func.return
}

// -----

// The loop over stripes is in time.
// CHECK: layer b: its outermost loops run over h, in time (GROUP-1)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x3x4x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 keeps 3 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b" delay 0 : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.par h on rows { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
    }
    nest.yield %1 : tensor<1x3x4x4xi32>
  }
  func.return
}

// -----

// Layer b reads rows in steps of 2: a stripe of one row takes two of them.
// CHECK: layer b, which reads a: stripes of 1 rows with stride 2 take stripes of 2 rows, not 4 (GROUP-1)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x3x4x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 keeps 8 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 4 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b" delay 0 : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
    }
    nest.yield %1 : tensor<1x3x4x4xi32>
  }
  func.return
}

// -----

// GROUP-2: what a stripe reads is computed before it. Here a is late.
// CHECK: layer b, which reads a: delay 0, the least is 1 (GROUP-2)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x3x4x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 1 keeps 8 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b" delay 0 : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
    }
    nest.yield %1 : tensor<1x3x4x4xi32>
  }
  func.return
}

// -----

// No stripe has fewer rows than none.
// CHECK: layer a: its first stripe has -1 rows, fewer than none (GROUP-1)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x3x4x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 keeps 8 first -1 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b" delay 0 : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
    }
    nest.yield %1 : tensor<1x3x4x4xi32>
  }
  func.return
}

// -----

// A group begins with step 0.
// CHECK: layer a: delay -1 is not in 0 to 8, the stripes of all layers (GROUP-2)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x3x4x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay -1 keeps 8 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b" delay 0 : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
    }
    nest.yield %1 : tensor<1x3x4x4xi32>
  }
  func.return
}

// -----

// After all 8 stripes there is nothing to wait for.
// CHECK: layer b: delay 9 is not in 0 to 8, the stripes of all layers (GROUP-2)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x3x4x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 keeps 8 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b" delay 9 : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
    }
    nest.yield %1 : tensor<1x3x4x4xi32>
  }
  func.return
}

// -----

// GROUP-3: a stripe of b reads three rows.
// CHECK: layer b, which reads a: a keeps 2 rows, the fewest are 3 (GROUP-3)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x3x4x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 keeps 2 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b" delay 0 : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
    }
    nest.yield %1 : tensor<1x3x4x4xi32>
  }
  func.return
}

// -----

// A ring is no larger than its value.
// CHECK: layer a: keeps 9: its result has 1 to 8 rows (GROUP-3)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x3x4x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 keeps 9 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b" delay 0 : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
    }
    nest.yield %1 : tensor<1x3x4x4xi32>
  }
  func.return
}

// -----

// A result that others of the group read has a ring.
// CHECK: layer a: keeps 0: its result has 1 to 8 rows (GROUP-3)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x3x4x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b" delay 0 : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
    }
    nest.yield %1 : tensor<1x3x4x4xi32>
  }
  func.return
}

// -----

// No other has.
// CHECK: layer b: keeps 4: its result has no ring, as no layer of the group reads it (GROUP-3)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x3x4x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 keeps 3 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b" delay 0 keeps 4 : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
    }
    nest.yield %1 : tensor<1x3x4x4xi32>
  }
  func.return
}

// -----

// GROUP-4: what lies in a ring needs no stage.
// CHECK: layer b: stage ifmap in glb: the value lies in a ring (GROUP-4)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x3x4x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 keeps 3 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b" delay 0 : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.for h { nest.stage ifmap in glb buffers 2
      nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
    }
    nest.yield %1 : tensor<1x3x4x4xi32>
  }
  func.return
}

// -----

// Blocks are stripes.
// CHECK: layer b: stage output in glb stands at depth 2: a block is a stripe, at depth 1 (GROUP-4)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x3x4x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 keeps 3 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b" delay 0 : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.for h { nest.for k { nest.stage output in glb buffers 2
      nest.for w { nest.for c { nest.for r { nest.mac } } } } }
    }
    nest.yield %1 : tensor<1x3x4x4xi32>
  }
  func.return
}

// -----

// Weights come once.
// CHECK: layer b: stage weight in glb stands at depth 1: it comes once, outside all loops (GROUP-4)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x3x4x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 keeps 3 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b" delay 0 : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.for h { nest.stage weight in glb
      nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
    }
    nest.yield %1 : tensor<1x3x4x4xi32>
  }
  func.return
}

// -----

// Register files are filled anew for each stripe.
// CHECK: layer b: stage weight in rf stands outside the loop over stripes: sections of other layers come between (GROUP-4)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x3x4x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 keeps 3 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b" delay 0 : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.stage weight in rf
      nest.for h { nest.stage ifmap in rf
      nest.for k keep { nest.for w keep { nest.for c keep { nest.for r keep { nest.mac } } } } }
    }
    nest.yield %1 : tensor<1x3x4x4xi32>
  }
  func.return
}

// -----

// A group ends with what leaves it.
// CHECK: a group is layers, loads and nest.columns, then nest.yield
func.func @main() {
  %0 = nest.group "g" : tensor<1x2xi16> {
    %1 = "test.op"() : () -> tensor<1x2xi16>
    nest.yield %1 : tensor<1x2xi16>
  }
  func.return
}

// -----

// Its results are those of its layers.
// CHECK: its results have the types of the values of nest.yield
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x2x7x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    nest.yield %0 : tensor<1x2x8x4xi32>
  }
  func.return
}

// -----

// No value from outside leaves it.
// CHECK: nest.yield names results of the group's layers
func.func @main(%x: tensor<1x2x8x4xi32>) {
  %2 = nest.group "g" : tensor<1x2x8x4xi32> {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 : tensor<1x2x8x4xi32> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    nest.yield %x : tensor<1x2x8x4xi32>
  }
  func.return
}

// -----

// Elementwise layers read in the commit engine (GROUP-1).
// CHECK: layer a is of kind copy, layers of a group are mac, max, add (GROUP-1)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x2x8x4xi16> {
    %0 = nest.layer "copy" %x residual %x : tensor<1x2x8x4xi16> sizes <n = 1, k = 2, c = 1, h = 8, w = 4, r = 1, s = 1>
         window <kernel = [1, 1], group = 2> then <factors = "f"> label "a" delay 0 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi16> {
      nest.for h { nest.for k { nest.for w { nest.mac } } }
    }
    nest.yield %0 : tensor<1x2x8x4xi16>
  }
  func.return
}

// -----

// Several images run one after the other, around all stripes (GROUP-1).
// CHECK: layer a: its outermost loops run over n h, in time (GROUP-1)
func.func @main(%x: tensor<2x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<2x2x8x4xi16> {
    %0 = nest.layer "max" %x sizes <n = 2, k = 2, c = 1, h = 8, w = 4, r = 1, s = 1>
         window <kernel = [1, 1], group = 2> then <> label "a" delay 0 : tensor<2x2x8x4xi16> -> tensor<2x2x8x4xi16> {
      nest.for h { nest.for n { nest.for k { nest.for w { nest.mac } } } }
    }
    nest.yield %0 : tensor<2x2x8x4xi16>
  }
  func.return
}

// -----

// One at a time.
// CHECK: layer a: its loop over n takes 2 images at a time, not one (GROUP-1)
func.func @main(%x: tensor<2x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<2x2x8x4xi16> {
    %0 = nest.layer "max" %x sizes <n = 2, k = 2, c = 1, h = 8, w = 4, r = 1, s = 1>
         window <kernel = [1, 1], group = 2> then <> label "a" delay 0 : tensor<2x2x8x4xi16> -> tensor<2x2x8x4xi16> {
      nest.for n step 2 { nest.for h { nest.for n { nest.for k { nest.for w { nest.mac } } } } }
    }
    nest.yield %0 : tensor<2x2x8x4xi16>
  }
  func.return
}

// -----

// A value that the group yields has all its rows, a ring has not (GROUP-3).
// CHECK: the result of layer a is read in the group and leaves it: a ring has its last rows alone (GROUP-3)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2, %3 = nest.group "g" : tensor<1x2x8x4xi16>, tensor<1x2x8x4xi16> {
    %0 = nest.layer "max" %x sizes <n = 1, k = 2, c = 1, h = 8, w = 4, r = 1, s = 1>
         window <kernel = [1, 1], group = 2> then <> label "a" delay 0 keeps 1 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi16> {
      nest.for h { nest.for k { nest.for w { nest.mac } } }
    }
    %1 = nest.layer "max" %0 sizes <n = 1, k = 2, c = 1, h = 8, w = 4, r = 1, s = 1>
         window <kernel = [1, 1], group = 2> then <> label "b" delay 0 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi16> {
      nest.for h { nest.for k { nest.for w { nest.mac } } }
    }
    nest.yield %0, %1 : tensor<1x2x8x4xi16>, tensor<1x2x8x4xi16>
  }
  func.return
}

// -----

// What nothing reads is no part of a group (GROUP-3).
// CHECK: nothing reads the result of layer a (GROUP-3)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x2x8x4xi16> {
    %0 = nest.layer "max" %x sizes <n = 1, k = 2, c = 1, h = 8, w = 4, r = 1, s = 1>
         window <kernel = [1, 1], group = 2> then <> label "a" delay 0 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi16> {
      nest.for h { nest.for k { nest.for w { nest.mac } } }
    }
    %1 = nest.layer "max" %x sizes <n = 1, k = 2, c = 1, h = 8, w = 4, r = 1, s = 1>
         window <kernel = [1, 1], group = 2> then <> label "b" delay 0 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi16> {
      nest.for h { nest.for k { nest.for w { nest.mac } } }
    }
    nest.yield %1 : tensor<1x2x8x4xi16>
  }
  func.return
}

// -----

// A load brings rows into a ring of a group.
// CHECK: nest.load: it stands in a group
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %0 = nest.load "l" %x rows 2 delay 0 keeps 2 : tensor<1x2x8x4xi16>
  func.return
}

// -----

// A load brings rows.
// CHECK: nest.load: 0 rows: it loads one or more at a time
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x2x8x4xi16> {
    %0 = nest.load "l" %x rows 0 delay 0 keeps 2 : tensor<1x2x8x4xi16>
    %1 = nest.layer "max" %0 sizes <n = 1, k = 2, c = 1, h = 8, w = 4, r = 1, s = 1>
         window <kernel = [1, 1], group = 2> then <> label "b" delay 0 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi16> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.mac } } } }
    }
    nest.yield %1 : tensor<1x2x8x4xi16>
  }
  func.return
}

// -----

// The ring of a load follows the rule of all rings (GROUP-3).
// CHECK: layer b, which reads l: l keeps 1 rows, the fewest are 2 (GROUP-3)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x2x8x4xi16> {
    %0 = nest.load "l" %x rows 2 delay 0 keeps 1 : tensor<1x2x8x4xi16>
    %1 = nest.layer "max" %0 sizes <n = 1, k = 2, c = 1, h = 8, w = 4, r = 1, s = 1>
         window <kernel = [1, 1], group = 2> then <> label "b" delay 0 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi16> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.mac } } } }
    }
    nest.yield %1 : tensor<1x2x8x4xi16>
  }
  func.return
}

// -----

// So do its stripes (GROUP-1).
// CHECK: stripes of 2 rows with stride 1 take stripes of 2 rows, not 4 (GROUP-1)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x2x8x4xi16> {
    %0 = nest.load "l" %x rows 4 delay 0 keeps 4 : tensor<1x2x8x4xi16>
    %1 = nest.layer "max" %0 sizes <n = 1, k = 2, c = 1, h = 8, w = 4, r = 1, s = 1>
         window <kernel = [1, 1], group = 2> then <> label "b" delay 0 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi16> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.mac } } } }
    }
    nest.yield %1 : tensor<1x2x8x4xi16>
  }
  func.return
}

// -----

// A first stripe has at most as many rows as the others (GROUP-1).
// CHECK: layer b: its first stripe has 3 rows, more than the others' 2 (GROUP-1)
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x2x8x4xi16> {
    %0 = nest.load "l" %x rows 2 delay 0 keeps 2 : tensor<1x2x8x4xi16>
    %1 = nest.layer "max" %0 sizes <n = 1, k = 2, c = 1, h = 8, w = 4, r = 1, s = 1>
         window <kernel = [1, 1], group = 2> then <> label "b" delay 0 first 3 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi16> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.mac } } } }
    }
    nest.yield %1 : tensor<1x2x8x4xi16>
  }
  func.return
}

// -----

// A value of the group has a ring already.
// CHECK: nest.load: it loads a value from outside of its group
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x2x8x4xi16> {
    %3 = nest.load "m" %x rows 2 delay 0 keeps 2 : tensor<1x2x8x4xi16>
    %0 = nest.load "l" %3 rows 2 delay 0 keeps 2 : tensor<1x2x8x4xi16>
    %1 = nest.layer "max" %0 sizes <n = 1, k = 2, c = 1, h = 8, w = 4, r = 1, s = 1>
         window <kernel = [1, 1], group = 2> then <> label "b" delay 0 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi16> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.mac } } } }
    }
    nest.yield %1 : tensor<1x2x8x4xi16>
  }
  func.return
}

// -----

// Columns are those that the value has.
// CHECK: nest.columns: columns 2 to 4 of a value that has columns 0 to 3
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %0 = nest.columns %x from 2 : tensor<1x2x8x4xi16> -> tensor<1x2x8x3xi16>
  func.return
}

// -----

// CHECK: nest.columns: columns -1 to 1 of a value that has columns 0 to 3
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %0 = nest.columns %x from -1 : tensor<1x2x8x4xi16> -> tensor<1x2x8x3xi16>
  func.return
}

// -----

// Columns alone are left out.
// CHECK: nest.columns: (1, 2, 8, 4) and (1, 2, 7, 3) are not n c h w with other columns alone
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %0 = nest.columns %x from 1 : tensor<1x2x8x4xi16> -> tensor<1x2x7x3xi16>
  func.return
}

// -----

// The last of three strips ends behind the last column.
// CHECK: nest.columns: columns 0 to 5 of a value that has columns 0 to 3
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %0 = nest.columns %x from 0 every 2 : tensor<1x2x8x4xi16> -> tensor<3x2x8x2xi16>
  func.return
}

// -----

// CHECK: nest.columns: strips every 0 columns: 1 or more
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %0 = nest.columns %x from 0 every 0 : tensor<1x2x8x4xi16> -> tensor<3x2x8x2xi16>
  func.return
}

// -----

// Strips of several images would be no images of one value.
// CHECK: nest.columns: (2, 2, 8, 4) and (2, 2, 8, 2) are not n c h w with other columns alone
func.func @main(%x: tensor<2x2x8x4xi16>) {
  %0 = nest.columns %x from 0 every 2 : tensor<2x2x8x4xi16> -> tensor<2x2x8x2xi16>
  func.return
}

// -----

// CHECK: nest.join: the columns of [(3, 2, 8, 2)] are not the result's 4 columns
func.func @main(%x: tensor<3x2x8x2xi16>) {
  %0 = nest.join %x : (tensor<3x2x8x2xi16>) -> tensor<1x2x8x4xi16>
  func.return
}

// -----

// Strips have all other sides of the result.
// CHECK: nest.join: [(1, 2, 8, 4), (1, 1, 8, 4)] and (1, 2, 8, 8) are not n c h w with other columns alone
func.func @main(%x: tensor<1x2x8x4xi16>, %y: tensor<1x1x8x4xi16>) {
  %0 = nest.join %x, %y : (tensor<1x2x8x4xi16>, tensor<1x1x8x4xi16>) -> tensor<1x2x8x8xi16>
  func.return
}

// -----

// And as many columns together.
// CHECK: nest.join: the columns of [(1, 2, 8, 4), (1, 2, 8, 4)] are not the result's 7 columns
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %0 = nest.join %x, %x : (tensor<1x2x8x4xi16>, tensor<1x2x8x4xi16>) -> tensor<1x2x8x7xi16>
  func.return
}

// -----

// A group has no other ops.
// CHECK: nest.group: a group is layers, loads and nest.columns, then nest.yield
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %2 = nest.group "g" : tensor<1x2x8x4xi16> {
    %0 = nest.join %x : (tensor<1x2x8x4xi16>) -> tensor<1x2x8x4xi16>
    %1 = nest.layer "max" %0 sizes <n = 1, k = 2, c = 1, h = 8, w = 4, r = 1, s = 1>
         window <kernel = [1, 1], group = 2> then <> label "b" delay 0 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi16> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.mac } } } }
    }
    nest.yield %1 : tensor<1x2x8x4xi16>
  }
  func.return
}

// -----

// Loops and stages are those of a layer.
// CHECK: nest.stage: it stands in no nest.layer, so that nothing would run it
builtin.module {
  nest.stage weight in glb buffers 1
}

// -----

// So they are in a function.
// CHECK: nest.for: it stands in no nest.layer, so that nothing would run it
func.func @main() {
  nest.for h step 4 {
    nest.mac
  }
  func.return
}

// -----

// A channel is one between cores.
// CHECK: nest.channel: it stands in nest.cores
func.func @main(%x: tensor<1x2x8x4xi16>) {
  %0 = nest.channel "c" %x keeps 2 : tensor<1x2x8x4xi16>
  func.return
}
