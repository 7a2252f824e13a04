// Sums that leave their PEs, operands that stay there, products side by side.

// RUN: cnncc opt %s -p 'nest-to-array{arch="%s.toml"}' --split-input-file | filecheck %s

// Weights stay while the image passes; sums go down the rows of c, and are partial over two such parts.
builtin.module {
  // CHECK: array.tensor <name = "held.sums.glb", memory = "glb", words = 288>
  // CHECK: array.layer "held"
  // CHECK: array.view <name = "sums", tensor = "held.sums.glb", height = 6, width = 6, pitch = 6, plane = 36, steps = [{loop = "h1", axis = "y", step = 1}, {loop = "w2", axis = "x", step = 1}]>
  // CHECK: array.repeat <loop = "c0", count = 2> {
  // CHECK-NEXT: array.load <kind = "weight", view = "weight", place = {rows = 2, cols = 4, set_rows = 2, row = {step = 9}, col_set = {step = 36}}
  // CHECK-NEXT: array.repeat <loop = "h1", count = 6> {
  // CHECK-NEXT: array.repeat <loop = "w2", count = 6> {
  // CHECK-NEXT: array.load <kind = "ifmap", view = "ifmap", place = {rows = 2, cols = 4, set_rows = 2, row = {axis = "k", step = 1}}
  // CHECK-NEXT: array.mac <op = "mac", {{.*}}, taps = 9, ifmap = {tap = 1}, weight = {tap = 1}, clear = always, send = always, take_weight = ["h1", "w2"], give_weight = ["h1", "w2"], take_ifmap = always, give_ifmap = always>
  // CHECK-NEXT: array.commit <view = "output", {{.*}}, reduce = true, sums = "sums", fresh = ["c0"], final = ["c0"]>
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
  // CHECK: array.load <kind = "ifmap", {{.*}}, pattern = [{n = 8, axis = "x", step = 1}, {axis = "k", step = 1}, {axis = "y", step = 1}]
  // CHECK-NEXT: array.load <kind = "weight"
  // CHECK-NEXT: array.mac <op = "mac", {{.*}}, pixels = 6, ifmap = {pixel = 1}, psum = {pixel = 1}, clear = always, {{.*}}, take_ifmap = always>
  // CHECK-NEXT: array.load <kind = "weight", {{.*}}, start = {offset = 1}
  // CHECK-NEXT: array.mac <op = "mac", {{.*}}, ifmap = {base = 1, pixel = 1}, psum = {pixel = 1}, take_weight = always, give_weight = always>
  // CHECK-NEXT: array.load <kind = "weight", {{.*}}, start = {offset = 2}
  // CHECK-NEXT: array.mac <op = "mac", {{.*}}, ifmap = {base = 2, pixel = 1}, psum = {pixel = 1}, send = always, {{.*}}, give_ifmap = always>
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
  // CHECK: array.mac <op = "mac", {{.*}}, taps = 2, lanes = 2, ifmap = {tap = 2, lane = 1}, weight = {tap = 2, lane = 1},
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
