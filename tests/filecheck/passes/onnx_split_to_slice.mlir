// RUN: cnncc opt %s -p onnx-split-to-slice | filecheck %s

// Bounds are attributes before opset 10, and constants from then on.
builtin.module attributes {onnx.opset_imports = {ai.onnx = 9 : i64}} {
func.func @main(%x: tensor<2x7x5xf32>) -> (tensor<2x3x5xf32>, tensor<2x4x5xf32>, tensor<2x7x2xf32>, tensor<2x7x3xf32>) {
  // CHECK: %[[A:.*]] = onnx.node "Slice" name "s.slice"(%x) {starts = array<i64: 0>, ends = array<i64: 3>, axes = array<i64: 1>} : (tensor<2x7x5xf32>) -> tensor<2x3x5xf32>
  // CHECK-NEXT: %[[B:.*]] = onnx.node "Slice" name "s.slice.2"(%x) {starts = array<i64: 3>, ends = array<i64: 7>, axes = array<i64: 1>} : (tensor<2x7x5xf32>) -> tensor<2x4x5xf32>
  %0, %1 = onnx.node "Split" name "s"(%x) {axis = -2 : i64, split = array<i64: 3, 4>} : (tensor<2x7x5xf32>) -> (tensor<2x3x5xf32>, tensor<2x4x5xf32>)

  // Rows stay together.
  // CHECK-NEXT: %[[C:.*]], %[[D:.*]] = onnx.node "Split"(%x) {axis = 2
  // CHECK-NEXT: func.return %[[A]], %[[B]], %[[C]], %[[D]]
  %2, %3 = onnx.node "Split"(%x) {axis = 2 : i64, split = array<i64: 2, 3>} : (tensor<2x7x5xf32>) -> (tensor<2x7x2xf32>, tensor<2x7x3xf32>)
  func.return %0, %1, %2, %3 : tensor<2x3x5xf32>, tensor<2x4x5xf32>, tensor<2x7x2xf32>, tensor<2x7x3xf32>
}
}
