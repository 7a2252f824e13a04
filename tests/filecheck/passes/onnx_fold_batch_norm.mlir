// RUN: cnncc opt %s -p onnx-fold-batch-norm --split-input-file | filecheck %s

// Values are tested in test_frontend_passes.py. Here: what is folded, what stays, and names.
builtin.module attributes {onnx.opset_imports = {ai.onnx = 15 : i64}} {
func.func @main(%x: tensor<1x1x5x7xf32>) -> (tensor<1x2x3x5xf32>, tensor<1x2x3x5xf32>) {
  %w = weights.constant : tensor<2x1x3x3xf32> = dense<0.5> : tensor<2x1x3x3xf32> {onnx.name = "w"}
  %s = weights.constant : tensor<2xf32> = dense<2.0> : tensor<2xf32>
  %t = weights.constant : tensor<2xf32> = dense<3.0> : tensor<2xf32>
  %m = weights.constant : tensor<2xf32> = dense<4.0> : tensor<2xf32>
  %v = weights.constant : tensor<2xf32> = dense<5.0> : tensor<2xf32>

  // A bias appears; the node keeps its name, and its output takes the name of the normalisation's.
  // CHECK: weights.constant : tensor<2x1x3x3xf32> = #weights.ref<"{{.*}}"> {onnx.name = "w"}
  // CHECK-NEXT: weights.constant : tensor<2xf32> = #weights.ref<
  // CHECK-NEXT: %[[A:.*]] = onnx.node "Conv" name "conv"(%x, %{{.*}}, %{{.*}}) outputs ["b"] {strides = array<i64: 1, 1>} : (tensor<1x1x5x7xf32>, tensor<2x1x3x3xf32>, tensor<2xf32>) -> tensor<1x2x3x5xf32>
  %a = onnx.node "Conv" name "conv"(%x, %w) outputs ["a"] {strides = array<i64: 1, 1>} : (tensor<1x1x5x7xf32>, tensor<2x1x3x3xf32>) -> tensor<1x2x3x5xf32>
  %b = onnx.node "BatchNormalization"(%a, %s, %t, %m, %v) outputs ["b"] : (tensor<1x2x3x5xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<1x2x3x5xf32>

  // One with no layer before it stays.
  // CHECK-NEXT: onnx.node "Relu"
  // CHECK-NEXT: onnx.node "BatchNormalization"
  %c = onnx.node "Relu"(%b) : (tensor<1x2x3x5xf32>) -> tensor<1x2x3x5xf32>
  %d = onnx.node "BatchNormalization"(%c, %s, %t, %m, %v) : (tensor<1x2x3x5xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<1x2x3x5xf32>

  // In training mode it computes its own statistics.
  // CHECK: onnx.node "Conv" name "train"
  // CHECK-NEXT: onnx.node "BatchNormalization"
  %e = onnx.node "Conv" name "train"(%x, %w) : (tensor<1x1x5x7xf32>, tensor<2x1x3x3xf32>) -> tensor<1x2x3x5xf32>
  %f = onnx.node "BatchNormalization"(%e, %s, %t, %m, %v) {training_mode = 1 : i64} : (tensor<1x2x3x5xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<1x2x3x5xf32>

  // The value before normalisation has another use: it is also an output.
  // CHECK: onnx.node "Conv" name "used"
  // CHECK-NEXT: onnx.node "BatchNormalization"
  %g = onnx.node "Conv" name "used"(%x, %w) : (tensor<1x1x5x7xf32>, tensor<2x1x3x3xf32>) -> tensor<1x2x3x5xf32>
  %h = onnx.node "BatchNormalization"(%g, %s, %t, %m, %v) : (tensor<1x2x3x5xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<1x2x3x5xf32>
  func.return %g, %h : tensor<1x2x3x5xf32>, tensor<1x2x3x5xf32>
}
}

// -----

// Weights known only at run time; before opset 7 inference must be said.
// CHECK: onnx.node "Conv" name "runtime"
// CHECK-NEXT: onnx.node "BatchNormalization"
// CHECK: onnx.node "Conv" name "silent"
// CHECK-NEXT: onnx.node "BatchNormalization"
builtin.module attributes {onnx.opset_imports = {ai.onnx = 6 : i64}} {
func.func @main(%x: tensor<1x1x5x7xf32>, %r: tensor<2x1x3x3xf32>) {
  %w = weights.constant : tensor<2x1x3x3xf32> = dense<0.5> : tensor<2x1x3x3xf32>
  %s = weights.constant : tensor<2xf32> = dense<2.0> : tensor<2xf32>
  %a = onnx.node "Conv" name "runtime"(%x, %r) : (tensor<1x1x5x7xf32>, tensor<2x1x3x3xf32>) -> tensor<1x2x3x5xf32>
  %b = onnx.node "BatchNormalization"(%a, %s, %s, %s, %s) {is_test = 1 : i64} : (tensor<1x2x3x5xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<1x2x3x5xf32>
  %c = onnx.node "Conv" name "silent"(%x, %w) : (tensor<1x1x5x7xf32>, tensor<2x1x3x3xf32>) -> tensor<1x2x3x5xf32>
  %d = onnx.node "BatchNormalization"(%c, %s, %s, %s, %s) : (tensor<1x2x3x5xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<1x2x3x5xf32>
  func.return
}
}
