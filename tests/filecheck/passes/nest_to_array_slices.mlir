// RUN: cnncc opt %s -p 'nest-to-array{arch=spatial-4x4}' | filecheck %s

// A 1 x 1 layer of 4 rows of 3 pixels in blocks of one row, for which the image and the weights come in three slices of
// two channels each. Blocks alternate between two buffers, and so do slices: a block has an odd number of them.
builtin.module {
  // CHECK: array.layer "conv"
  // CHECK: array.unit
  // The first slices of the first block, and the second ones.
  // CHECK-NEXT: glb weight, words 2, count 2, dram_step 6, {{.*}}tokens take 1 give 2
  // CHECK-NEXT: glb ifmap, words 3, count 2, dram_step 12, {{.*}}tokens take 10 give 4
  // CHECK-NEXT: array.dma in, dram weight.dram, glb weight, words 2, count 2, dram_offset 2, glb_offset 4, dram_step 6, glb_step 2,
  // CHECK-NEXT: tokens take 1 give 2
  // CHECK-NEXT: array.dma in, dram ifmap.dram, glb ifmap, words 3, count 2, dram_offset 24, glb_offset 6, dram_step 12, glb_step 3,
  // CHECK-NEXT: tokens take 10 give 4
  // So nothing comes while the first ones are in use,
  // CHECK-NEXT: array.repeat h0, count 3
  // CHECK-NEXT: array.repeat c1, count 1
  // CHECK-NEXT: array.load weight, view weight, place rows 2 cols 3 set 1x3 lin+2*row_set,
  // CHECK-NEXT: pattern [1 by lin+1, 2 by lin+1, 1 by lin+1, 1 by lin+2], open always, close always, tokens take 2 give 1
  // CHECK: array.mac mac, place rows 2 cols 3 set 1x3, taps 2, ifmap tap, weight tap, clear always, take_weight always,
  // CHECK-NEXT: give_weight always, take_ifmap always, give_ifmap always
  // the third ones while the second ones are, into the buffers of the first,
  // CHECK: array.repeat c1, count 1
  // CHECK-NEXT: array.dma in, dram weight.dram, glb weight, words 2, count 2, dram_offset 4, dram_step 6, glb_step 2,
  // CHECK-NEXT: tokens take 1 give 2
  // CHECK-NEXT: array.dma in, dram ifmap.dram, glb ifmap, words 3, count 2, dram_offset 48, dram_step 12, glb_step 3,
  // CHECK-NEXT: tokens take 10 give 4
  // and the first ones of the next row while the third ones are.
  // CHECK: array.repeat c1, count 1
  // CHECK-NEXT: array.dma in, dram weight.dram, glb weight, words 2, count 2, glb_offset 4, dram_step 6, glb_step 2,
  // CHECK-NEXT: tokens take 1 give 2
  // CHECK-NEXT: array.dma in, dram ifmap.dram, glb ifmap, words 3, count 2, glb_offset 6, dram_step 12, glb_step 3, y 1,
  // CHECK-NEXT: tokens take 10 give 4
  // Its second slices, the fifth of all, go before the results.
  // CHECK: array.commit
  // CHECK-NEXT: array.dma in, dram weight.dram, glb weight, words 2, count 2, dram_offset 2, dram_step 6, glb_step 2,
  // CHECK-NEXT: tokens take 1 give 2
  // CHECK-NEXT: array.dma in, dram ifmap.dram, glb ifmap, words 3, count 2, dram_offset 24, dram_step 12, glb_step 3, y 1,
  // CHECK-NEXT: tokens take 10 give 4
  // CHECK-NEXT: array.dma out, dram output.dram
  // CHECK-NEXT: }
  // In the last row there are three slices still, and nothing after them.
  // CHECK-NEXT: array.repeat h0, count 1
  // CHECK-NEXT: array.repeat c1, count 1
  // CHECK-NEXT: array.load weight, view weight, place rows 2 cols 3 set 1x3 lin+2*row_set, start lin+36,
  // CHECK-NEXT: pattern [1 by lin+1, 2 by lin+1, 1 by lin+1, 1 by lin+2], open always, close always, tokens take 2 give 1
  // CHECK: array.repeat c1, count 1
  // CHECK-NEXT: array.dma in, dram weight.dram, glb weight, words 2, count 2, dram_offset 4, glb_offset 4, dram_step 6,
  // CHECK-NEXT: glb_step 2, tokens take 1 give 2
  // CHECK-NEXT: array.dma in, dram ifmap.dram, glb ifmap, words 3, count 2, dram_offset 48, glb_offset 6, dram_step 12,
  // CHECK-NEXT: glb_step 3, y 3, tokens take 10 give 4
  // CHECK: array.repeat c1, count 1
  // CHECK-NEXT: array.load weight, view weight, place rows 2 cols 3 set 1x3 lin+2*row_set, start lin+44,
  // CHECK-NEXT: pattern [1 by lin+1, 2 by lin+1, 1 by lin+1, 1 by lin+2], open always, close always, tokens take 2 give 1
  // CHECK: array.commit
  // CHECK-NEXT: array.dma out, dram output.dram, glb output, words 3, count 2, glb_offset 6, dram_step 12, glb_step 3, y 3,
  // CHECK-NEXT: tokens take 7 give 12
  // CHECK: array.sync
  weights.global @w : tensor<2x6x1x1xi16> = dense<1> : tensor<2x6x1x1xi16>
  func.func @main(%x: tensor<1x6x4x3xi16> {onnx.name = "image", cnn.quant = #cnn.quant<scale = 0.5>}) -> (tensor<1x2x4x3xi32> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 0.25>}) {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 6, h = 4, w = 3, r = 1, s = 1> window <kernel = [1, 1]> then <>
         label "conv" until "conv" : tensor<1x6x4x3xi16> -> tensor<1x2x4x3xi32> {
      nest.for h {
        nest.stage output in glb buffers 2
        nest.for c step 2 {
          nest.stage weight in glb buffers 2
          nest.stage ifmap in glb buffers 2
          nest.par k on rows { nest.par w on cols {
            nest.stage weight in rf buffers 2
            nest.stage ifmap in rf buffers 2
            nest.for c keep { nest.mac }
          } }
        }
      }
    }
    func.return %0 : tensor<1x2x4x3xi32>
  }
}
