// RUN: cnncc opt %s -p onnx-fold-functions --split-input-file | filecheck %s

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

// -----
// GELU as PyTorch writes it, with two readers. The node is called like the last one.
// CHECK: %[[Y:.*]] = onnx.node "Gelu" domain "com.microsoft" name "act"(%x) : (tensor<1x2xf32>) -> tensor<1x2xf32>
// CHECK-NEXT: %[[Z:.*]] = onnx.node "Add"(%[[Y]], %[[Y]])
// CHECK-NEXT: func.return %[[Z]]
builtin.module attributes {onnx.opset_imports = {ai.onnx = 14 : i64}} {
func.func @main(%x: tensor<1x2xf32>) -> tensor<1x2xf32> {
  %root = weights.constant : tensor<f32> = dense<1.41421354> : tensor<f32>
  %one = weights.constant : tensor<1xf32> = dense<1.0> : tensor<1xf32>
  %half = weights.constant : tensor<f32> = dense<0.5> : tensor<f32>
  %0 = onnx.node "Div"(%x, %root) : (tensor<1x2xf32>, tensor<f32>) -> tensor<1x2xf32>
  %1 = onnx.node "Erf"(%0) : (tensor<1x2xf32>) -> tensor<1x2xf32>
  %2 = onnx.node "Add"(%1, %one) : (tensor<1x2xf32>, tensor<1xf32>) -> tensor<1x2xf32>
  %3 = onnx.node "Mul"(%x, %2) : (tensor<1x2xf32>, tensor<1x2xf32>) -> tensor<1x2xf32>
  %4 = onnx.node "Mul" name "act"(%3, %half) : (tensor<1x2xf32>, tensor<f32>) -> tensor<1x2xf32>
  %5 = onnx.node "Add"(%4, %4) : (tensor<1x2xf32>, tensor<1x2xf32>) -> tensor<1x2xf32>
  func.return %5 : tensor<1x2xf32>
}
}

// -----
// This stays: something else reads the sum.
builtin.module attributes {onnx.opset_imports = {ai.onnx = 14 : i64}} {
func.func @main(%x: tensor<1x2xf32>) -> (tensor<1x2xf32>, tensor<1x2xf32>) {
  // CHECK-NOT: Gelu
  %root = weights.constant : tensor<f32> = dense<1.41421354> : tensor<f32>
  %one = weights.constant : tensor<f32> = dense<1.0> : tensor<f32>
  %half = weights.constant : tensor<f32> = dense<0.5> : tensor<f32>
  %0 = onnx.node "Div"(%x, %root) : (tensor<1x2xf32>, tensor<f32>) -> tensor<1x2xf32>
  %1 = onnx.node "Erf"(%0) : (tensor<1x2xf32>) -> tensor<1x2xf32>
  %2 = onnx.node "Add"(%1, %one) : (tensor<1x2xf32>, tensor<f32>) -> tensor<1x2xf32>
  %3 = onnx.node "Mul"(%x, %2) : (tensor<1x2xf32>, tensor<1x2xf32>) -> tensor<1x2xf32>
  %4 = onnx.node "Mul"(%3, %half) : (tensor<1x2xf32>, tensor<f32>) -> tensor<1x2xf32>
  func.return %4, %2 : tensor<1x2xf32>, tensor<1x2xf32>
}
}

// -----
// The first factor is not the number of the Softplus. A constant makes more dims of the result.
builtin.module attributes {onnx.opset_imports = {ai.onnx = 18 : i64}} {
func.func @main(%x: tensor<1x2xf32>, %z: tensor<1x2xf32>) -> (tensor<1x2xf32>, tensor<1x1x2xf32>) {
  // CHECK-NOT: onnx.node "{{Mish|HardSwish}}"
  %three = weights.constant : tensor<f32> = dense<3.0> : tensor<f32>
  %zero = weights.constant : tensor<f32> = dense<0.0> : tensor<f32>
  %six = weights.constant : tensor<f32> = dense<6.0> : tensor<f32>
  %deep = weights.constant : tensor<1x1x1xf32> = dense<6.0> : tensor<1x1x1xf32>
  %0 = onnx.node "Softplus"(%x) : (tensor<1x2xf32>) -> tensor<1x2xf32>
  %1 = onnx.node "Tanh"(%0) : (tensor<1x2xf32>) -> tensor<1x2xf32>
  %2 = onnx.node "Mul"(%z, %1) : (tensor<1x2xf32>, tensor<1x2xf32>) -> tensor<1x2xf32>
  %3 = onnx.node "Add"(%x, %three) : (tensor<1x2xf32>, tensor<f32>) -> tensor<1x2xf32>
  %4 = onnx.node "Clip"(%3, %zero, %six) : (tensor<1x2xf32>, tensor<f32>, tensor<f32>) -> tensor<1x2xf32>
  %5 = onnx.node "Mul"(%x, %4) : (tensor<1x2xf32>, tensor<1x2xf32>) -> tensor<1x2xf32>
  %6 = onnx.node "Div"(%5, %deep) : (tensor<1x2xf32>, tensor<1x1x1xf32>) -> tensor<1x1x2xf32>
  func.return %2, %6 : tensor<1x2xf32>, tensor<1x1x2xf32>
}
}

// -----
// The array file has the operator on the host that the nodes would become.
builtin.module attributes {onnx.host = ["Mish"], onnx.opset_imports = {ai.onnx = 18 : i64}} {
func.func @main(%x: tensor<1x2xf32>) -> tensor<1x2xf32> {
  // CHECK-NOT: onnx.node "Mish"
  %0 = onnx.node "Softplus"(%x) : (tensor<1x2xf32>) -> tensor<1x2xf32>
  %1 = onnx.node "Tanh"(%0) : (tensor<1x2xf32>) -> tensor<1x2xf32>
  %2 = onnx.node "Mul"(%x, %1) : (tensor<1x2xf32>, tensor<1x2xf32>) -> tensor<1x2xf32>
  func.return %2 : tensor<1x2xf32>
}
}
