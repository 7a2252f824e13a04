// RUN: cnncc opt %s -p onnx-fold-affine --split-input-file | filecheck %s

// Values are tested in test_frontend_passes.py. Here: what becomes what, and names.
builtin.module attributes {onnx.opset_imports = {ai.onnx = 15 : i64}} {
func.func @main(%x: tensor<1x2x5x7xf32>) -> (tensor<1x2x5x7xf32>, tensor<1x2x5x7xf32>, tensor<1x2x5x7xf32>) {
  %s = weights.constant : tensor<2xf32> = dense<[4.0, 9.0]> : tensor<2xf32>
  %k = weights.constant : tensor<2x1x1xf32> = dense<3.0> : tensor<2x1x1xf32>
  %one = weights.constant : tensor<f32> = dense<1.0> : tensor<f32>
  %wide = weights.constant : tensor<7xf32> = dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]> : tensor<7xf32>

  // A normalisation and what follows it: the last node's name and output, no epsilon, mean 0, variance 1.
  // CHECK-NOT: onnx.node "Mul"
  // CHECK: %[[C:.*]] = onnx.node "BatchNormalization" name "shift"(%x, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) outputs ["c"] {epsilon = 0.000000e+00 : f32} : (tensor<1x2x5x7xf32>,
  %a = onnx.node "BatchNormalization" name "bn"(%x, %s, %s, %s, %s) outputs ["a"] : (tensor<1x2x5x7xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<1x2x5x7xf32>
  %b = onnx.node "Mul" name "scale"(%k, %a) outputs ["b"] : (tensor<2x1x1xf32>, tensor<1x2x5x7xf32>) -> tensor<1x2x5x7xf32>
  %c = onnx.node "Add" name "shift"(%b, %k) outputs ["c"] : (tensor<1x2x5x7xf32>, tensor<2x1x1xf32>) -> tensor<1x2x5x7xf32>

  // A scalar alone.
  // CHECK: %[[D:.*]] = onnx.node "BatchNormalization"(%x,
  %d = onnx.node "Sub"(%one, %x) : (tensor<f32>, tensor<1x2x5x7xf32>) -> tensor<1x2x5x7xf32>

  // The constant is one of columns, not of channels.
  // CHECK-NEXT: %[[E:.*]] = onnx.node "Mul"(%x, %wide)
  %e = onnx.node "Mul"(%x, %wide) : (tensor<1x2x5x7xf32>, tensor<7xf32>) -> tensor<1x2x5x7xf32>
  // CHECK-NEXT: func.return %[[C]], %[[D]], %[[E]]
  func.return %c, %d, %e : tensor<1x2x5x7xf32>, tensor<1x2x5x7xf32>, tensor<1x2x5x7xf32>
}
}

// -----

// Before opset 7 an attribute says how a constant broadcasts.
// CHECK: onnx.node "Mul"
builtin.module attributes {onnx.opset_imports = {ai.onnx = 6 : i64}} {
func.func @main(%x: tensor<1x2x5x2xf32>) -> tensor<1x2x5x2xf32> {
  %k = weights.constant : tensor<2xf32> = dense<3.0> : tensor<2xf32>
  %0 = onnx.node "Mul"(%x, %k) {broadcast = 1 : i64, axis = 1 : i64} : (tensor<1x2x5x2xf32>, tensor<2xf32>) -> tensor<1x2x5x2xf32>
  func.return %0 : tensor<1x2x5x2xf32>
}
}
