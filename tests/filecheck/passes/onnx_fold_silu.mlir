// RUN: cnncc opt %s -p onnx-fold-silu --split-input-file | filecheck %s

// The operator is onnxruntime's own. The node is called like the product.
// CHECK: onnx.opset_imports = {ai.onnx = 14 : i64, com.microsoft = 1 : i64}
builtin.module attributes {onnx.opset_imports = {ai.onnx = 14 : i64}} {
func.func @main(%x: tensor<1x2x3x4xf32>) -> (tensor<1x2x3x4xf32>, tensor<1x2x3x4xf32>) {
  // CHECK: %[[A:.*]] = onnx.node "QuickGelu" domain "com.microsoft" name "a"(%x) {alpha = 1.000000e+00 : f32} : (tensor<1x2x3x4xf32>) -> tensor<1x2x3x4xf32>
  %0 = onnx.node "Sigmoid" name "s"(%x) : (tensor<1x2x3x4xf32>) -> tensor<1x2x3x4xf32>
  %1 = onnx.node "Mul" name "a"(%x, %0) : (tensor<1x2x3x4xf32>, tensor<1x2x3x4xf32>) -> tensor<1x2x3x4xf32>
  // In the other order.
  // CHECK-NEXT: %[[B:.*]] = onnx.node "QuickGelu" domain "com.microsoft" name "b"(%[[A]])
  // CHECK-NEXT: func.return %[[A]], %[[B]]
  %2 = onnx.node "Sigmoid" name "t"(%1) : (tensor<1x2x3x4xf32>) -> tensor<1x2x3x4xf32>
  %3 = onnx.node "Mul" name "b"(%2, %1) : (tensor<1x2x3x4xf32>, tensor<1x2x3x4xf32>) -> tensor<1x2x3x4xf32>
  func.return %1, %3 : tensor<1x2x3x4xf32>, tensor<1x2x3x4xf32>
}
}

// -----
// These stay: a Sigmoid with another reader, that of another value, and one of f64.
builtin.module attributes {onnx.opset_imports = {ai.onnx = 14 : i64}} {
func.func @main(%x: tensor<1x2xf32>, %z: tensor<1x2xf32>, %d: tensor<1x2xf64>) -> (tensor<1x2xf32>, tensor<1x2xf32>, tensor<1x2xf32>, tensor<1x2xf64>) {
  // CHECK-NOT: QuickGelu
  %0 = onnx.node "Sigmoid"(%x) : (tensor<1x2xf32>) -> tensor<1x2xf32>
  %1 = onnx.node "Mul"(%x, %0) : (tensor<1x2xf32>, tensor<1x2xf32>) -> tensor<1x2xf32>
  %2 = onnx.node "Sigmoid"(%x) : (tensor<1x2xf32>) -> tensor<1x2xf32>
  %3 = onnx.node "Mul"(%z, %2) : (tensor<1x2xf32>, tensor<1x2xf32>) -> tensor<1x2xf32>
  %4 = onnx.node "Sigmoid"(%d) : (tensor<1x2xf64>) -> tensor<1x2xf64>
  %5 = onnx.node "Mul"(%d, %4) : (tensor<1x2xf64>, tensor<1x2xf64>) -> tensor<1x2xf64>
  func.return %0, %1, %3, %5 : tensor<1x2xf32>, tensor<1x2xf32>, tensor<1x2xf32>, tensor<1x2xf64>
}
}

// -----
// The array file has Sigmoid on the host.
builtin.module attributes {onnx.host = ["Sigmoid"], onnx.opset_imports = {ai.onnx = 14 : i64}} {
func.func @main(%x: tensor<1x2xf32>) -> tensor<1x2xf32> {
  // CHECK-NOT: QuickGelu
  %0 = onnx.node "Sigmoid"(%x) : (tensor<1x2xf32>) -> tensor<1x2xf32>
  %1 = onnx.node "Mul"(%x, %0) : (tensor<1x2xf32>, tensor<1x2xf32>) -> tensor<1x2xf32>
  func.return %1 : tensor<1x2xf32>
}
}
