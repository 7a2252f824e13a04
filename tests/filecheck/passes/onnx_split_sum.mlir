// RUN: cnncc opt %s -p onnx-split-sum | filecheck %s

builtin.module attributes {onnx.opset_imports = {ai.onnx = 15 : i64}} {
func.func @main(%x: tensor<2x3xf32>, %y: tensor<2x3xf32>, %z: tensor<3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
  // The last sum has the names; from left to right.
  // CHECK: %[[A:.*]] = onnx.node "Sum"(%x, %y) : (
  // CHECK-NEXT: %[[B:.*]] = onnx.node "Sum"(%[[A]], %x) : (
  // CHECK-NEXT: %[[C:.*]] = onnx.node "Sum" name "s"(%[[B]], %y) outputs ["out"]
  %0 = onnx.node "Sum" name "s"(%x, %y, %x, %y) outputs ["out"] : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>

  // Broadcast sums stay; a sum of one is that one.
  // CHECK-NEXT: %[[D:.*]] = onnx.node "Sum"(%[[C]], %z, %y)
  // CHECK-NEXT: func.return %[[C]], %[[D]]
  %1 = onnx.node "Sum"(%0) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %2 = onnx.node "Sum"(%1, %z, %y) : (tensor<2x3xf32>, tensor<3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  func.return %1, %2 : tensor<2x3xf32>, tensor<2x3xf32>
}
}
