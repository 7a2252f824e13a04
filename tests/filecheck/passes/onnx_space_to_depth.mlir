// RUN: cnncc opt %s -p onnx-space-to-depth | filecheck %s

// Values are tested in test_space_to_depth.py. Here: shapes, names, and what stays.
builtin.module attributes {onnx.opset_imports = {ai.onnx = 17 : i64}} {
func.func @main(%x: tensor<1x1x4x6xf32>) -> (tensor<1x1x2x3xf32>, tensor<1x2x1x1xf32>, tensor<1x4x2x3xf32>, tensor<1x1x2x3xf32>) {
  %w = weights.constant : tensor<1x4x1x1xf32> = dense<[[[[1.0]], [[2.0]], [[3.0]], [[4.0]]]]> : tensor<1x4x1x1xf32>
  %v = weights.constant : tensor<2x4x3x3xf32> = dense<0.5> : tensor<2x4x3x3xf32>
  %b = weights.constant : tensor<2xf32> = dense<[1.0, 2.0]> : tensor<2xf32>

  // CHECK: %[[W:.*]] = weights.constant : tensor<1x1x2x2xf32> = #weights.ref<{{.*}}>
  // CHECK-NEXT: %[[A:.*]] = onnx.node "Conv" name "conv"(%x, %[[W]]) {kernel_shape = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>} : {{.*}} -> tensor<1x1x2x3xf32>
  %0 = onnx.node "SpaceToDepth" name "squares"(%x) {blocksize = 2 : i64} : (tensor<1x1x4x6xf32>) -> tensor<1x4x2x3xf32>
  %1 = onnx.node "Conv" name "conv"(%0, %w) : (tensor<1x4x2x3xf32>, tensor<1x4x1x1xf32>) -> tensor<1x1x2x3xf32>

  // CHECK: %[[B:.*]] = onnx.node "Conv" name "wide"(%x, %{{.*}}, %b) {kernel_shape = array<i64: 6, 6>, strides = array<i64: 4, 6>, pads = array<i64: 2, 0, 0, 2>} : (tensor<1x1x4x6xf32>, tensor<2x1x6x6xf32>, tensor<2xf32>) -> tensor<1x2x1x1xf32>
  %2 = onnx.node "SpaceToDepth" name "others"(%x) {blocksize = 2 : i64} : (tensor<1x1x4x6xf32>) -> tensor<1x4x2x3xf32>
  %3 = onnx.node "Conv" name "wide"(%2, %v, %b) {strides = array<i64: 2, 3>, pads = array<i64: 1, 0, 0, 1>} : (tensor<1x4x2x3xf32>, tensor<2x4x3x3xf32>, tensor<2xf32>) -> tensor<1x2x1x1xf32>

  // No convolution.
  // CHECK-NEXT: %[[C:.*]] = onnx.node "SpaceToDepth" name "alone"
  %4 = onnx.node "SpaceToDepth" name "alone"(%x) {blocksize = 2 : i64} : (tensor<1x1x4x6xf32>) -> tensor<1x4x2x3xf32>

  // Slices from a row on that is computed.
  // CHECK: onnx.node "Slice" name "first"
  // CHECK-NEXT: onnx.node "Concat" name "all"
  // CHECK-NEXT: %[[D:.*]] = onnx.node "Conv" name "sliced"
  // CHECK-NEXT: func.return %[[A]], %[[B]], %[[C]], %[[D]]
  %ends = weights.constant : tensor<2xi64> = dense<[4, 6]> : tensor<2xi64>
  %axes = weights.constant : tensor<2xi64> = dense<[2, 3]> : tensor<2xi64>
  %steps = weights.constant : tensor<2xi64> = dense<[2, 2]> : tensor<2xi64>
  %starts = onnx.node "Abs" name "starts"(%axes) : (tensor<2xi64>) -> tensor<2xi64>
  %5 = onnx.node "Slice" name "first"(%x, %starts, %ends, %axes, %steps) : (tensor<1x1x4x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<1x1x2x3xf32>
  %6 = onnx.node "Concat" name "all"(%5, %5, %5, %5) {axis = 1 : i64} : (tensor<1x1x2x3xf32>, tensor<1x1x2x3xf32>, tensor<1x1x2x3xf32>, tensor<1x1x2x3xf32>) -> tensor<1x4x2x3xf32>
  %7 = onnx.node "Conv" name "sliced"(%6, %w) : (tensor<1x4x2x3xf32>, tensor<1x4x1x1xf32>) -> tensor<1x1x2x3xf32>
  func.return %1, %3, %4, %7 : tensor<1x1x2x3xf32>, tensor<1x2x1x1xf32>, tensor<1x4x2x3xf32>, tensor<1x1x2x3xf32>
}
}
