// RUN: cnncc opt %s -p onnx-hard-to-clip --split-input-file | filecheck %s

// Bounds of Clip are constants from opset 11 on.
builtin.module attributes {onnx.opset_imports = {ai.onnx = 14 : i64}} {
func.func @main(%x: tensor<2x7x5x3xf32>, %d: tensor<2x7xf64>, %v: tensor<7xf32>) -> (tensor<2x7x5x3xf32>, tensor<2x7xf64>, tensor<7xf32>) {
  // CHECK: %[[A:.*]] = weights.constant : tensor<f32>
  // CHECK-NEXT: %[[B:.*]] = weights.constant : tensor<f32>
  // CHECK-NEXT: %[[LO:.*]] = weights.constant : tensor<f32>
  // CHECK-NEXT: %[[HI:.*]] = weights.constant : tensor<f32>
  // CHECK-NEXT: %[[M:.*]] = onnx.node "Mul" name "g.mul"(%x, %[[A]])
  // CHECK-NEXT: %[[L:.*]] = onnx.node "Add" name "g.add"(%[[M]], %[[B]])
  // CHECK-NEXT: %[[G:.*]] = onnx.node "Clip" name "g"(%[[L]], %[[LO]], %[[HI]])
  %0 = onnx.node "HardSigmoid" name "g"(%x) {alpha = 0.25 : f32} : (tensor<2x7x5x3xf32>) -> tensor<2x7x5x3xf32>

  // Other numbers than f32, and vectors, stay.
  // CHECK-NEXT: %[[D:.*]] = onnx.node "HardSigmoid"(%d)
  // CHECK-NEXT: %[[V:.*]] = onnx.node "HardSigmoid"(%v)
  // CHECK-NEXT: func.return %[[G]], %[[D]], %[[V]]
  %2 = onnx.node "HardSigmoid"(%d) : (tensor<2x7xf64>) -> tensor<2x7xf64>
  %3 = onnx.node "HardSigmoid"(%v) : (tensor<7xf32>) -> tensor<7xf32>
  func.return %0, %2, %3 : tensor<2x7x5x3xf32>, tensor<2x7xf64>, tensor<7xf32>
}
}

// -----

// Before, they are attributes.
builtin.module attributes {onnx.opset_imports = {ai.onnx = 9 : i64}} {
func.func @main(%x: tensor<2x7xf32>) -> tensor<2x7xf32> {
  // CHECK: onnx.node "Clip"(%{{.*}}) {min = {{0.0.*}} : f32, max = {{1.0.*}} : f32} : (tensor<2x7xf32>) -> tensor<2x7xf32>
  %0 = onnx.node "HardSigmoid"(%x) : (tensor<2x7xf32>) -> tensor<2x7xf32>
  func.return %0 : tensor<2x7xf32>
}
}

// -----

// The array file has HardSigmoid on the host.
builtin.module attributes {onnx.opset_imports = {ai.onnx = 17 : i64}, onnx.host = ["HardSigmoid"]} {
func.func @main(%x: tensor<2x7xf32>) -> tensor<2x7xf32> {
  // CHECK: onnx.node "HardSigmoid"
  %0 = onnx.node "HardSigmoid"(%x) : (tensor<2x7xf32>) -> tensor<2x7xf32>
  func.return %0 : tensor<2x7xf32>
}
}

// -----

// What reads codes stays: its result is the model's own.
builtin.module attributes {onnx.opset_imports = {ai.onnx = 17 : i64}} {
func.func @main(%x: tensor<2x7xi8>, %s: tensor<f32>) -> tensor<2x7xf32> {
  // CHECK: onnx.node "HardSigmoid"
  %0 = onnx.node "DequantizeLinear"(%x, %s) : (tensor<2x7xi8>, tensor<f32>) -> tensor<2x7xf32>
  %1 = onnx.node "HardSigmoid"(%0) : (tensor<2x7xf32>) -> tensor<2x7xf32>
  func.return %1 : tensor<2x7xf32>
}
}
