// RUN: cnncc opt %s -p 'nest-to-array{arch=spatial-4x4}' | filecheck %s

// A 1 x 1 layer of 4 rows of 3 pixels in blocks of one row, for which the image and the weights come in three slices of
// two channels each. Blocks alternate between two buffers, and so do slices: a block has an odd number of them.
builtin.module {
  // CHECK: array.layer "conv"
  // CHECK: array.unit
  // The first slices of the first block, and the second ones.
  // CHECK-NEXT: glb = "weight", words = 2, count = 2, dram_step = 6, {{.*}}{take = 1, give = 2}>
  // CHECK-NEXT: glb = "ifmap", words = 3, count = 2, dram_step = 12, {{.*}}{take = 10, give = 4}>
  // CHECK-NEXT: glb = "weight", words = 2, count = 2, dram_offset = 2, glb_offset = 4,
  // CHECK-NEXT: glb = "ifmap", words = 3, count = 2, dram_offset = 24, glb_offset = 6,
  // So nothing comes while the first ones are in use,
  // CHECK-NEXT: array.repeat <loop = "h0", count = 3>
  // CHECK-NEXT: array.repeat <loop = "c1", count = 1>
  // CHECK-NEXT: array.load
  // CHECK: clear = always
  // the third ones while the second ones are, into the buffers of the first,
  // CHECK: array.repeat <loop = "c1", count = 1>
  // CHECK-NEXT: glb = "weight", words = 2, count = 2, dram_offset = 4, dram_step
  // CHECK-NEXT: glb = "ifmap", words = 3, count = 2, dram_offset = 48, dram_step
  // and the first ones of the next row while the third ones are.
  // CHECK: array.repeat <loop = "c1", count = 1>
  // CHECK-NEXT: glb = "weight", words = 2, count = 2, glb_offset = 4,
  // CHECK-NEXT: glb = "ifmap", words = 3, count = 2, glb_offset = 6, {{.*}}, y = 1,
  // Its second slices, the fifth of all, go before the results.
  // CHECK: array.commit
  // CHECK-NEXT: direction = "in", {{.*}}glb = "weight", words = 2, count = 2, dram_offset = 2, dram_step
  // CHECK-NEXT: direction = "in", {{.*}}glb = "ifmap", words = 3, count = 2, dram_offset = 24, {{.*}}, y = 1,
  // CHECK-NEXT: direction = "out", dram = "output.dram"
  // CHECK-NEXT: }
  // In the last row there are three slices still, and nothing after them.
  // CHECK-NEXT: array.repeat <loop = "h0", count = 1>
  // CHECK-NEXT: array.repeat <loop = "c1", count = 1>
  // CHECK-NEXT: array.load
  // CHECK: array.repeat <loop = "c1", count = 1>
  // CHECK-NEXT: glb = "weight", words = 2, count = 2, dram_offset = 4, glb_offset = 4,
  // CHECK-NEXT: glb = "ifmap", words = 3, count = 2, dram_offset = 48, glb_offset = 6, {{.*}}, y = 3,
  // CHECK: array.repeat <loop = "c1", count = 1>
  // CHECK-NEXT: array.load
  // CHECK: array.commit
  // CHECK-NEXT: direction = "out"
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
