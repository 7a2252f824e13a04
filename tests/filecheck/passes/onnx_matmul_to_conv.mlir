// RUN: cnncc opt %s -p onnx-matmul-to-conv | filecheck %s

builtin.module attributes {onnx.opset_imports = {ai.onnx = 17 : i64}} {
func.func @main(%x: tensor<2x5x4xf32>, %r: tensor<4x3xf32>) -> (tensor<2x5x3xf32>, tensor<2x5x3xf32>, tensor<5x3xf32>) {
  %w = weights.constant : tensor<4x3xf32> = dense<0.5> : tensor<4x3xf32>
  %b = weights.constant : tensor<1x1x3xf32> = dense<2.0> : tensor<1x1x3xf32>

  // All ten rows are pixels of one image. The bias and what follows come before the matrices are turned back.
  // CHECK: %[[X:.*]] = onnx.node "Reshape" name "fc.reshape"(%x, %{{.*}}) : (tensor<2x5x4xf32>, tensor<4xi64>) -> tensor<1x1x10x4xf32>
  // CHECK-NEXT: %[[I:.*]] = onnx.node "Transpose" name "fc.transpose"(%[[X]]) {perm = array<i64: 0, 3, 1, 2>} : (tensor<1x1x10x4xf32>) -> tensor<1x4x1x10xf32>
  // CHECK: %[[A:.*]] = onnx.node "Conv" name "fc"(%[[I]], %{{.*}}) : (tensor<1x4x1x10xf32>, tensor<3x4x1x1xf32>) -> tensor<1x3x1x10xf32>
  // CHECK: %[[B:.*]] = onnx.node "Add" name "bias"(%[[A]], %{{.*}}) : (tensor<1x3x1x10xf32>, tensor<3x1x1xf32>) -> tensor<1x3x1x10xf32>
  // CHECK-NEXT: %[[C:.*]] = onnx.node "Relu"(%[[B]]) : (tensor<1x3x1x10xf32>) -> tensor<1x3x1x10xf32>
  // CHECK-NEXT: %[[T:.*]] = onnx.node "Transpose" name "fc.transpose.2"(%[[C]]) {perm = array<i64: 0, 2, 3, 1>} : (tensor<1x3x1x10xf32>) -> tensor<1x1x10x3xf32>
  // CHECK: %[[Y:.*]] = onnx.node "Reshape" name "fc.reshape.2"(%[[T]], %{{.*}}) : (tensor<1x1x10x3xf32>, tensor<3xi64>) -> tensor<2x5x3xf32>
  %0 = onnx.node "MatMul" name "fc"(%x, %w) : (tensor<2x5x4xf32>, tensor<4x3xf32>) -> tensor<2x5x3xf32>
  %1 = onnx.node "Add" name "bias"(%0, %b) : (tensor<2x5x3xf32>, tensor<1x1x3xf32>) -> tensor<2x5x3xf32>
  %2 = onnx.node "Relu"(%1) : (tensor<2x5x3xf32>) -> tensor<2x5x3xf32>

  // Computed weights, and two matrices, stay.
  // CHECK-NEXT: %[[D:.*]] = onnx.node "MatMul"(%x, %r)
  // CHECK-NEXT: %[[M:.*]] = onnx.node "Squeeze"
  // CHECK-NEXT: %[[E:.*]] = onnx.node "MatMul"(%[[M]], %w)
  // CHECK-NEXT: func.return %[[Y]], %[[D]], %[[E]]
  %3 = onnx.node "MatMul"(%x, %r) : (tensor<2x5x4xf32>, tensor<4x3xf32>) -> tensor<2x5x3xf32>
  %4 = onnx.node "Squeeze"(%x) : (tensor<2x5x4xf32>) -> tensor<5x4xf32>
  %5 = onnx.node "MatMul"(%4, %w) : (tensor<5x4xf32>, tensor<4x3xf32>) -> tensor<5x3xf32>
  func.return %2, %3, %5 : tensor<2x5x3xf32>, tensor<2x5x3xf32>, tensor<5x3xf32>
}
}
