// RUN: cnncc opt %s -p onnx-split-prelu --split-input-file | filecheck %s

// Values are tested in test_frontend_passes.py. The sum has the node's name.
builtin.module attributes {onnx.opset_imports = {ai.onnx = 13 : i64}} {
func.func @main(%x: tensor<1x2x3x4xf32>, %v: tensor<1x2xf32>) -> (tensor<1x2x3x4xf32>, tensor<1x2xf32>) {
  %s = weights.constant : tensor<2x1x1xf32> = dense<[[[0.25]], [[-0.5]]]> : tensor<2x1x1xf32>
  %far = weights.constant : tensor<1xf32> = dense<-1.5> : tensor<1xf32>
  // CHECK: %[[LESS:.*]] = weights.constant : tensor<2x1x1xf32> = #weights.ref
  // CHECK-NEXT: %[[A:.*]] = onnx.node "Mul" name "act.mul"(%x, %[[LESS]])
  // CHECK-NEXT: %[[R:.*]] = onnx.node "Relu" name "act.relu"(%[[A]])
  // CHECK-NEXT: %[[SLOPES:.*]] = weights.constant : tensor<2x1x1xf32> = #weights.ref
  // CHECK-NEXT: %[[B:.*]] = onnx.node "Mul" name "act.mul.2"(%x, %[[SLOPES]])
  // CHECK-NEXT: %[[Y:.*]] = onnx.node "Add" name "act"(%[[B]], %[[R]])
  %0 = onnx.node "PRelu" name "act"(%x, %s) : (tensor<1x2x3x4xf32>, tensor<2x1x1xf32>) -> tensor<1x2x3x4xf32>
  // One slope, which the output units do not have.
  // CHECK: %[[Z:.*]] = onnx.node "Add"
  // CHECK: func.return %[[Y]], %[[Z]]
  %1 = onnx.node "PRelu"(%v, %far) : (tensor<1x2xf32>, tensor<1xf32>) -> tensor<1x2xf32>
  func.return %0, %1 : tensor<1x2x3x4xf32>, tensor<1x2xf32>
}
}

// -----
// These stay: one slope from -1 to 1, one above 1, slopes by column, computed slopes, f64, and f32 of codes.
builtin.module attributes {onnx.opset_imports = {ai.onnx = 13 : i64}} {
func.func @main(%x: tensor<1x2x3x4xf32>, %d: tensor<1x2xf64>, %q: tensor<1x2xi8>) -> (tensor<1x2x3x4xf32>, tensor<1x2xf64>, tensor<1x2xf32>) {
  %one = weights.constant : tensor<2x1x1xf32> = dense<-1.0> : tensor<2x1x1xf32>
  %steep = weights.constant : tensor<2x1x1xf32> = dense<[[[0.25]], [[1.5]]]> : tensor<2x1x1xf32>
  %columns = weights.constant : tensor<4xf32> = dense<[0.1, 0.2, 0.3, 0.4]> : tensor<4xf32>
  %doubles = weights.constant : tensor<2xf64> = dense<[0.1, 0.2]> : tensor<2xf64>
  %floats = weights.constant : tensor<2xf32> = dense<[0.1, 0.2]> : tensor<2xf32>
  %scale = weights.constant : tensor<f32> = dense<0.5> : tensor<f32>
  // CHECK-COUNT-6: onnx.node "PRelu"
  %0 = onnx.node "PRelu"(%x, %one) : (tensor<1x2x3x4xf32>, tensor<2x1x1xf32>) -> tensor<1x2x3x4xf32>
  %1 = onnx.node "PRelu"(%0, %steep) : (tensor<1x2x3x4xf32>, tensor<2x1x1xf32>) -> tensor<1x2x3x4xf32>
  %2 = onnx.node "PRelu"(%1, %columns) : (tensor<1x2x3x4xf32>, tensor<4xf32>) -> tensor<1x2x3x4xf32>
  %3 = onnx.node "PRelu"(%2, %x) : (tensor<1x2x3x4xf32>, tensor<1x2x3x4xf32>) -> tensor<1x2x3x4xf32>
  %4 = onnx.node "PRelu"(%d, %doubles) : (tensor<1x2xf64>, tensor<2xf64>) -> tensor<1x2xf64>
  %5 = onnx.node "DequantizeLinear"(%q, %scale) : (tensor<1x2xi8>, tensor<f32>) -> tensor<1x2xf32>
  %6 = onnx.node "PRelu"(%5, %floats) : (tensor<1x2xf32>, tensor<2xf32>) -> tensor<1x2xf32>
  func.return %3, %4, %6 : tensor<1x2x3x4xf32>, tensor<1x2xf64>, tensor<1x2xf32>
}
}

// -----
// The array file has an operator on the host that the node would become.
builtin.module attributes {onnx.host = ["Add"], onnx.opset_imports = {ai.onnx = 13 : i64}} {
func.func @main(%x: tensor<1x2xf32>) -> tensor<1x2xf32> {
  %s = weights.constant : tensor<2xf32> = dense<[0.1, 0.2]> : tensor<2xf32>
  // CHECK: onnx.node "PRelu"
  %0 = onnx.node "PRelu"(%x, %s) : (tensor<1x2xf32>, tensor<2xf32>) -> tensor<1x2xf32>
  func.return %0 : tensor<1x2xf32>
}
}
