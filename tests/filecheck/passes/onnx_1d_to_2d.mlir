// RUN: cnncc opt %s -p onnx-1d-to-2d | filecheck %s

builtin.module attributes {onnx.opset_imports = {ai.onnx = 17 : i64}} {
func.func @main(%x: tensor<1x2x9xf32>, %y: tensor<1x4x3xf32>, %m: tensor<4x3xf32>) -> (tensor<1x4x3xf32>, tensor<4x3xf32>) {
  %w = weights.constant : tensor<4x2x3xf32> = dense<0.5> : tensor<4x2x3xf32>
  %c = weights.constant : tensor<4x1xf32> = dense<2.0> : tensor<4x1xf32>

  // The numbers of rows come before those of columns.
  // CHECK: %[[X:.*]] = onnx.node "Reshape" name "a.reshape"(%x, %{{.*}}) : (tensor<1x2x9xf32>, tensor<4xi64>) -> tensor<1x2x1x9xf32>
  // CHECK: %[[A:.*]] = onnx.node "Conv" name "a"(%[[X]], %{{.*}}) {pads = array<i64: 0, 1, 0, 0>, strides = array<i64: 1, 3>} : (tensor<1x2x1x9xf32>, tensor<4x2x1x3xf32>) -> tensor<1x4x1x3xf32>
  %0 = onnx.node "Conv" name "a"(%x, %w) {pads = array<i64: 1, 0>, strides = array<i64: 3>} : (tensor<1x2x9xf32>, tensor<4x2x3xf32>) -> tensor<1x4x3xf32>

  // What follows is of images, too, and its other operands with it.
  // CHECK-NEXT: %[[R:.*]] = onnx.node "Relu"(%[[A]]) : (tensor<1x4x1x3xf32>) -> tensor<1x4x1x3xf32>
  // CHECK: %[[Y:.*]] = onnx.node "Reshape"(%y, %{{.*}}) : (tensor<1x4x3xf32>, tensor<4xi64>) -> tensor<1x4x1x3xf32>
  // CHECK-NEXT: %[[S:.*]] = onnx.node "Add"(%[[R]], %[[Y]]) : (
  // CHECK: %[[T:.*]] = onnx.node "Add"(%[[S]], %{{.*}}) : (tensor<1x4x1x3xf32>, tensor<4x1x1xf32>) -> tensor<1x4x1x3xf32>
  // CHECK: %[[L:.*]] = onnx.node "Reshape"(%[[T]], %{{.*}}) : (tensor<1x4x1x3xf32>, tensor<3xi64>) -> tensor<1x4x3xf32>
  %1 = onnx.node "Relu"(%0) : (tensor<1x4x3xf32>) -> tensor<1x4x3xf32>
  %2 = onnx.node "Add"(%1, %y) : (tensor<1x4x3xf32>, tensor<1x4x3xf32>) -> tensor<1x4x3xf32>
  %3 = onnx.node "Add"(%2, %c) : (tensor<1x4x3xf32>, tensor<4x1xf32>) -> tensor<1x4x3xf32>

  // Nodes that follow no image, and those that the array has for no image, stay.
  // CHECK-NEXT: %[[N:.*]] = onnx.node "Relu"(%m) : (tensor<4x3xf32>) -> tensor<4x3xf32>
  // CHECK-NEXT: %[[P:.*]] = onnx.node "Softmax"(%[[L]]) : (tensor<1x4x3xf32>) -> tensor<1x4x3xf32>
  // CHECK-NEXT: func.return %[[P]], %[[N]]
  %4 = onnx.node "Relu"(%m) : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %5 = onnx.node "Softmax"(%3) : (tensor<1x4x3xf32>) -> tensor<1x4x3xf32>
  func.return %5, %4 : tensor<1x4x3xf32>, tensor<4x3xf32>
}
}
