// RUN: cnncc opt %s -p 'nest-to-array{arch=spatial-4x4}' --split-input-file | filecheck %s

// Output stationary, sizes that the tiles do not divide. Padding is in the loads' starts, the stride in their steps.
builtin.module {
  // The bias of a channel is two words of 16 bits.
  // CHECK: weights.global @conv0.params : tensor<5x2xi16>
  // CHECK-DAG: array.tensor <name = "image", memory = "dram", words = 105, shape = [1, 3, 7, 5], role = "input", scale = 0.5, zero = 3>
  // CHECK-DAG: array.tensor <name = "sums", memory = "dram", words = 100, shape = [1, 5, 4, 5], role = "output", scale = 0.25>
  // Two slices of two channels each are in the GLB: 2 * 2 * 18 words of weights, 2 * 2 * 2 of parameters.
  // CHECK-DAG: array.tensor <name = "conv0.w.glb", memory = "glb", words = 72>
  // CHECK-DAG: array.tensor <name = "conv0.params.glb", memory = "glb", words = 8>
  // Both halves of those buffers are free at the start.
  // CHECK: array.signal <semaphore = 1, count = 2>
  // CHECK: array.layer "inputs" computes ""
  // CHECK: array.dma <direction = "in", dram = "dram0", glb = "glb0", words = 105>
  // CHECK: array.layer "conv0" computes "conv0"
  // Outside the image a load delivers the zero point.
  // CHECK-NEXT: array.view <name = "ifmap", tensor = "image.glb", height = 7, width = 5, pitch = 5, plane = 35, fill = 3, zero = 3, steps = [{loop = "w1", axis = "x", step = 3}, {loop = "c4", axis = "k", step = 2}]>
  // CHECK: array.view <name = "weight", tensor = "conv0.w.glb", wrap = 72, steps = [{loop = "c4", axis = "lin", step = 12}]>
  // CHECK: array.unit <bias = true>
  // Of 2 * 18 words of weights the first slice comes first: taken when a half is free, given as semaphore 3.
  // CHECK-NEXT: words = 4, tokens = {take = 1}>
  // CHECK-NEXT: words = 36, tokens = {give = 3}>
  // Four full channels in two turns, of which the last one is a loop of its own. The next slice comes meanwhile.
  // CHECK-NEXT: array.repeat <loop = "k0", count = 1>
  // CHECK-NEXT: words = 4, dram_offset = 4, glb_offset = 4, tokens = {take = 1}>
  // CHECK-NEXT: words = 36, dram_offset = 36, glb_offset = 36, tokens = {give = 3}>
  // Three columns of pixels, two channels: above and left of the image by the padding; rows move by the stride.
  // CHECK-NEXT: array.repeat <loop = "w1", count = 1>
  // CHECK-NEXT: array.repeat <loop = "c4", count = 1>
  // CHECK-NEXT: array.load <kind = "weight", {{.*}}, start = {}, pattern = [{n = 2, step = 1}, {n = 2, step = 6}, {n = 3, step = 2}, {n = 2, step = 18}], open = always, close = always, tokens = {take = 3}>
  // CHECK-NEXT: array.load <kind = "ifmap", view = "ifmap", place = {rows = 4, cols = 3, {{.*}}row = {axis = "y", step = 2}, col = {axis = "x", step = 1}}, start = {y = -2, x = -1}, pattern = [{axis = "x", step = 1}, {n = 2, axis = "k", step = 1}, {n = 3, axis = "y", step = 1}], open = always>
  // Kernel 2 and stride 1: one of two columns comes from the neighbour, at the edge of the set from the GLB.
  // CHECK-NEXT: start = {y = -2}, {{.*}}, slot = 6, edge = true, close = always>
  // CHECK-NEXT: array.mac <op = "mac", {{.*}}, taps = 12, step_range = 2, data_reuse = 6, {{.*}}, clear = always,
  // The third channel: sums are complete after it, and not before.
  // CHECK: array.repeat <loop = "c4", count = 1>
  // CHECK: start = {channel = 2, y = -2, x = -1}
  // CHECK: array.mac <op = "mac", {{.*}}, taps = 6, {{.*}}, send = always,
  // CHECK: array.commit <view = "output", place = {rows = 4, cols = 3,
  // The last two columns of five. After its last commit a slice's place is free.
  // CHECK: start = {y = -2, x = 2}
  // CHECK: array.commit <view = "output", place = {rows = 4, cols = 2, {{.*}}, start = {x = 3}, {{.*}}, tokens = {give = 1}>
  // Those of the fifth channel are 4 * 18 words on, in the half that is free.
  // CHECK: array.repeat <loop = "k0", count = 1>
  // CHECK-NEXT: words = 2, dram_offset = 8, tokens = {take = 1}>
  // CHECK-NEXT: words = 18, dram_offset = 72, tokens = {give = 3}>
  // CHECK: array.commit <{{.*}}, start = {channel = 2}, params = "params", param = 2
  // Nothing comes after the fifth channel.
  // CHECK: array.repeat <loop = "k0", count = 1>
  // CHECK-NEXT: array.repeat <loop = "w1", count = 1>
  // CHECK: array.commit <{{.*}}, start = {channel = 4}, params = "params", param = 4
  // The outputs wait until all is done.
  // CHECK: array.sync ["load", "array", "commit"]
  // CHECK: array.layer "outputs" computes ""
  // CHECK: array.dma <direction = "out", dram = "dram0", glb = "glb0", words = 100>
  weights.global @conv0.w : tensor<5x3x3x2xi16> = dense<1> : tensor<5x3x3x2xi16>
  weights.global @conv0.b : tensor<5xi32> = dense<[1, 2, 3, 4, 5]> : tensor<5xi32>
  func.func @main(%x: tensor<1x3x7x5xi16> {onnx.name = "image", cnn.quant = #cnn.quant<scale = 0.5, zero = 3>}) -> (tensor<1x5x4x5xi32> {onnx.name = "sums", cnn.quant = #cnn.quant<scale = 0.25>}) {
    %0 = nest.layer "mac" %x weights @conv0.w sizes <n = 1, k = 5, c = 3, h = 4, w = 5, r = 3, s = 2> window <kernel = [3, 2], stride = [2, 1], pad = [2, 1, 0, 0], fill = 3, zero = 3>
         then <bias = "conv0.b"> label "conv0" : tensor<1x3x7x5xi16> -> tensor<1x5x4x5xi32> {
      nest.for k step 2 {
        nest.stage weight in glb buffers 2
        nest.stage params in glb buffers 2
        nest.for w step 3 {
          nest.par h on rows {
            nest.par w on cols {
              nest.for c step 2 {
                nest.stage weight in rf buffers 2
                nest.stage ifmap in rf buffers 2
                nest.for s keep { nest.for c keep { nest.for r keep { nest.for k keep { nest.mac } } } }
              }
            }
          }
        }
      }
    }
    func.return %0 : tensor<1x5x4x5xi32>
  }
}

// -----

// A pool: no weights, no parameters, one macro-instruction.
builtin.module {
  // CHECK-NOT: "weight"
  // CHECK: array.layer "pool0" computes "pool0"
  // The sets' columns do not share pixels, and nothing is added to the maximum.
  // CHECK: array.unit <>
  // CHECK-NEXT: array.load <kind = "ifmap", {{.*}}row = {axis = "y", step = 2}, {{.*}}, start = {}, pattern = [{n = 3, axis = "k", step = 1}, {n = 2, axis = "x", step = 1}, {n = 2, axis = "y", step = 1}], open = always, close = always>
  // CHECK-NEXT: array.mac <op = "max", place = {rows = 3, cols = 4, set_rows = 3, set_cols = 4}, taps = 4, step_range = 3,
  // CHECK-NEXT: array.commit <view = "output",
  // CHECK-NEXT: array.sync
  func.func @main(%x: tensor<1x3x7x5xi16> {onnx.name = "image", cnn.quant = #cnn.quant<scale = 0.5>}) -> (tensor<1x3x3x4xi16> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 0.5>}) {
    %0 = nest.layer "max" %x sizes <n = 1, k = 3, c = 1, h = 3, w = 4, r = 2, s = 2> window <kernel = [2, 2], stride = [2, 1], group = 3, fill = -32768>
         then <> label "pool0" : tensor<1x3x7x5xi16> -> tensor<1x3x3x4xi16> {
      nest.par h on rows {
        nest.par w on cols {
          nest.stage ifmap in rf buffers 2
          nest.for k keep { nest.for s keep { nest.for r keep { nest.mac } } }
        }
      }
    }
    func.return %0 : tensor<1x3x3x4xi16>
  }
}

// -----

// A sum of two tensors streams through the output units; the PEs have no part in it.
builtin.module {
  weights.global @f : tensor<3xf32> = dense<[0.5, 0.5, 0.0]> : tensor<3xf32>
  func.func @main(%x: tensor<2x7xi16> {onnx.name = "x", cnn.quant = #cnn.quant<scale = 0.5>}) -> (tensor<2x7xi16> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 0.5>}) {
    // CHECK: array.layer "a" computes "a"
    // CHECK-NEXT: array.view <name = "ifmap", tensor = "x.glb">
    // CHECK-NEXT: array.view <name = "residual", tensor = "x.glb">
    // CHECK-NEXT: array.view <name = "output", tensor = "a.glb">
    // CHECK-NEXT: array.unit <factors = "f">
    // CHECK-NEXT: array.commit <view = "output", place = {}, source = "glb", operand = "ifmap", residual = "residual", pixels = {n = 14, step = 1}, channels = {step = 1}
    %0 = nest.layer "copy" %x residual %x : tensor<2x7xi16> sizes <n = 2, k = 7, c = 1, h = 1, w = 1, r = 1, s = 1> window <kernel = [1, 1], group = 7> then <factors = "f"> label "a" : tensor<2x7xi16> -> tensor<2x7xi16> {
      nest.for n { nest.for k { nest.mac } }
    }
    func.return %0 : tensor<2x7xi16>
  }
}

// -----

// Depthwise, five channels: two in a PE, in two sets on rows, and the last alone. Every channel has its own ifmap.
builtin.module {
  weights.global @w : tensor<5x1x2x3xi16> = dense<1> : tensor<5x1x2x3xi16>
  func.func @main(%x: tensor<1x5x4x3xi16> {onnx.name = "x", cnn.quant = #cnn.quant<scale = 0.5>}) -> (tensor<1x5x2x1xi32> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 0.5>}) {
    // CHECK: array.layer "d" computes "d"
    // Dilation 2: the rows of the taps only.
    // CHECK: array.load <kind = "weight", {{.*}}, row_set = {step = 12}}, start = {}, pattern = [{n = 2, step = 6}, {n = 3, step = 1}, {n = 2, step = 3}]
    // CHECK-NEXT: array.load <kind = "ifmap", {{.*}}row = {axis = "y", step = 1}, row_set = {axis = "k", step = 2}}, start = {}, pattern = [{n = 2, axis = "k", step = 1}, {n = 3, axis = "x", step = 1}, {n = 2, axis = "y", step = 2}], open = always, close = always>
    // CHECK-NEXT: array.mac <op = "mac", {{.*}}, taps = 6, step_range = 2, ifmap = {tap = 1, channel = 6}, weight = {tap = 1, channel = 6},
    // CHECK: array.commit
    // CHECK: array.load <kind = "weight", {{.*}}, start = {offset = 24}, pattern = [{step = 6}, {n = 3, step = 1}, {n = 2, step = 3}]
    // CHECK-NEXT: array.load <kind = "ifmap", {{.*}}, start = {channel = 4}
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 5, c = 1, h = 2, w = 1, r = 2, s = 3> window <kernel = [2, 3], dilation = [2, 1], group = 5> then <> label "d" : tensor<1x5x4x3xi16> -> tensor<1x5x2x1xi32> {
      nest.stage weight in glb buffers 1
      nest.par k step 2 on rows {
        nest.par h on rows {
          nest.stage weight in rf buffers 2
          nest.stage ifmap in rf buffers 2
          nest.for k keep { nest.for s keep { nest.for r keep { nest.mac } } }
        }
      }
    }
    func.return %0 : tensor<1x5x2x1xi32>
  }
}

// -----

// Groups of three channels by two: an iteration of the loop over groups moves by two input channels, inside a group by none.
builtin.module {
  weights.global @w : tensor<6x2x1x2xi16> = dense<1> : tensor<6x2x1x2xi16>
  func.func @main(%x: tensor<1x4x2x3xi16> {onnx.name = "x", cnn.quant = #cnn.quant<scale = 0.5>}) -> (tensor<1x6x2x2xi32> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 0.5>}) {
    // CHECK: array.layer "g" computes "g"
    // CHECK-NEXT: array.view <name = "ifmap", {{.*}}, steps = [{loop = "k0", axis = "k", step = 2}, {loop = "h1", axis = "y", step = 1}]>
    // CHECK: array.load <kind = "weight", {{.*}}, row_set = {step = 4}}, start = {},
    // CHECK-NEXT: array.load <kind = "ifmap", view = "ifmap", place = {rows = 3, cols = 2, set_cols = 2, col = {axis = "x", step = 1}},
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 6, c = 2, h = 2, w = 2, r = 1, s = 2> window <kernel = [1, 2], group = 2> then <> label "g" : tensor<1x4x2x3xi16> -> tensor<1x6x2x2xi32> {
      nest.stage weight in glb buffers 1
      nest.for k step 3 {
        nest.for h {
          nest.par k on rows {
            nest.par w on cols {
              nest.stage weight in rf buffers 2
              nest.stage ifmap in rf buffers 2
              nest.for s keep { nest.for c keep { nest.mac } }
            }
          }
        }
      }
    }
    func.return %0 : tensor<1x6x2x2xi32>
  }
}

// -----

// A scale for each position: the output has its positions on the channel axis, by which parameters go, and its channels
// as words. Two rows of four columns at a time, with their 2 x 4 scales of two words; then the last row.
builtin.module {
  // CHECK: weights.global @p.params : tensor<12x2xi16>
  // CHECK-DAG: array.tensor <name = "p.params.glb", memory = "glb", words = 16>
  weights.global @q : tensor<3x4xf32> = dense<0.5> : tensor<3x4xf32>
  func.func @main(%x: tensor<1x2x3x4xi16> {onnx.name = "x", cnn.quant = #cnn.quant<scale = 0.5>}) -> (tensor<1x2x3x4xi16> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 0.5>}) {
    // CHECK: array.layer "p" computes "p"
    // CHECK: array.view <name = "params.dram", tensor = "p.params", steps = [{loop = "h0", axis = "lin", step = 16}]>
    // CHECK-NEXT: array.view <name = "params", tensor = "p.params.glb">
    // CHECK-NEXT: array.view <name = "output", tensor = "p.glb", height = 3, width = 4, pitch = 4, plane = 1, steps = [{loop = "h0", axis = "k", step = 8}]>
    // CHECK-NEXT: array.unit <scale = true>
    // CHECK-NEXT: array.repeat <loop = "h0", count = 1>
    // CHECK-NEXT: array.dma <direction = "in", dram = "params.dram", glb = "params", words = 16, tokens = {take = 9, give = 3}>
    // CHECK: array.commit <view = "output", place = {rows = 2, cols = 4, set_rows = 2, set_cols = 4, row = {axis = "k", step = 4}, col = {axis = "k", step = 1}}, params = "params", channels = {n = 2, step = 12},
    // CHECK: array.repeat <loop = "h0", count = 1>
    // CHECK-NEXT: words = 8, dram_offset = 16, tokens = {take = 9, give = 3}>
    // CHECK: array.commit <view = "output", place = {cols = 4, {{.*}}, start = {channel = 8}, params = "params", channels
    %0 = nest.layer "add" %x sizes <n = 1, k = 2, c = 1, h = 3, w = 4, r = 3, s = 3> window <kernel = [3, 3], pad = [1, 1, 1, 1], group = 2> then <scale = "q", per_position = true> label "p" : tensor<1x2x3x4xi16> -> tensor<1x2x3x4xi16> {
      nest.for h step 2 {
        nest.stage params in glb buffers 1
        nest.par h on rows {
          nest.par w on cols {
            nest.stage ifmap in rf buffers 2
            nest.for k keep { nest.for s keep { nest.for r keep { nest.mac } } }
          }
        }
      }
    }
    func.return %0 : tensor<1x2x3x4xi16>
  }
}

// -----

// Image and output move through two buffers each, in blocks of two rows: while one is computed the next one comes.
builtin.module {
  // CHECK: array.signal <semaphore = 12, count = 2>
  // CHECK: array.layer "conv" computes "conv" ahead
  // A loop steps from row to row and from buffer to buffer: 3 channels of 4 rows of 4 columns are a block.
  // CHECK: array.view <name = "ifmap", tensor = "conv.ifmap.glb", height = 9, width = 4, pitch = 4, plane = 16, wrap = 96, ring_y = 4, steps = [{loop = "h0", axis = "lin", step = 48}, {loop = "h0", axis = "y", step = 2}, {loop = "c3", axis = "k", step = 1}]>
  // CHECK: array.view <name = "output", {{.*}}, wrap = 64, ring_y = 2, steps = [{loop = "h0", axis = "lin", step = 32},
  // CHECK: array.unit
  // The first block, above the image: it waits for nothing.
  // CHECK: array.dma <direction = "in", dram = "ifmap.dram", glb = "ifmap", words = 4, count = 3, dram_step = 36, glb_step = 16, rows = 4, y = -1, tokens = {give = 4}>
  // CHECK-NEXT: array.repeat <loop = "h0", count = 3>
  // The next one, from row 1 on, into the other buffer.
  // CHECK-NEXT: array.dma <{{.*}}, glb_offset = 48, {{.*}}rows = 4, y = 1, tokens = {give = 4}>
  // CHECK: array.commit <view = "output", {{.*}}, tokens = {take = 12, give = 7}>
  // CHECK: array.dma <direction = "out", {{.*}}, tokens = {take = 7, give = 12}>
  // The last two rows of eight, and a row that is left over: its image comes while these are computed.
  // CHECK: array.repeat <loop = "h0", count = 1>
  // CHECK-NEXT: array.dma <{{.*}}rows = 3, y = 7, tokens = {give = 4}>
  // CHECK: array.load <kind = "ifmap", {{.*}}, start = {offset = 144, y = 5, x = -1}
  // CHECK: array.repeat <loop = "h0", count = 1>
  // CHECK-NEXT: array.repeat <loop = "c3", count = 3>
  // CHECK-NOT: direction = "in"
  // CHECK: array.sync
  weights.global @w : tensor<4x3x3x3xi16> = dense<1> : tensor<4x3x3x3xi16>
  func.func @main(%x: tensor<1x3x9x4xi16> {onnx.name = "x", cnn.quant = #cnn.quant<scale = 1.0>}) -> (tensor<1x4x9x4xi16> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 1.0>}) {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 9, w = 4, r = 3, s = 3> window <kernel = [3, 3], pad = [1, 1, 1, 1]>
         then <clamp = [-99, 99]> label "conv" ahead : tensor<1x3x9x4xi16> -> tensor<1x4x9x4xi16> {
      nest.stage weight in glb buffers 1
      nest.for h step 2 {
        nest.stage ifmap in glb buffers 2
        nest.stage output in glb buffers 2
        nest.par h on rows {
          nest.par w on cols {
            nest.for c {
              nest.stage weight in rf buffers 2
              nest.stage ifmap in rf buffers 2
              nest.for s keep { nest.for r keep { nest.for k keep { nest.mac } } }
            }
          }
        }
      }
    }
    func.return %0 : tensor<1x4x9x4xi16>
  }
}
