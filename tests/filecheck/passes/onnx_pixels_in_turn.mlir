// RUN: cnncc opt %s -p onnx-pixels-in-turn | filecheck %s

// Values are tested in test_pixels_in_turn.py. Here: shapes, names, and what stays.
builtin.module attributes {onnx.opset_imports = {ai.onnx = 17 : i64}} {
func.func @main(%x: tensor<1x2x5x7xf32>) -> (tensor<1x2x10x14xf32>, tensor<1x3x10x14xf32>, tensor<1x3x10x14xf32>, tensor<1x2x10x14xf32>) {
  %none = onnx.absent
  %s = weights.constant : tensor<4xf32> = dense<[1.0, 1.0, 2.0, 2.0]> : tensor<4xf32>
  %w = weights.constant : tensor<12x2x3x3xf32> = dense<0.5> : tensor<12x2x3x3xf32>
  %b = weights.constant : tensor<12xf32> = dense<[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]> : tensor<12xf32>
  %split = weights.constant : tensor<6xi64> = dense<[1, 3, 2, 2, 5, 7]> : tensor<6xi64>
  %whole = weights.constant : tensor<4xi64> = dense<[1, 3, 10, 14]> : tensor<4xi64>

  // Each pixel four times.
  // CHECK: %[[A:.*]] = onnx.node "Concat" name "up.concat"(%x, %x, %x, %x) {axis = 1 : i64} : {{.*}} -> tensor<1x8x5x7xf32>
  // CHECK-NEXT: %[[UP:.*]] = onnx.node "DepthToSpace" name "up"(%[[A]]) {blocksize = 2 : i64} : (tensor<1x8x5x7xf32>) -> tensor<1x2x10x14xf32>
  %0 = onnx.node "Resize" name "up"(%x, %none, %s) {mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric"} : (tensor<1x2x5x7xf32>, none, tensor<4xf32>) -> tensor<1x2x10x14xf32>

  // A convolution for each pixel, of the filters of that pixel, and with the activation behind.
  // CHECK: %[[B:.*]] = onnx.node "Conv" name "conv"(%x, %{{.*}}, %{{.*}}) {pads = array<i64: 1, 1, 1, 1>} : (tensor<1x2x5x7xf32>, tensor<3x2x3x3xf32>, tensor<3xf32>) -> tensor<1x3x5x7xf32>
  // CHECK-NEXT: %[[C:.*]] = onnx.node "Relu" name "relu"(%[[B]]) : (tensor<1x3x5x7xf32>) -> tensor<1x3x5x7xf32>
  // CHECK: onnx.node "Conv" name "conv.2"
  // CHECK-NEXT: %[[D:.*]] = onnx.node "Relu" name "relu.2"
  // CHECK: onnx.node "Conv" name "conv.3"
  // CHECK-NEXT: %[[E:.*]] = onnx.node "Relu" name "relu.3"
  // CHECK: onnx.node "Conv" name "conv.4"
  // CHECK-NEXT: %[[F:.*]] = onnx.node "Relu" name "relu.4"
  // CHECK-NEXT: %[[G:.*]] = onnx.node "Concat" name "conv.concat"(%[[C]], %[[D]], %[[E]], %[[F]]) {axis = 1 : i64}
  // CHECK-NEXT: %[[SHUFFLED:.*]] = onnx.node "DepthToSpace" name "shuffle"(%[[G]]) {blocksize = 2 : i64} : (tensor<1x12x5x7xf32>) -> tensor<1x3x10x14xf32>
  %1 = onnx.node "Conv" name "conv"(%x, %w, %b) {pads = array<i64: 1, 1, 1, 1>} : (tensor<1x2x5x7xf32>, tensor<12x2x3x3xf32>, tensor<12xf32>) -> tensor<1x12x5x7xf32>
  %2 = onnx.node "DepthToSpace" name "shuffle"(%1) {blocksize = 2 : i64, mode = "CRD"} : (tensor<1x12x5x7xf32>) -> tensor<1x3x10x14xf32>
  %3 = onnx.node "Relu" name "relu"(%2) : (tensor<1x3x10x14xf32>) -> tensor<1x3x10x14xf32>

  // The same by a Transpose.
  // CHECK: onnx.node "Conv" name "by_hand"
  // CHECK: onnx.node "Conv" name "by_hand.4"
  // CHECK-NEXT: onnx.node "Concat" name "by_hand.concat"
  // CHECK-NEXT: %[[BY_HAND:.*]] = onnx.node "DepthToSpace" name "third"
  %4 = onnx.node "Conv" name "by_hand"(%x, %w, %b) {pads = array<i64: 1, 1, 1, 1>} : (tensor<1x2x5x7xf32>, tensor<12x2x3x3xf32>, tensor<12xf32>) -> tensor<1x12x5x7xf32>
  %5 = onnx.node "Reshape" name "first"(%4, %split) : (tensor<1x12x5x7xf32>, tensor<6xi64>) -> tensor<1x3x2x2x5x7xf32>
  %6 = onnx.node "Transpose" name "second"(%5) {perm = array<i64: 0, 1, 4, 2, 5, 3>} : (tensor<1x3x2x2x5x7xf32>) -> tensor<1x3x5x2x7x2xf32>
  %7 = onnx.node "Reshape" name "third"(%6, %whole) : (tensor<1x3x5x2x7x2xf32>, tensor<4xi64>) -> tensor<1x3x10x14xf32>

  // Means of pixels.
  // CHECK-NEXT: %[[LINEAR:.*]] = onnx.node "Resize" name "linear"
  // CHECK-NEXT: func.return %[[UP]], %[[SHUFFLED]], %[[BY_HAND]], %[[LINEAR]]
  %8 = onnx.node "Resize" name "linear"(%x, %none, %s) {mode = "linear"} : (tensor<1x2x5x7xf32>, none, tensor<4xf32>) -> tensor<1x2x10x14xf32>
  func.return %0, %3, %7, %8 : tensor<1x2x10x14xf32>, tensor<1x3x10x14xf32>, tensor<1x3x10x14xf32>, tensor<1x2x10x14xf32>
}
}
