// RUN: cnncc opt %s -p 'nest-to-array{arch=spatial-4x4}' --split-input-file | filecheck %s

// Output stationary, sizes that the tiles do not divide. Padding is in the loads' starts, the stride in their steps.
builtin.module {
  // The bias of a channel is two words of 16 bits.
  // CHECK: weights.global @conv0.params : tensor<5x2xi16>
  // CHECK-DAG: array.tensor image, memory dram, words 105, shape [1, 3, 7, 5], role input, scale 0.5, zero 3
  // CHECK-DAG: array.tensor sums, memory dram, words 100, shape [1, 5, 4, 5], role output, scale 0.25
  // Two slices of two channels each are in the GLB: 2 * 2 * 18 words of weights, 2 * 2 * 2 of parameters.
  // CHECK-DAG: array.tensor conv0.w.glb, memory glb, words 72
  // CHECK-DAG: array.tensor conv0.params.glb, memory glb, words 8
  // Both halves of those buffers are free at the start.
  // CHECK: array.signal semaphore 1, count 2
  // CHECK: array.layer "inputs" computes ""
  // CHECK: array.dma in, dram dram0, glb glb0, words 105
  // CHECK: array.layer "conv0" computes "conv0"
  // Outside the image a load delivers the zero point.
  // CHECK-NEXT: array.view ifmap, tensor image.glb, height 7, width 5, pitch 5, plane 35, fill 3, zero 3, steps [x+3*w1, k+2*c4]
  // CHECK: array.view weight, tensor conv0.w.glb, wrap 72, steps [lin+12*c4]
  // CHECK: array.unit bias
  // Of 2 * 18 words of weights the first slice comes first: taken when a half is free, given as semaphore 3.
  // CHECK-NEXT: words 4, tokens take 1
  // CHECK-NEXT: words 36, tokens give 3
  // Four full channels in two turns, of which the last one is a loop of its own. The next slice comes meanwhile.
  // CHECK-NEXT: array.repeat k0, count 1
  // CHECK-NEXT: words 4, dram_offset 4, glb_offset 4, tokens take 1
  // CHECK-NEXT: words 36, dram_offset 36, glb_offset 36, tokens give 3
  // Three columns of pixels, two channels: above and left of the image by the padding; rows move by the stride.
  // CHECK-NEXT: array.repeat w1, count 1
  // CHECK-NEXT: array.repeat c4, count 1
  // CHECK-NEXT: array.load weight, view weight, place rows 4 cols 3 set 4x3,
  // CHECK-NEXT: pattern [2 by lin+1, 2 by lin+6, 3 by lin+2, 2 by lin+18], open always, close always, tokens take 3
  // CHECK-NEXT: array.load ifmap, view ifmap, place rows 4 cols 3 set 4x3 y+2*row x+col, start y-2 x-1,
  // CHECK-NEXT: pattern [1 by x+1, 2 by k+1, 3 by y+1], open always
  // Kernel 2 and stride 1: one of two columns comes from the neighbour, at the edge of the set from the GLB.
  // CHECK-NEXT: array.load ifmap, view ifmap, place rows 4 cols 3 set 4x3 y+2*row x+col, start y-2,
  // CHECK-NEXT: pattern [1 by x+1, 2 by k+1, 3 by y+1], slot 6, edge, close always
  // CHECK-NEXT: array.mac mac, place rows 4 cols 3 set 4x3, taps 12, step_range 2, data_reuse 6, n2n_slot 6, ifmap tap,
  // CHECK-NEXT: weight 2*tap+channel, psum channel, clear always, take_weight always, give_weight always,
  // CHECK-NEXT: take_ifmap always, give_ifmap always
  // The third channel: sums are complete after it, and not before.
  // CHECK: array.repeat c4, count 1
  // CHECK: array.load ifmap, view ifmap, place rows 4 cols 3 set 4x3 y+2*row x+col, start k+2 y-2 x-1,
  // CHECK-NEXT: pattern [1 by x+1, 1 by k+1, 3 by y+1], open always
  // CHECK: array.mac mac, place rows 4 cols 3 set 4x3, taps 6, step_range 2, data_reuse 3, n2n_slot 3, ifmap tap,
  // CHECK-NEXT: weight 2*tap+channel, psum channel, send always, take_weight always, give_weight always,
  // CHECK-NEXT: take_ifmap always, give_ifmap always
  // CHECK: array.commit output, place rows 4 cols 3
  // The last two columns of five. After its last commit a slice's place is free.
  // CHECK: array.load ifmap, view ifmap, place rows 4 cols 2 set 4x2 y+2*row x+col, start y-2 x+2,
  // CHECK-NEXT: pattern [1 by x+1, 2 by k+1, 3 by y+1], open always
  // CHECK: array.commit output, place rows 4 cols 2 set 4x2 y+row x+col, start x+3, params params, channels 2 by k+1,
  // CHECK-NEXT: psum channel, tokens give 1
  // Those of the fifth channel are 4 * 18 words on, in the half that is free.
  // CHECK: array.repeat k0, count 1
  // CHECK-NEXT: words 2, dram_offset 8, tokens take 1
  // CHECK-NEXT: words 18, dram_offset 72, tokens give 3
  // CHECK: array.commit output, place rows 4 cols 3 set 4x3 y+row x+col, start k+2, params params, param 2,
  // CHECK-NEXT: channels 2 by k+1, psum channel
  // Nothing comes after the fifth channel.
  // CHECK: array.repeat k0, count 1
  // CHECK-NEXT: array.repeat w1, count 1
  // CHECK: array.commit {{.*}}, start k+4, params params, param 4
  // The outputs wait until all is done.
  // CHECK: array.sync [load, array, commit]
  // CHECK: array.layer "outputs" computes ""
  // CHECK: array.dma out, dram dram0, glb glb0, words 100
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
  // CHECK: array.unit 
  // CHECK-NEXT: array.load ifmap, view ifmap, place rows 3 cols 4 set 3x4 y+2*row x+col, pattern [3 by k+1, 2 by x+1, 2 by y+1],
  // CHECK-NEXT: open always, close always
  // CHECK-NEXT: array.mac max, place rows 3 cols 4 set 3x4, taps 4, step_range 3, ifmap tap+4*channel, psum channel, clear always,
  // CHECK-NEXT: send always, take_ifmap always, give_ifmap always
  // CHECK-NEXT: array.commit output
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
    // CHECK-NEXT: array.view ifmap, tensor x.glb
    // CHECK-NEXT: array.view residual, tensor x.glb
    // CHECK-NEXT: array.view output, tensor a.glb
    // CHECK-NEXT: array.unit factors f
    // CHECK-NEXT: array.commit output, source glb, operand ifmap, residual residual, pixels 14 by lin+1, channels 1 by lin+1
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
    // CHECK: array.load weight, view weight, place rows 4 cols 1 set 2x1 lin+12*row_set,
    // CHECK-NEXT: pattern [2 by lin+6, 3 by lin+1, 2 by lin+3], open always, close always, tokens take 3
    // CHECK-NEXT: array.load ifmap, view ifmap, place rows 4 cols 1 set 2x1 y+row k+2*row_set, pattern [2 by k+1, 3 by x+1, 2 by y+2],
    // CHECK-NEXT: open always, close always
    // CHECK-NEXT: array.mac mac, place rows 4 cols 1 set 2x1, taps 6, step_range 2, ifmap tap+6*channel, weight tap+6*channel,
    // CHECK-NEXT: psum channel, clear always, send always, take_weight always, give_weight always, take_ifmap always,
    // CHECK-NEXT: give_ifmap always
    // CHECK: array.commit
    // CHECK: array.load weight, view weight, place rows 2 cols 1 set 2x1, start lin+24,
    // CHECK-NEXT: pattern [1 by lin+6, 3 by lin+1, 2 by lin+3], open always, close always
    // CHECK-NEXT: array.load ifmap, view ifmap, place rows 2 cols 1 set 2x1 y+row, start k+4, pattern [1 by k+1, 3 by x+1, 2 by y+2],
    // CHECK-NEXT: open always, close always
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
    // CHECK-NEXT: array.view ifmap, {{.*}}, steps [k+2*k0, y+h1]
    // CHECK: array.load weight, view weight, place rows 3 cols 2 set 1x2 lin+4*row_set,
    // CHECK-NEXT: pattern [2 by lin+1, 2 by lin+2, 1 by lin+2, 1 by lin+4], open always, close always,
    // CHECK-NEXT: tokens take 3 when [k0, h1]
    // CHECK-NEXT: array.load ifmap, view ifmap, place rows 3 cols 2 set 1x2 x+col, pattern [1 by x+1, 2 by k+1, 1 by y+1],
    // CHECK-NEXT: open always
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
  // CHECK-DAG: array.tensor p.params.glb, memory glb, words 16
  weights.global @q : tensor<3x4xf32> = dense<0.5> : tensor<3x4xf32>
  func.func @main(%x: tensor<1x2x3x4xi16> {onnx.name = "x", cnn.quant = #cnn.quant<scale = 0.5>}) -> (tensor<1x2x3x4xi16> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 0.5>}) {
    // CHECK: array.layer "p" computes "p"
    // CHECK: array.view params.dram, tensor p.params, steps [lin+16*h0]
    // CHECK-NEXT: array.view params, tensor p.params.glb
    // CHECK-NEXT: array.view output, tensor p.glb, height 3, width 4, pitch 4, plane 1, steps [k+8*h0]
    // CHECK-NEXT: array.unit scale
    // CHECK-NEXT: array.repeat h0, count 1
    // CHECK-NEXT: array.dma in, dram params.dram, glb params, words 16, tokens take 9 give 3
    // CHECK: array.commit output, place rows 2 cols 4 set 2x4 k+4*row k+col, params params, channels 2 by lin+12, psum channel,
    // CHECK-NEXT: tokens give 9
    // CHECK: array.repeat h0, count 1
    // CHECK-NEXT: words 8, dram_offset 16, tokens take 9 give 3
    // CHECK: array.commit output, place rows 1 cols 4 set 1x4 k+col, start k+8, params params, channels 2 by lin+12,
    // CHECK-NEXT: psum channel, tokens give 9
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
  // CHECK: array.signal semaphore 12, count 2
  // CHECK: array.layer "conv" computes "conv" prefetched
  // A loop steps from row to row and from buffer to buffer: 3 channels of 4 rows of 4 columns are a block.
  // CHECK: array.view ifmap, tensor conv.ifmap.glb, height 9, width 4, pitch 4, plane 16, wrap 96, ring_y 4,
  // CHECK-NEXT: steps [lin+48*h0, y+2*h0, k+c3]
  // CHECK: array.view output, tensor conv.output.glb, height 9, width 4, pitch 4, plane 8, wrap 64, ring_y 2,
  // CHECK-NEXT: steps [lin+32*h0, y+2*h0]
  // CHECK: array.unit
  // The first block, above the image: it waits for nothing.
  // CHECK: array.dma in, dram ifmap.dram, glb ifmap, words 4, count 3, dram_step 36, glb_step 16, rows 4, y -1, tokens give 4
  // CHECK-NEXT: array.repeat h0, count 3
  // The next one, from row 1 on, into the other buffer.
  // CHECK-NEXT: array.dma in, dram ifmap.dram, glb ifmap, words 4, count 3, glb_offset 48, dram_step 36, glb_step 16, rows 4, y 1,
  // CHECK-NEXT: tokens give 4
  // CHECK: array.commit output, place rows 2 cols 4 set 2x4 y+row x+col, channels 4 by k+1, psum channel,
  // CHECK-NEXT: tokens take 12 give 7
  // CHECK: array.dma out, dram output.dram, glb output, words 4, count 4, dram_step 36, glb_step 8, rows 2,
  // CHECK-NEXT: tokens take 7 give 12
  // The last two rows of eight, and a row that is left over: its image comes while these are computed.
  // CHECK: array.repeat h0, count 1
  // CHECK-NEXT: array.dma {{.*}}rows 3, y 7, tokens give 4
  // CHECK: array.load ifmap, view ifmap, place rows 2 cols 4 set 2x4 y+row x+col, start lin+144 y+5 x-1,
  // CHECK-NEXT: pattern [1 by x+1, 1 by k+1, 3 by y+1], open always, tokens take 4 when [c3]
  // CHECK: array.repeat h0, count 1
  // CHECK-NEXT: array.repeat c3, count 3
  // CHECK-NOT: direction in
  // CHECK: array.sync
  weights.global @w : tensor<4x3x3x3xi16> = dense<1> : tensor<4x3x3x3xi16>
  func.func @main(%x: tensor<1x3x9x4xi16> {onnx.name = "x", cnn.quant = #cnn.quant<scale = 1.0>}) -> (tensor<1x4x9x4xi16> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 1.0>}) {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 3, h = 9, w = 4, r = 3, s = 3> window <kernel = [3, 3], pad = [1, 1, 1, 1]>
         then <clamp = [-99, 99]> label "conv" prefetched : tensor<1x3x9x4xi16> -> tensor<1x4x9x4xi16> {
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
