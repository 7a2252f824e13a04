// Sums that leave their PEs, operands that stay there, products side by side.

// RUN: cnncc opt %s -p 'nest-to-array{arch="%s.toml"}' --split-input-file | filecheck %s

// Weights stay while the image passes; sums go down the rows of c, and are partial over two such parts.
builtin.module {
  // CHECK: array.tensor held.sums.glb, memory glb, words 288
  // CHECK: array.layer "held"
  // CHECK: array.view sums, tensor held.sums.glb, height 6, width 6, pitch 6, plane 36, steps [y+h1, x+w2]
  // CHECK: array.repeat c0, count 2 {
  // CHECK-NEXT: array.load weight, view weight, place rows 2 cols 4 set 2x1 lin+9*row lin+36*col_set,
  // CHECK-NEXT: pattern [1 by lin+36, 1 by lin+9, 3 by lin+3, 3 by lin+1], open always, close always, tokens take 3 when [c0]
  // CHECK-NEXT: array.repeat h1, count 6 {
  // CHECK-NEXT: array.repeat w2, count 6 {
  // CHECK-NEXT: array.load ifmap, view ifmap, place rows 2 cols 4 set 2x1 k+row, pattern [1 by k+1, 3 by y+1, 3 by x+1],
  // CHECK-NEXT: open always, close always
  // CHECK-NEXT: array.mac mac, place rows 2 cols 4 set 2x1, taps 9, ifmap tap, weight tap, clear always, send always,
  // CHECK-NEXT: take_weight [h1, w2], give_weight [h1, w2], take_ifmap always, give_ifmap always
  // CHECK-NEXT: array.commit output, place rows 2 cols 4 set 2x1 k+col_set, params params, reduce, sums sums, fresh [c0],
  // CHECK-NEXT: final [c0]
  weights.global @w : tensor<4x4x3x3xi16> = dense<1> : tensor<4x4x3x3xi16>
  weights.global @b : tensor<4xi32> = dense<[1, 2, 3, 4]> : tensor<4xi32>
  func.func @main(%x: tensor<1x4x8x8xi16> {onnx.name = "image", cnn.quant = #cnn.quant<scale = 0.5>}) -> (tensor<1x4x6x6xi16> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 0.25>}) {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 4, h = 6, w = 6, r = 3, s = 3> window <kernel = [3, 3]> then <bias = "b", clamp = [-32768, 32767]>
         label "held" until "held" : tensor<1x4x8x8xi16> -> tensor<1x4x6x6xi16> {
      nest.stage weight in glb buffers 1
      nest.stage params in glb buffers 1
      nest.for c step 2 {
        nest.stage weight in rf buffers 2
        nest.for h { nest.for w { nest.par c on rows { nest.par k on cols {
          nest.stage ifmap in rf buffers 2
          nest.for r keep { nest.for s keep { nest.mac } }
        } } } }
      }
    }
    func.return %0 : tensor<1x4x6x6xi16>
  }
}

// -----

// A row of the image stays, and is gone through by three taps: unrolled, each in a body that begins one slot on.
builtin.module {
  // CHECK: array.layer "row"
  // CHECK: array.load ifmap, {{.*}}, pattern [8 by x+1, 1 by k+1, 1 by y+1]
  // CHECK-NEXT: array.load weight, view weight, pattern [1 by lin+1, 1 by lin+3, 1 by lin+3, 1 by lin+3], open always, close always,
  // CHECK-NEXT: tokens take 3
  // CHECK-NEXT: array.mac mac, pixels 6, ifmap pixel, psum pixel, clear always, take_weight always, give_weight always,
  // CHECK-NEXT: take_ifmap always
  // CHECK-NEXT: array.load weight, view weight, start lin+1, pattern [1 by lin+1, 1 by lin+3, 1 by lin+3, 1 by lin+3], open always,
  // CHECK-NEXT: close always
  // CHECK-NEXT: array.mac mac, {{.*}}, ifmap 1+pixel, psum pixel, take_weight always, give_weight always
  // CHECK-NEXT: array.load weight, view weight, start lin+2, pattern [1 by lin+1, 1 by lin+3, 1 by lin+3, 1 by lin+3], open always,
  // CHECK-NEXT: close always
  // CHECK-NEXT: array.mac mac, pixels 6, ifmap 2+pixel, psum pixel, send always, take_weight always, give_weight always,
  // CHECK-NEXT: give_ifmap always
  weights.global @w : tensor<1x1x1x3xi16> = dense<1> : tensor<1x1x1x3xi16>
  func.func @main(%x: tensor<1x1x1x8xi16> {onnx.name = "image", cnn.quant = #cnn.quant<scale = 0.5>}) -> (tensor<1x1x1x6xi32> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 0.25>}) {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 1, c = 1, h = 1, w = 6, r = 1, s = 3> window <kernel = [1, 3]> then <>
         label "row" until "row" : tensor<1x1x1x8xi16> -> tensor<1x1x1x6xi32> {
      nest.stage weight in glb buffers 1
      nest.stage ifmap in rf buffers 2
      nest.for s {
        nest.stage weight in rf buffers 2
        nest.for w keep { nest.mac }
      }
    }
    func.return %0 : tensor<1x1x1x6xi32>
  }
}

// -----

// Four channels are two steps of two products.
builtin.module {
  // CHECK: array.layer "lanes"
  // CHECK: array.mac mac, taps 2, lanes 2, ifmap 2*tap+lane, weight 2*tap+lane, clear always, send always, take_weight always,
  // CHECK-NEXT: give_weight always, take_ifmap always, give_ifmap always
  weights.global @w : tensor<1x4x1x1xi16> = dense<1> : tensor<1x4x1x1xi16>
  func.func @main(%x: tensor<1x4x1x1xi16> {onnx.name = "image", cnn.quant = #cnn.quant<scale = 0.5>}) -> (tensor<1x1x1x1xi32> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 0.25>}) {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 1, c = 4, h = 1, w = 1, r = 1, s = 1> window <kernel = [1, 1]> then <>
         label "lanes" until "lanes" : tensor<1x4x1x1xi16> -> tensor<1x1x1x1xi32> {
      nest.stage weight in glb buffers 1
      nest.stage weight in rf buffers 2
      nest.stage ifmap in rf buffers 2
      nest.for c step 2 keep { nest.par c on lanes keep { nest.mac } }
    }
    func.return %0 : tensor<1x1x1x1xi32>
  }
}

// -----

// Two output channels of one input channel at a time, each in a lane of its own: both read the same word of the image.
builtin.module {
  // CHECK: array.layer "own"
  // CHECK: array.mac mac, pixels 2, taps 3, step_range 2, lanes 2, ifmap pixel+tap, weight 4*tap+2*channel+lane,
  // CHECK-NEXT: psum 4*pixel+2*channel+lane
  // CHECK: array.commit output, {{.*}}channels 4 by k+1, psum 4*pixel+channel
  weights.global @w : tensor<4x1x1x3xi16> = dense<1> : tensor<4x1x1x3xi16>
  func.func @main(%x: tensor<1x1x1x4xi16> {onnx.name = "image", cnn.quant = #cnn.quant<scale = 0.5>}) -> (tensor<1x4x1x2xi32> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 0.25>}) {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 1, h = 1, w = 2, r = 1, s = 3> window <kernel = [1, 3]> then <>
         label "own" until "own" : tensor<1x1x1x4xi16> -> tensor<1x4x1x2xi32> {
      nest.stage weight in glb buffers 1
      nest.stage weight in rf buffers 2
      nest.stage ifmap in rf buffers 2
      nest.for w keep { nest.for s keep { nest.for k step 2 keep { nest.par k on lanes keep { nest.mac } } } }
    }
    func.return %0 : tensor<1x4x1x2xi32>
  }
}

// -----

// A pool of three channels in two tiles: one of two channels in two lanes, and one of a channel, in one lane.
builtin.module {
  // CHECK: array.layer "pool"
  // CHECK: array.mac max, pixels 2, taps 2, lanes 2, ifmap 4*pixel+2*tap+lane, psum 2*pixel+lane
  // CHECK: array.mac max, pixels 2, taps 2, ifmap 2*pixel+tap, psum pixel
  func.func @main(%x: tensor<1x3x1x4xi16> {onnx.name = "image", cnn.quant = #cnn.quant<scale = 0.5>}) -> (tensor<1x3x1x2xi32> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 0.25>}) {
    %0 = nest.layer "max" %x sizes <n = 1, k = 3, c = 1, h = 1, w = 2, r = 1, s = 2> window <kernel = [1, 2], stride = [1, 2], group = 3> then <>
         label "pool" until "pool" : tensor<1x3x1x4xi16> -> tensor<1x3x1x2xi32> {
      nest.for k step 2 {
        nest.stage ifmap in rf buffers 2
        nest.for w keep { nest.for s keep { nest.par k on lanes keep { nest.mac } } }
      }
    }
    func.return %0 : tensor<1x3x1x2xi32>
  }
}
