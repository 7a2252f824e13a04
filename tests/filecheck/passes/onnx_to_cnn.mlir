// RUN: cnncc opt %s -p onnx-to-cnn{operand-bits=8} | filecheck %s
// RUN: not cnncc opt %s -p onnx-to-cnn{operand-bits=4} 2>&1 | filecheck %s --check-prefix=NARROW
// RUN: not cnncc opt %s -p onnx-to-cnn{psum-bits=64} 2>&1 | filecheck %s --check-prefix=PSUM

// Calibrated for more than 4 bits hold.
// NARROW: 'x' is calibrated for ±127, operands of 4 bits reach ±7
// PSUM: onnx-to-cnn: psum-bits = 64, it must be within 8..48

builtin.module attributes {onnx.ir_version = 9 : i64, onnx.opset_imports = {ai.onnx = 17 : i64}} {
// 2·5·5·2 results of the Conv take 2·2·2 MACs each, 2·7 of the Gemm 5; 2·4·2·2 of the one in groups 2·2.
// CHECK: cnn.macs_total = 998 : i64, cnn.operand_bits = 8 : i64, cnn.psum_bits = 32 : i64
// Weights in 8 bits, biases in 32, a scale for every channel. The Conv without a bias has none.
// CHECK: weights.global @conv0.w : tensor<5x2x2x2xi8>
// CHECK-NEXT: weights.global @conv0.q : tensor<5xf32>
// CHECK-NEXT: weights.global @pool.q : tensor<5xf32>
// CHECK-NEXT: weights.global @gemm_4.w : tensor<7x5x1x1xi8>
// CHECK-NEXT: weights.global @gemm_4.b : tensor<7xi32>
// CHECK-NEXT: weights.global @gemm_4.q : tensor<7xf32>
// CHECK-NEXT: weights.global @sum.q : tensor<3xf32>
// CHECK-NEXT: weights.global @product.q : tensor<3xf32>
// CHECK-NEXT: weights.global @groups.w : tensor<4x1x2x2xi8>
// CHECK-NEXT: weights.global @groups.q : tensor<4xf32>
func.func @main(%x: tensor<2x2x4x3xf32> {onnx.name = "x", cnn.range = #cnn.range<lo = -1.0, hi = 0.5, top = 127>})
    -> (tensor<2x7xf32> {onnx.name = "probabilities"}, tensor<2x7xf32> {onnx.name = "doubled"}) {
  %w = weights.constant : tensor<5x2x2x2xf32> = dense<0.25> : tensor<5x2x2x2xf32>
  %g = weights.constant : tensor<5x7xf32> = dense<0.5> : tensor<5x7xf32>
  %b = weights.constant : tensor<7xf32> = dense<1.0> : tensor<7xf32>
  // CHECK: func.func @main(%x: tensor<2x2x4x3xi8> {onnx.name = "x", cnn.quant = #cnn.quant<scale = 0.009842519648373127, clamp = [-127, 127]>})
  // CHECK-SAME: -> (tensor<2x7xf32> {onnx.name = "probabilities"}, tensor<2x7xi8> {onnx.name = "doubled", cnn.quant = #cnn.quant<scale = {{.*}}, clamp = [-63, 63]>})

  // Only the Relu reads the Conv: its range counts, and the sums beyond saturate before the clamp.
  // CHECK-NEXT: %[[C0:.*]] = cnn.conv %x weights @conv0.w window <kernel = [2, 2], pad = [1, 0, 1, 0]> label "conv0" : tensor<2x2x4x3xi8> -> tensor<2x5x5x2xi32>
  // CHECK-NEXT: %[[C1:.*]] = cnn.requant %[[C0]] by <scale = "conv0.q", clamp = [-100, 100]> label "conv0.requant" : tensor<2x5x5x2xi32> -> tensor<2x5x5x2xi8>
  // CHECK-NEXT: %[[R:.*]] = cnn.clamp %[[C1]] by <clamp = [0, 100]> label "relu"
  %c = onnx.node "Conv" name "/conv0/Conv"(%x, %w) {pads = array<i64: 1, 0, 1, 0>, cnn.ranges = [#cnn.range<lo = -9.0, hi = 2.0, top = 100>]} : (tensor<2x2x4x3xf32>, tensor<5x2x2x2xf32>) -> tensor<2x5x5x2xf32>
  %r = onnx.node "Relu" name "/relu/Relu"(%c) {cnn.ranges = [#cnn.range<lo = 0.0, hi = 2.0, top = 100>]} : (tensor<2x5x5x2xf32>) -> tensor<2x5x5x2xf32>

  // The mean is a sum, scaled; no division. Flatten and the Gemm's two dims cost one reshape, where they are returned.
  // CHECK-NEXT: %[[P0:.*]] = cnn.pool "sum" %[[R]] window <kernel = [5, 2]> label "pool" : tensor<2x5x5x2xi8> -> tensor<2x5x1x1xi32>
  // CHECK-NEXT: %[[P1:.*]] = cnn.requant %[[P0]] by <scale = "pool.q", clamp = [-127, 127]> label "pool.requant"
  // CHECK-NEXT: %[[G0:.*]] = cnn.conv %[[P1]] weights @gemm_4.w window <kernel = [1, 1]> label "gemm_4" : tensor<2x5x1x1xi8> -> tensor<2x7x1x1xi32>
  // CHECK-NEXT: %[[G1:.*]] = cnn.bias %[[G0]] @gemm_4.b label "gemm_4.bias"
  // CHECK-NEXT: %[[G2:.*]] = cnn.requant %[[G1]] by <scale = "gemm_4.q", clamp = [-127, 127]> label "gemm_4.requant"
  // CHECK-NEXT: %[[G3:.*]] = cnn.reshape %[[G2]] label "gemm_4.out" : tensor<2x7x1x1xi8> -> tensor<2x7xi8>
  %p = onnx.node "GlobalAveragePool" name "pool"(%r) {cnn.ranges = [#cnn.range<lo = 0.0, hi = 1.0, top = 127>]} : (tensor<2x5x5x2xf32>) -> tensor<2x5x1x1xf32>
  %f = onnx.node "Flatten"(%p) {cnn.ranges = [#cnn.range<lo = 0.0, hi = 1.0, top = 127>]} : (tensor<2x5x1x1xf32>) -> tensor<2x5xf32>
  %m = onnx.node "Gemm"(%f, %g, %b) {cnn.ranges = [#cnn.range<lo = 0.0, hi = 4.0, top = 127>]} : (tensor<2x5xf32>, tensor<5x7xf32>, tensor<7xf32>) -> tensor<2x7xf32>

  // CHECK-NEXT: %[[A:.*]] = cnn.add %[[G2]] residual %[[G2]] : tensor<2x7x1x1xi8> then <factors = "sum.q", add_clamp = [-63, 63]> label "sum"
  // CHECK-NEXT: %[[A1:.*]] = cnn.reshape %[[A]] label "sum.out"
  %a = onnx.node "Add" name "sum"(%m, %m) {cnn.ranges = [#cnn.range<lo = 0.0, hi = 8.0, top = 63>]} : (tensor<2x7xf32>, tensor<2x7xf32>) -> tensor<2x7xf32>

  // CHECK-NEXT: %[[T:.*]] = cnn.mul %[[G2]] residual %[[A]] : tensor<2x7x1x1xi8> then <factors = "product.q", multiply = true, add_clamp = [-127, 127]> label "product"
  %q = onnx.node "Mul" name "product"(%m, %a) {cnn.ranges = [#cnn.range<lo = 0.0, hi = 8.0, top = 127>]} : (tensor<2x7xf32>, tensor<2x7xf32>) -> tensor<2x7xf32>

  // Groups and dilation are the window's; the weights are those of a group's channels.
  // CHECK-NEXT: cnn.conv %x weights @groups.w window <kernel = [2, 2], dilation = [2, 1], group = 2> label "groups" : tensor<2x2x4x3xi8> -> tensor<2x4x2x2xi32>
  // CHECK-NEXT: cnn.requant
  %v = weights.constant : tensor<4x1x2x2xf32> = dense<0.5> : tensor<4x1x2x2xf32>
  %d = onnx.node "Conv" name "groups"(%x, %v) {group = 2 : i64, dilations = array<i64: 2, 1>, cnn.ranges = [#cnn.range<lo = -1.0, hi = 1.0, top = 127>]} : (tensor<2x2x4x3xf32>, tensor<4x1x2x2xf32>) -> tensor<2x4x2x2xf32>

  // Windows of 2 to 4 values: a scale for each of 4 x 4 positions. Where the pads count, one for each channel.
  // CHECK-NEXT: %[[V:.*]] = cnn.pool "sum" %x window <kernel = [2, 2], pad = [1, 1, 0, 1]> label "means" : tensor<2x2x4x3xi8> -> tensor<2x2x4x4xi32>
  // CHECK-NEXT: cnn.requant %[[V]] by <scale = "means.q", per_position = true, clamp = [-127, 127]> label "means.requant"
  // CHECK-NEXT: %[[U:.*]] = cnn.pool "sum" %x window <kernel = [2, 2], pad = [1, 1, 0, 1]> label "counted"
  // CHECK-NEXT: cnn.requant %[[U]] by <scale = "counted.q", clamp = [-127, 127]>
  %e = onnx.node "AveragePool" name "means"(%x) {kernel_shape = array<i64: 2, 2>, pads = array<i64: 1, 1, 0, 1>, cnn.ranges = [#cnn.range<lo = -1.0, hi = 1.0, top = 127>]} : (tensor<2x2x4x3xf32>) -> tensor<2x2x4x4xf32>
  %h = onnx.node "AveragePool" name "counted"(%x) {kernel_shape = array<i64: 2, 2>, pads = array<i64: 1, 1, 0, 1>, count_include_pad = 1 : i64, cnn.ranges = [#cnn.range<lo = -1.0, hi = 1.0, top = 127>]} : (tensor<2x2x4x3xf32>) -> tensor<2x2x4x4xf32>

  // The array has no Softmax; its result goes nowhere but out, and stays a float.
  // CHECK-NEXT: %[[S:.*]] = cnn.host model <"{{.*}}"> because "Softmax node 'soft': the array has no such operator" label "soft"(%[[G3]]) [#cnn.quant<scale = {{.*}}, clamp = [-127, 127]>] -> [#cnn.quant<scale = 0.0>] : (tensor<2x7xi8>) -> (tensor<2x7xf32>)
  // CHECK-NEXT: func.return %[[S]], %[[A1]]
  %s = onnx.node "Softmax" name "soft"(%m) : (tensor<2x7xf32>) -> tensor<2x7xf32>
  func.return %s, %a : tensor<2x7xf32>, tensor<2x7xf32>
}
}
